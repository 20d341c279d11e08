"""A batch that can not be cut into the pipeline's microbatches."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where the local batch is no multiple of the pipeline's microbatch."""
    batch, stages = config.facts.micro_batch, config.facts.pipeline_parallel
    size, key = config.number(_SIZE), config.get(_SIZE)
    if batch is None or stages is None or stages.value <= 1 or key is None or not isinstance(size, int) or size < 1:
        return
    if batch.value % size:
        yield report(
            key,
            f"a local batch of {batch.value} can not be cut into microbatches of {size}",
            help=f"set local_batch_size to a multiple of {size}",
            related=[(batch.setting, "the batch")],
        )


_SIZE = "parallelism.pipeline_parallel_microbatch_size"

RULE = Rule(
    code="PL304",
    name="pipeline-microbatch-does-not-divide",
    severity=Severity.ERROR,
    summary="The pipeline's microbatch does not divide the batch.",
    why="torchtitan cuts `local_batch_size` into `local_batch_size / pipeline_parallel_microbatch_size` microbatches, "
    "and raises an error where that leaves a rest.",
    instead="A `local_batch_size` that is a multiple of `pipeline_parallel_microbatch_size`.",
    sources=(Source(title="torchtitan 0.2.2", where="torchtitan/distributed/pipeline_parallel.py"),),
    find=find,
    dialects=("torchtitan",),
)
