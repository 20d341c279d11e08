"""A global batch that has not even one micro-batch for every device."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where one micro-batch on every device is more than the global batch."""
    batch, micro, devices = config.get("train.global_batch_size"), config.facts.micro_batch, config.facts.data_parallel
    count = 1 if devices is None else devices.value
    if batch is None or not isinstance(batch.value, int) or micro is None or micro.value < 1:
        return
    if batch.value // count // micro.value < 1:
        yield report(
            batch,
            f"a global batch of {batch.value} is less than one micro-batch of {micro.value} on "
            f"{'one device' if count == 1 else f'each of {count} devices'}",
            help=f"set global_batch_size to a multiple of {micro.value * count}, or a smaller micro_batch_size",
            related=[(micro.setting, "the micro-batch"), (devices.setting if devices else None, "the devices")],
        )


RULE = Rule(
    code="PK302",
    name="batch-smaller-than-its-micro-batches",
    severity=Severity.ERROR,
    summary="The global batch is smaller than one micro-batch on every device.",
    why="litgpt accumulates `global_batch_size / devices / micro_batch_size` micro-batches, rounded down, and stops "
    "with an assertion where that is 0.",
    instead="A `global_batch_size` that is a multiple of `micro_batch_size` times the devices.",
    sources=(Source(title="litgpt 0.5.13", where="litgpt/args.py, TrainArgs.gradient_accumulation_iters"),),
    find=find,
    dialects=("litgpt",),
)
