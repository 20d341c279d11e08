"""An attention implementation by its name and by a flag of the past."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_FLAGS = (
    "xformers_attention",
    "sage_attention",
    "flex_attention",
    "flash_attention",
    "sdp_attention",
    "eager_attention",
)
_REFUSED_SINCE = (0, 17)


def find(config: Config) -> Iterator[Report]:
    """A report at each flag that is on beside attn_implementation."""
    named = config.get("attn_implementation")
    if named is None or not named.value or config.target < _REFUSED_SINCE:
        return
    for flag in _FLAGS:
        if on := config.on(flag):
            yield report(
                on.at_key,
                f"axolotl refuses {flag} beside attn_implementation, even where both say the same",
                help=f"remove {flag}",
                related=[(named, "the attention implementation")],
            )


RULE = Rule(
    code="AT101",
    name="attention-set-twice",
    severity=Severity.ERROR,
    summary="The attention implementation is named, and a flag of the past chooses one too.",
    why="Since 0.17 axolotl takes one or the other, and ends the run while it reads the config.",
    instead="`attn_implementation` alone.",
    sources=(Source(title="axolotl 0.19.0", where="utils/schemas/config.py, normalize_attn_implementation"),),
    find=find,
    dialects=("axolotl",),
)
