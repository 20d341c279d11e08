"""What the lines that a solve reports say in numbers, for those who watch it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# As `planner.solving.search` writes them. A test holds the two against each other.
_FOUND = re.compile(
    r"best plan adds (?P<added>[\d.]+) ms.*, none can add less than (?P<bound>[\d.]+) ms, peak (?P<peak>[\d.]+) GB$"
)
_S_PER_MS = 1e-3
_BYTES_PER_GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best plan so far: what it adds to the step, what any plan adds at least, and its peak, not yet rehearsed."""

    added_s: float
    bound_s: float
    peak_bytes: int


def best_of(lines: Sequence[str]) -> Best | None:
    """The best plan that the lines tell of, or None when they tell of none yet."""
    for line in reversed(lines):
        found = _FOUND.search(line)
        if found is not None:
            return Best(
                added_s=float(found["added"]) * _S_PER_MS,
                bound_s=float(found["bound"]) * _S_PER_MS,
                peak_bytes=round(float(found["peak"]) * _BYTES_PER_GB),
            )
    return None
