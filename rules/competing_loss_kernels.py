"""More than one replacement of the cross entropy at a time."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_KERNELS = (
    "cut_cross_entropy",
    "chunked_cross_entropy",
    "liger_cross_entropy",
    "liger_fused_linear_cross_entropy",
)
_SINCE = (0, 13)


def find(config: Config) -> Iterator[Report]:
    """A report at the second of the losses that are on."""
    on = [setting for key in _KERNELS if (setting := config.on(key))]
    if len(on) > 1 and config.target >= _SINCE:
        yield report(
            on[1].at_key,
            f"axolotl takes one cross entropy at a time, and {len(on)} are on: "
            + ", ".join(setting.key for setting in on),
            help="keep one: cut_cross_entropy and liger_fused_linear_cross_entropy never hold all logits at a time",
            related=[(setting.at_key, "also on") for setting in (on[0], *on[2:])],
        )


RULE = Rule(
    code="LS101",
    name="competing-loss-kernels",
    severity=Severity.ERROR,
    summary="Several kernels are to replace the same cross entropy.",
    why="axolotl's check refuses the config; each patches the same function.",
    instead="One of them.",
    sources=(Source(title="axolotl 0.19.0", where="utils/schemas/validation.py, check_cross_entropy_conflicts"),),
    find=find,
    dialects=("axolotl",),
)
