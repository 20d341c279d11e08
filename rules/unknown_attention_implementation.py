"""A name of an attention implementation that axolotl does not take."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.edits import set_value
from planner.diagnostics import Fix, FixSafety, Report, Rule, Severity, Source

_NAMES = (
    "eager",
    "sdpa",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
    "flash_attention_torch",
    "flex_attention",
    "xformers",
    "sage",
    "fp8",
)
# Names that axolotl recognises, and asks to be written in full.
_SHORT = {"flash": "flash_attention_2", "flex": "flex_attention", "sdp": "sdpa"}
_REFUSED_SINCE = (0, 17)


def find(config: Config) -> Iterator[Report]:
    """A report where the name is none that axolotl has; a path with a slash names a kernel on the hub."""
    setting = config.get("attn_implementation")
    name = setting.value if setting is not None else None
    if setting is None or not isinstance(name, str) or config.target < _REFUSED_SINCE:
        return
    if name in _NAMES or "/" in name or "{" in name:
        return
    full = _SHORT.get(name)
    fix = Fix(title=f"Write {full}", safety=FixSafety.SAFE, edits=set_value(setting, full)) if full else None
    yield report(
        setting,
        f"axolotl does not know the attention implementation {name!r}",
        help=f"write {full}" if full else f"one of {', '.join(_NAMES)}, or a kernel on the hub as owner/name",
        fix=fix,
    )


RULE = Rule(
    code="AT102",
    name="unknown-attention-implementation",
    severity=Severity.ERROR,
    summary="An attention implementation that axolotl does not know by this name.",
    why="axolotl ends the run while it reads the config. Short names that other tools take are refused too.",
    instead="The full name, such as `flash_attention_2`.",
    sources=(Source(title="axolotl 0.19.0", where="utils/schemas/config.py, validate_attn_implementation"),),
    find=find,
    dialects=("axolotl",),
    fix=FixSafety.SAFE,
)
