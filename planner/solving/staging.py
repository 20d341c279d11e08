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
# Generous staging takes at most these parts of the budget, where that leaves room for these many of the largest tensor.
_OUT_PART, _BACK_PART = 1 / 16, 1 / 32
_LEAST_OUT, _LEAST_BACK = 2, 1


def generous(largest_bytes: int, budget_bytes: int) -> dict[str, int]:
    """Staging with which a plan that keeps the link busy evenly does not wait for it: arguments of `Staging.of`."""

    def multiple(least: int, usual: int, part: float) -> int:
        return max(least, min(usual, int(part * budget_bytes) // max(1, largest_bytes)))

    return {
        "out": multiple(_LEAST_OUT, STAGED_OUT, _OUT_PART),
        "back": multiple(_LEAST_BACK, STAGED_BACK, _BACK_PART),
        "lead": LEAD,
    }


def with_generous_staging(problem: Problem, kept: Set[int], offloaded: Set[int], budget_bytes: int) -> Timeline:
    """The timeline under generous staging."""
    sizes_bytes = [problem.tensors[index].size_bytes for index in offloaded]
    staging = Staging.of(sizes_bytes, **generous(max(sizes_bytes, default=0), budget_bytes))
    return simulate(problem, kept, offloaded=offloaded, staging=staging)


def with_best_staging(problem: Problem, kept: Set[int], offloaded: Set[int], budget_bytes: int) -> Timeline:
    """The timeline under that staging, of those tried, with which the plan fits best, and then waits least."""
    best = with_generous_staging(problem, kept, offloaded, budget_bytes)
    if not offloaded:
        return best
    schedule = demand_schedule(problem, kept)
    lives = Lives(problem, kept, schedule, offloaded)
    sizes_bytes = [problem.tensors[index].size_bytes for index in offloaded]
    chosen = generous(max(sizes_bytes), budget_bytes)
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
