"""Two settings of the allocator against fragmentation that undo each other."""

from collections.abc import Iterator

from planner.configs.allocator import option
from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where blocks are kept from being split in segments that can grow."""
    limit, expandable = option(config, "max_split_size_mb"), option(config, "expandable_segments")
    if limit is None or expandable is None or expandable.value != "True":
        return
    yield report(
        limit.place,
        "expandable segments split every block and ignore this limit, but smaller requests still pass over free blocks "
        f"above {limit.value} MB: memory that is reserved can grow without bound",
        help="remove max_split_size_mb: expandable segments are the better of the two",
        related=[(expandable.place, "segments can grow")],
    )


RULE = Rule(
    code="AL403",
    name="split-limit-with-expandable-segments",
    severity=Severity.WASTE,
    summary="max_split_size_mb is set beside expandable_segments:True.",
    why="An expandable segment is one block as large as the GPU, from which all others are split, so the limit keeps "
    "nothing whole. What is left of it does harm: a request below the limit may not use a free block above it, and "
    "merged free blocks go to waste. A public reproducer ends with 266 MiB in use and 14,060 MiB reserved; PyTorch "
    "before 2.6 failed with an internal assertion instead.",
    instead="`expandable_segments:True` alone.",
    sources=(
        Source(title="pytorch issue 123548", where="https://github.com/pytorch/pytorch/issues/123548"),
        Source(title="pytorch pull request 193400", where="https://github.com/pytorch/pytorch/pull/193400"),
        Source(title="pytorch pull request 134338", where="https://github.com/pytorch/pytorch/pull/134338"),
    ),
    find=find,
)
