"""How much of the device's memory copies may hold on their way: more waits less for the link, and takes more memory."""

from collections.abc import Callable, Set
from functools import cached_property

from planner.link import LEAD, STAGED_BACK, STAGED_OUT, Staging
from planner.problem import Problem
from planner.simulation.liveness import Lives, Timeline, demand_schedule
from planner.simulation.transfers import traffic

# What is tried, one thing after the other, when a plan with generous staging does not fit, or waits all the same: so
# many times the largest tensor in each direction, and so early. Where many bytes leave at once, the link catches up
# only several blocks later: forward has room for so long a lead but towards its end.
_TRIED: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("back", (2, 3, 1, 6)),
    ("lead", (192, 256, 384, 512, 768, 64, 16)),
    ("out", (24, 12, 8, 6, 4, 3, 2)),
    ("back", (1.5, 2.5)),
    ("lead", (96, 128, 320)),
)
# Generous staging takes at most these parts of the budget, where that leaves room for these many of the largest tensor.
_OUT_PART, _BACK_PART = 1 / 16, 1 / 32
_LEAST_OUT, _LEAST_BACK = 2, 1


def generous(largest_bytes: int, budget_bytes: int) -> dict[str, float]:
    """Staging with which a plan that keeps the link busy evenly hardly waits for it: multiples of the largest, and the
    lead.
    """

    def multiple(least: int, usual: int, part: float) -> int:
        return max(least, min(usual, int(part * budget_bytes) // max(1, largest_bytes)))

    return {
        "out": multiple(_LEAST_OUT, STAGED_OUT, _OUT_PART),
        "back": multiple(_LEAST_BACK, STAGED_BACK, _BACK_PART),
        "lead": LEAD,
    }


def with_best_staging(problem: Problem, kept: Set[int], offloaded: Set[int], budget_bytes: int) -> Timeline:
    """The timeline under that staging, of those tried, with which the plan fits best, and then waits least."""
    return Stagings(problem, kept, offloaded).best(budget_bytes)


class Stagings:
    """A plan's timelines under several stagings; each is simulated once.

    Args:
        problem: the step.
        kept, offloaded: the plan.
    """

    def __init__(self, problem: Problem, kept: Set[int], offloaded: Set[int]) -> None:
        self._problem, self._kept, self._offloaded = problem, kept, offloaded
        self._largest_bytes = max((problem.tensors[index].size_bytes for index in offloaded), default=0)
        self._schedule = demand_schedule(problem, kept)
        self._known: dict[Staging, Timeline] = {}

    @cached_property
    def _lives(self) -> Lives:
        return Lives(self._problem, self._kept, self._schedule, self._offloaded)

    def best(self, budget_bytes: int) -> Timeline:
        """The timeline with which the plan fits best, and then waits least."""

        def rank(timeline: Timeline) -> tuple[int, ...]:
            return sum(self.excess_bytes(timeline, budget_bytes)), timeline.added_ns, timeline.peak_bytes

        return self._search(budget_bytes, rank)

    def cheapest(self, budget_bytes: int, price_ns: float) -> Timeline:
        """The timeline that costs least if it may peak over the budget.

        Args:
            budget_bytes: as of the plan.
            price_ns: of each byte over it, in forward and in backward.
        """

        def rank(timeline: Timeline) -> tuple[float, ...]:
            excess_bytes = sum(self.excess_bytes(timeline, budget_bytes))
            return timeline.added_ns + price_ns * excess_bytes, excess_bytes, timeline.peak_bytes

        return self._search(budget_bytes, rank)

    def excess_bytes(self, timeline: Timeline, budget_bytes: int) -> tuple[int, int]:
        """By how much a timeline is over the budget in forward, and in backward."""
        forward = self._problem.backward_step  # without replays, a step is a moment
        parts = timeline.live_bytes[:forward], timeline.live_bytes[forward:]
        over_forward, over_backward = (max(0, max(part, default=0) - budget_bytes) for part in parts)
        return over_forward, over_backward

    def _search(self, budget_bytes: int, rank: Callable[[Timeline], tuple[float, ...]]) -> Timeline:
        """The lowest of those tried."""
        chosen = generous(self._largest_bytes, budget_bytes)
        best = self._timeline(**chosen)
        for name, values in _TRIED if self._offloaded else ():
            for value in values:
                if best.peak_bytes <= budget_bytes and not best.stall_ns:
                    return best
                tried = {**chosen, name: value}
                timeline = self._timeline(**tried)
                if rank(timeline) < rank(best):
                    best, chosen = timeline, tried
        return best

    def _timeline(self, *, out: float, back: float, lead: float) -> Timeline:
        staging = Staging(
            out_bytes=round(out * self._largest_bytes), back_bytes=round(back * self._largest_bytes), lead=round(lead)
        )
        if staging not in self._known:
            copies = traffic(self._problem, self._kept, self._offloaded, self._schedule, staging=staging)
            self._known[staging] = self._lives.timeline(copies)
        return self._known[staging]
