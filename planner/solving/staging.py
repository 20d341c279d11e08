"""How much of the device's memory copies may hold on their way: more waits less for the link, and takes more memory."""

from collections.abc import Set

from planner.link import LEAD, STAGED_BACK, STAGED_OUT, Staging
from planner.problem import Problem
from planner.simulation.liveness import Lives, Timeline, demand_schedule, simulate
from planner.simulation.transfers import traffic

# What is tried, one thing after the other, when a plan with generous staging does not fit, or waits all the same: so
# many times the largest tensor in each direction, and so early.
_TRIED: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("back", (2, 3, 1, 6)),
    ("out", (8, 4, 2)),
    ("lead", (48, 16)),
)


def with_generous_staging(problem: Problem, kept: Set[int], offloaded: Set[int]) -> Timeline:
    """The timeline under staging with which a plan that keeps the link busy evenly does not wait for it."""
    sizes_bytes = [problem.tensors[index].size_bytes for index in offloaded]
    return simulate(problem, kept, offloaded=offloaded, staging=Staging.of(sizes_bytes))


def with_best_staging(problem: Problem, kept: Set[int], offloaded: Set[int], budget_bytes: int) -> Timeline:
    """The timeline under that staging, of those tried, with which the plan fits best, and then waits least."""
    best = with_generous_staging(problem, kept, offloaded)
    if not offloaded:
        return best
    schedule = demand_schedule(problem, kept)
    lives = Lives(problem, kept, schedule, offloaded)
    sizes_bytes = [problem.tensors[index].size_bytes for index in offloaded]
    chosen = {"out": STAGED_OUT, "back": STAGED_BACK, "lead": LEAD}
    for name, values in _TRIED:
        for value in values:
            if best.peak_bytes <= budget_bytes and not best.stall_ns:
                return best
            tried = {**chosen, name: value}
            staging = Staging.of(sizes_bytes, **tried)
            timeline = lives.timeline(traffic(problem, kept, offloaded, schedule, staging=staging))
            if _rank(timeline, budget_bytes) < _rank(best, budget_bytes):
                best, chosen = timeline, tried
    return best


def _rank(timeline: Timeline, budget_bytes: int) -> tuple[int, int, int]:
    return max(0, timeline.peak_bytes - budget_bytes), timeline.added_ns, timeline.peak_bytes
