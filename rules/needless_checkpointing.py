"""Checkpointing in a run that fits without it."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Checkpointing, Fact
from planner.diagnostics import Report, Rule, Severity, Source
from planner.records import replace


def find(config: Config) -> Iterator[Report]:
    """A report where the run fits the device even if nothing is recomputed."""
    checkpointing = config.facts.checkpointing
    if checkpointing is None or checkpointing.value is not Checkpointing.FULL or checkpointing.setting is None:
        return
    without = replace(config.facts, checkpointing=Fact(value=Checkpointing.NONE))
    prospect = config.prospect(without)
    if prospect is not None and prospect.verdict == "FITS":
        yield report(
            checkpointing.setting,
            f"without checkpointing the run needs at most {prospect.high_bytes / 1e9:.1f} GB of the "
            f"{prospect.usable_bytes / 1e9:.1f} GB of {prospect.device}: every block's forward is computed twice for "
            "nothing",
            help="turn checkpointing off, or use the room for a larger micro-batch",
        )


RULE = Rule(
    code="EST002",
    name="needless-checkpointing",
    severity=Severity.WASTE,
    summary="Every block is recomputed in backward, and the run fits the device without.",
    why="Full checkpointing repeats each block's forward: about a third more arithmetic in a step. It is worth that "
    "only where memory is short.",
    instead="No checkpointing; or a micro-batch that needs it.",
    sources=(
        Source(
            title="Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost", where="arXiv 1604.06174, section 4"
        ),
        Source(title="this planner", where="docs/estimate.md"),
    ),
    find=find,
    needs_device=True,
)
