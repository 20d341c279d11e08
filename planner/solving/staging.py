"""How much of the device's memory copies may hold on their way: more waits less for the link, and takes more memory."""

from collections.abc import Set

from planner.link import LEAD, STAGED_BACK, STAGED_OUT, Staging
from planner.problem import Problem
from planner.simulation.liveness import Lives, Timeline, demand_schedule
from planner.simulation.transfers import NO_TRAFFIC, traffic

# What is tried, one thing after the other: so many times the largest tensor in each direction, and so early.
_TRIED: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("out", (STAGED_OUT, 4, 2, 8)),
    ("back", (3, 4, 6, 1)),
    ("lead", (16, 0)),
)


def with_best_staging(problem: Problem, kept: Set[int], offloaded: Set[int], budget_bytes: int) -> Timeline:
    """The timeline under that staging, of those tried, with which the plan fits best, and then waits least."""
    schedule = demand_schedule(problem, kept)
    lives = Lives(problem, kept, schedule, offloaded)
    if not offloaded:
        return lives.timeline(NO_TRAFFIC)
    sizes_bytes = [problem.tensors[index].size_bytes for index in offloaded]
    best: Timeline | None = None
    chosen = {"out": STAGED_OUT, "back": STAGED_BACK, "lead": LEAD}
    for name, values in _TRIED:
        for value in values:
            if best is not None and best.peak_bytes <= budget_bytes and not best.stall_ns:
                return best
            tried = {**chosen, name: value}
            staging = Staging.of(sizes_bytes, **tried)
            timeline = lives.timeline(traffic(problem, kept, offloaded, schedule, staging=staging))
            if best is None or _rank(timeline, budget_bytes) < _rank(best, budget_bytes):
                best, chosen = timeline, tried
    assert best is not None
    return best


def _rank(timeline: Timeline, budget_bytes: int) -> tuple[int, int, int]:
    return max(0, timeline.peak_bytes - budget_bytes), timeline.added_ns, timeline.peak_bytes
