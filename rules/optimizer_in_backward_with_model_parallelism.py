"""An optimizer within backward, where backward comes in parts."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for pipeline and for expert parallelism beside an optimizer in backward."""
    in_backward = config.facts.optimizer_in_backward
    if in_backward is None or not in_backward.value or in_backward.setting is None:
        return
    for degree, kind in (
        (config.facts.pipeline_parallel, "pipeline"),
        (config.facts.expert_parallel, "expert"),
    ):
        if degree is not None and degree.value > 1 and degree.setting is not None:
            yield report(
                in_backward.setting,
                f"{in_backward.setting.entry.key} does not work with {kind} parallelism",
                help=f"set {in_backward.setting.entry.key} to false",
                related=[(degree.setting, f"{kind} parallelism is on")],
            )


RULE = Rule(
    code="OP304",
    name="optimizer-in-backward-with-model-parallelism",
    severity=Severity.ERROR,
    summary="The optimizer is to run within backward, beside pipeline or expert parallelism.",
    why="With a pipeline, a parameter's gradient is complete only after the last microbatch's backward. torchtitan "
    "raises `Optimizers in backward is not supported`, for expert parallelism too.",
    instead="`early_step_in_backward = false`.",
    sources=(Source(title="torchtitan 0.2.2", where="torchtitan/components/optimizer.py, build_optimizers"),),
    find=find,
    dialects=("torchtitan",),
)
