"""Memory over the step as a chart shows it: few columns, each the fullest moment in it, and the highest of each phase.

Thousands of moments become some hundred columns. A column shows one real moment, the one with the most bytes among
those it covers, so its kinds add up and no peak is lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.graph import OpGraph, Phase
from planner.problem import moment_in_words
from planner.reporting.link import Clock
from planner.reporting.text import short_op
from planner.simulation.kinds import MemoryKind

if TYPE_CHECKING:
    from planner.problem import Problem
    from planner.simulation.breakdown import Breakdown
    from planner.simulation.liveness import Timeline

_NS_PER_S = 1_000_000_000
# One for every two pixels of a chart on a wide page, or so.
COLUMNS = 480
OPTIMIZER = "optimizer step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is alive at one moment of the step.

    Attributes:
        phase: "forward", "backward" or "optimizer step".
        at: where in the step, for a person.
        start_s, end_s: of the moment, or of the column that it stands for.
        by_kind_bytes: in the order of `MemoryOverTime.kinds`.
    """

    phase: str
    at: str
    start_s: float
    end_s: float
    by_kind_bytes: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        """All kinds together."""
        return sum(self.by_kind_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverTime:
    """The memory of a step.

    Attributes:
        kinds: those that occur, in stacking order.
        columns: in order of time, without gaps.
        peaks: the highest moment of forward, of backward, and the optimizer step.
        backward_s, optimizer_s, end_s: when backward and the optimizer step begin, and when the step ends.
    """

    kinds: tuple[MemoryKind, ...]
    columns: tuple[Moment, ...]
    peaks: tuple[Moment, ...]
    backward_s: float
    optimizer_s: float
    end_s: float

    @property
    def peak_bytes(self) -> int:
        """The highest of all."""
        return max(moment.total_bytes for moment in self.peaks)


def memory_over_time(
    timeline: "Timeline", by_kind: "Breakdown", problem: "Problem", graph: OpGraph, *, columns: int = COLUMNS
) -> MemoryOverTime:
    """The memory of a step under a plan.

    Args:
        timeline: of the plan.
        by_kind: the same timeline by kind.
        problem: what the timeline is about.
        graph: of the step.
        columns: at most so many.
    """
    clock = Clock(timeline, problem)
    optimizer_ns = clock.reached_ns[-1]
    end_ns = optimizer_ns + problem.step_ns - sum(problem.times_ns)
    bounds_ns = [*clock.reached_ns, end_ns]
    kinds = tuple(by_kind.by_kind)
    totals = [*timeline.live_bytes, sum(by_kind.optimizer.values())]
    turn = clock.first[problem.backward_step]

    def moment(place: int, start_ns: float, stop_ns: float) -> Moment:
        is_optimizer = place == len(timeline.points)
        sizes: Mapping[MemoryKind, int] = by_kind.optimizer if is_optimizer else by_kind.at(place)
        phase, at = OPTIMIZER, OPTIMIZER
        if not is_optimizer:
            point = timeline.points[place]
            phase = str(Phase.FORWARD if place < turn else Phase.BACKWARD)
            at = short_op(moment_in_words(problem, graph, point.step, point.replay))
        return Moment(
            phase=phase,
            at=at,
            start_s=start_ns / _NS_PER_S,
            end_s=stop_ns / _NS_PER_S,
            by_kind_bytes=tuple(sizes[kind] for kind in kinds),
        )

    fullest = fullest_by_column(bounds_ns, totals, columns)
    width_ns = end_ns / len(fullest)
    phases = [range(turn), range(turn, len(timeline.points)), range(len(timeline.points), len(totals))]
    highest = [max(phase, key=totals.__getitem__) for phase in phases if phase]
    return MemoryOverTime(
        kinds=kinds,
        columns=tuple(moment(place, n * width_ns, (n + 1) * width_ns) for n, place in enumerate(fullest)),
        peaks=tuple(moment(place, bounds_ns[place], bounds_ns[place + 1]) for place in highest),
        backward_s=clock.reached_ns[turn] / _NS_PER_S,
        optimizer_s=optimizer_ns / _NS_PER_S,
        end_s=end_ns / _NS_PER_S,
    )


def fullest_by_column(bounds: Sequence[int], totals: Sequence[int], columns: int) -> list[int]:
    """For equal columns of time, the place with the highest total among the moments in each; the first of equals.

    A moment that takes no time counts in the column that it lies in, the last one of all if at the very end.

    Args:
        bounds: when each moment begins, and when the last one ends; the first is 0.
        totals: of each moment.
        columns: at most so many; one if no time passes.
    """
    end = bounds[-1]
    count = columns if end else 1
    found = [-1] * count
    for place, total in enumerate(totals):
        first = min(bounds[place] * count // end, count - 1) if end else 0
        last = max(first, -(-bounds[place + 1] * count // end) - 1) if end else 0
        for column in range(first, last + 1):
            if found[column] < 0 or total > totals[found[column]]:
                found[column] = place
    return found
