"""Automodel runs a pipeline only where it is told its schedule."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_FIRST_REFUSING = (0, 5, 0)


def find(config: Config) -> Iterator[Report]:
    """A report where there is a pipeline and no settings for it."""
    stages = config.get("distributed.pp_size")
    if config.target < _FIRST_REFUSING or config.get("autopipeline") is not None:
        return
    if stages is None or not isinstance(stages.value, int) or stages.value <= 1:
        return
    if config.get("distributed.pipeline") is None and config.get("distributed._target_") is None:
        yield report(
            stages,
            f"a pipeline of {stages.value} stages without distributed.pipeline: Automodel refuses to start",
            help="add distributed.pipeline with pp_schedule and pp_microbatch_size; pipeline: {} takes the defaults",
        )


RULE = Rule(
    code="PL408",
    name="pipeline-without-schedule",
    severity=Severity.ERROR,
    summary="pp_size is above 1, and distributed.pipeline is missing.",
    why="The schedule and the size of its micro-batches decide how many micro-batches' activations a stage holds at "
    "one time. Automodel raises a ValueError where they are not said.",
    instead="A `distributed.pipeline` section.",
    sources=(
        Source(title="NeMo Automodel 0.7.0", where="nemo_automodel/recipes/_dist_utils.py: parse_distributed_section"),
    ),
    find=find,
    dialects=("nemo_automodel",),
)
