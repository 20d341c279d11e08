"""A pipeline with more stages than microbatches, most of which always wait."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where a step has fewer microbatches than the pipeline has ranks."""
    batch, stages = config.facts.micro_batch, config.facts.pipeline_parallel
    size = config.number("parallelism.pipeline_parallel_microbatch_size")
    if config.value("parallelism.pipeline_parallel_schedule") not in _ONE_STAGE_PER_RANK:
        return
    if batch is None or stages is None or stages.setting is None or not isinstance(size, int) or size < 1:
        return
    count = batch.value // size
    if batch.value % size or not 0 < count < stages.value:
        return
    # One pass of m microbatches through p stages takes m + p - 1 turns, of which each stage works m.
    idle = (stages.value - 1) / (count + stages.value - 1)
    yield report(
        stages.setting,
        f"a step has {count} microbatch{'' if count == 1 else 'es'} for {stages.value} pipeline stages: each stage "
        f"waits {idle:.0%} of the time",
        help=f"raise local_batch_size to {stages.value * size} or more",
        related=[(batch.setting, "the batch of one step")],
    )


_ONE_STAGE_PER_RANK = ("1F1B", "GPipe")  # of the others the share depends on how layers are divided

RULE = Rule(
    code="PL305",
    name="fewer-microbatches-than-stages",
    severity=Severity.WASTE,
    summary="A pipeline has fewer microbatches per step than stages, so that its stages wait most of the time.",
    why="A microbatch passes the p stages one after the other. With m of them a stage works m turns out of m + p - 1, "
    "and waits the rest: 75% of a step with one microbatch and four stages. torchtitan warns of it once, in the log.",
    instead="A `local_batch_size` of several times the stages, with `pipeline_parallel_microbatch_size` at what fits.",
    sources=(
        Source(title="torchtitan 0.2.2", where="torchtitan/distributed/pipeline_parallel.py"),
        Source(title="Huang et al., GPipe, section 2.3", where="https://arxiv.org/abs/1811.06965"),
    ),
    find=find,
    dialects=("torchtitan",),
)
