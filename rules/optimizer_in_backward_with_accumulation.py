"""An optimizer that frees each gradient within backward cannot accumulate gradients."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where gradients are accumulated and the optimizer runs in backward."""
    in_backward, steps = config.facts.optimizer_in_backward, config.facts.accumulation_steps
    if in_backward is None or not in_backward.value or steps is None or steps.value <= 1 or steps.setting is None:
        return
    yield report(
        steps.setting,
        f"{steps.setting.key} is {steps.value}, but an optimizer in backward updates after every micro-batch",
        help=f"set {steps.setting.key} to 1, or turn the optimizer in backward off",
        related=[(in_backward.setting, "the optimizer runs in backward")],
    )


RULE = Rule(
    code="OP301",
    name="optimizer-in-backward-with-accumulation",
    severity=Severity.ERROR,
    summary="Gradients are to be accumulated, but the optimizer updates and frees each of them within backward.",
    why="Each gradient is used and freed as soon as backward has computed it, which is what saves the memory of all "
    "gradients. There is nothing left to add the next micro-batch's to, and the framework refuses.",
    instead="A larger micro-batch without accumulation, or the optimizer outside backward.",
    sources=(
        Source(title="this planner", where="docs/estimate.md"),
        Source(title="torchtune 0.6.1", where="recipes/full_finetune_single_device.py, __init__"),
        Source(
            title="torchtune documentation",
            where="https://pytorch.org/torchtune/0.6/tutorials/memory_optimizations.html",
        ),
    ),
    find=find,
    dialects=("torchtune", "planner_spec"),
)
