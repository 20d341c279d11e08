"""A global batch that does not come out even, and is smaller in truth."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where the global batch is no multiple of a micro-batch on every device."""
    steps, micro, devices = config.facts.accumulation_steps, config.facts.micro_batch, config.facts.data_parallel
    batch = config.get("train.global_batch_size")
    if batch is None or steps is None or micro is None or devices is None:
        return
    real = steps.value * micro.value * devices.value
    if real == batch.value:
        return
    even = micro.value * devices.value
    yield report(
        batch,
        f"the global batch is {real} in truth, not {batch.value}: {steps.value} micro-batch"
        f"{'' if steps.value == 1 else 'es'} of {micro.value} on {devices.value} device"
        f"{'' if devices.value == 1 else 's'}, rounded down",
        help=f"use a multiple of {even}, such as {real} or {real + even}",
        related=[(micro.setting, "the micro-batch")],
    )


RULE = Rule(
    code="PK303",
    name="global-batch-rounded-down",
    severity=Severity.NO_OP,
    summary="The global batch is no multiple of a micro-batch on every device, and is silently made smaller.",
    why="litgpt divides the global batch by the devices and then by the micro-batch, rounds down both times, and steps "
    "the optimizer after that many micro-batches. Nothing says that the batch is smaller than the config's.",
    instead="A `global_batch_size` that is a multiple of `micro_batch_size` times the devices.",
    sources=(Source(title="litgpt 0.5.13", where="litgpt/args.py, TrainArgs.batch_size"),),
    find=find,
    dialects=("litgpt",),
)
