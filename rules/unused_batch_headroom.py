"""Gradient accumulation over micro-batches of which two at once would fit."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Fact
from planner.diagnostics import Report, Rule, Severity, Source
from planner.records import replace


def find(config: Config) -> Iterator[Report]:
    """A report where twice the micro-batch and half the accumulation fits the device with certainty."""
    batch, accumulation = config.facts.micro_batch, config.facts.accumulation_steps
    if batch is None or accumulation is None or batch.setting is None or accumulation.value < 2:
        return
    factor = 2
    best = None
    while accumulation.value % factor == 0:
        larger = replace(
            config.facts,
            micro_batch=Fact(value=batch.value * factor),
            accumulation_steps=Fact(value=accumulation.value // factor),
        )
        prospect = config.prospect(larger)
        if prospect is None or prospect.verdict != "FITS":
            break
        best = factor, prospect
        factor *= 2
    if best is None:
        return
    factor, prospect = best
    yield report(
        batch.setting,
        f"{batch.value * factor} rows at a time need at most {prospect.high_bytes / 1e9:.1f} GB of the "
        f"{prospect.usable_bytes / 1e9:.1f} GB of {prospect.device}",
        help=f"a micro-batch of {batch.value * factor} with accumulation {accumulation.value // factor} is the same "
        "step, in fewer and larger kernels",
        related=[(accumulation.setting, "accumulated here")] if accumulation.setting else [],
    )


RULE = Rule(
    code="EST003",
    name="unused-batch-headroom",
    severity=Severity.WASTE,
    summary="Gradients are accumulated over micro-batches of which two or more at once would fit.",
    why="The same tokens in fewer and larger kernels take less time, and under FSDP or ZeRO-3 parameters are gathered "
    "once per micro-batch. Where kernels are large already, the gain is small.",
    instead="A larger micro-batch and fewer accumulation steps, with the same product.",
    sources=(Source(title="this planner", where="docs/throughput.md"),),
    find=find,
    needs_device=True,
    opt_in=True,
)
