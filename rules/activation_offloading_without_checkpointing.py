"""axolotl refuses activation_offloading where gradient_checkpointing is off."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where activations are to be offloaded without checkpointing."""
    offloading = config.get("activation_offloading")
    checkpointing = config.get("gradient_checkpointing")
    if offloading is None or not offloading.value or (checkpointing is not None and checkpointing.value):
        return
    yield report(
        offloading,
        "axolotl refuses activation_offloading without gradient_checkpointing, which is off",
        help="set gradient_checkpointing: true, or remove activation_offloading",
        related=[(checkpointing, "checkpointing is off here")] if checkpointing else [],
    )


RULE = Rule(
    code="OF101",
    name="activation-offloading-without-checkpointing",
    severity=Severity.ERROR,
    summary="Activation offloading is on, and checkpointing, which it needs, is off.",
    why="axolotl checks its config before training and refuses this one, after the machines are up.",
    instead="Set `gradient_checkpointing: true`, or remove `activation_offloading`.",
    sources=(Source(title="axolotl 0.19.0", where="utils/schemas/validation.py, check_activation_offloading_wo_gc"),),
    find=find,
    dialects=("axolotl",),
)
