"""axolotl refuses activation_offloading where gradient_checkpointing is off."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Checkpointing
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where activations are to be offloaded without checkpointing."""
    offloading = config.get("activation_offloading")
    checkpointing = config.facts.checkpointing
    if offloading is None or not offloading.value or checkpointing is None:
        return
    if checkpointing.value is Checkpointing.NONE:
        related = [(checkpointing.setting, "checkpointing is off here")] if checkpointing.setting else []
        yield report(
            offloading,
            "activation_offloading needs gradient_checkpointing, which is off",
            help="set gradient_checkpointing: true, or remove activation_offloading",
            related=related,
        )


RULE = Rule(
    code="OF101",
    name="activation-offloading-without-checkpointing",
    severity=Severity.ERROR,
    summary="Activation offloading is on, and checkpointing, which it needs, is off.",
    why="axolotl checks its config before training and refuses this one, after the machines are up.",
    instead="Set `gradient_checkpointing: true`, or remove `activation_offloading`.",
    sources=(Source(title="axolotl 067b021", where="src/axolotl/utils/schemas/validation.py"),),
    find=find,
    dialects=("axolotl",),
)
