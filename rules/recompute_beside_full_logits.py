"""Checkpointing that a loss in chunks would make needless."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Checkpointing, Fact, Loss
from planner.diagnostics import Report, Rule, Severity, Source
from planner.records import replace


def find(config: Config) -> Iterator[Report]:
    """A report where the run fits without checkpointing once the logits do not exist all at one time."""
    checkpointing, loss = config.facts.checkpointing, config.facts.loss
    if checkpointing is None or checkpointing.value is not Checkpointing.FULL or checkpointing.setting is None:
        return
    if loss is None or loss.value is not Loss.FULL:
        return
    without = replace(config.facts, checkpointing=Fact(value=Checkpointing.NONE))
    now = config.prospect(without)
    cheaper = config.prospect(replace(without, loss=Fact(value=Loss.FUSED)))
    if now is not None and cheaper is not None and now.verdict != "FITS" and cheaper.verdict == "FITS":
        saved = now.high_bytes - cheaper.high_bytes
        yield report(
            checkpointing.setting,
            f"a fused linear cross entropy needs {saved / 1e9:.1f} GB less than full logits, and with it the run fits "
            f"({cheaper.high_bytes / 1e9:.1f} of {cheaper.usable_bytes / 1e9:.1f} GB) without checkpointing",
            help="switch on the fused loss and turn checkpointing off: `planner compare` shows both",
        )


RULE = Rule(
    code="EST004",
    name="recompute-beside-full-logits",
    severity=Severity.WASTE,
    summary="Every block is recomputed for memory that the logits take, and a fused loss would save.",
    why="With a large vocabulary the logits and their gradient can outweigh all that checkpointing saves. A linear "
    "cross entropy that never holds all logits costs next to nothing; checkpointing costs a forward.",
    instead="The framework's fused or chunked cross entropy, without checkpointing.",
    sources=(
        Source(title="Liger Kernel, fused linear cross entropy", where="arXiv 2410.10989, section 3.2"),
        Source(title="this planner", where="docs/compare.md"),
    ),
    find=find,
    needs_device=True,
)
