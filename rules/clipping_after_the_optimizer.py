"""A gradient norm that is clipped when the gradients have been used already."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where torchtitan's optimizer runs in backward and the file names a norm to clip to."""
    in_backward, norm = config.facts.optimizer_in_backward, config.get("training.max_norm")
    if in_backward is None or not in_backward.value or in_backward.setting is None or norm is None:
        return
    yield report(
        norm,
        "max_norm does nothing: an optimizer in backward has used and freed every gradient before they would be "
        "clipped",
        help="set early_step_in_backward = false to clip, or remove max_norm",
        related=[(in_backward.setting, "the optimizer runs in backward")],
    )


RULE = Rule(
    code="OP305",
    name="clipping-after-the-optimizer",
    severity=Severity.NO_OP,
    summary="Gradients are to be clipped, but an optimizer within backward has used them by then.",
    why="torchtitan clips gradients between backward and the optimizer's step. With `early_step_in_backward` each "
    "parameter has been updated within backward, so that training is not clipped at all.",
    instead="`early_step_in_backward = false`, or training without clipping.",
    sources=(
        Source(title="torchtitan 0.2.2", where="torchtitan/config/job_config.py, Optimizer.early_step_in_backward"),
        Source(title="torchtitan 0.2.2", where="torchtitan/components/optimizer.py, OptimizersInBackwardContainer"),
    ),
    find=find,
    dialects=("torchtitan",),
)
