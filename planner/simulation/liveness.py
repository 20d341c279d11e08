"""The memory timeline of a step under a plan, by following every tensor's life.

A *schedule* says which ops backward replays at which unpack. `demand_schedule` is the product's own runtime: at each
unpack exactly the ops that this unpack still lacks, each at most once. `region_schedule` is checkpointing by regions:
the first unpack in a region replays the whole region.
"""

from collections import defaultdict
from collections.abc import Callable, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.link import Staging
from planner.problem import Problem
from planner.simulation.transfers import NO_TRAFFIC, Schedule, Traffic, ideal_traffic, traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A moment of the step: a step, or within an unpack step the replay of one op."""

    step: int
    replay: int | None = None  # position in Problem.ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Bytes alive at every moment of a step under a plan.

    Attributes:
        points: the moments in order.
        live_bytes: bytes alive at each.
        peak_bytes: the highest, the optimizer step included.
        peak: where it is; None when it is the optimizer step.
        recompute_ns: time of all replays.
        replays: how many ops are replayed.
        traffic: to the host and back.
    """

    points: tuple[Point, ...]
    live_bytes: tuple[int, ...]
    peak_bytes: int
    peak: Point | None
    recompute_ns: int
    replays: int
    traffic: Traffic = NO_TRAFFIC

    @property
    def stall_ns(self) -> int:
        """Time waiting for the host link."""
        return self.traffic.forward_stall_ns + self.traffic.backward_stall_ns

    @property
    def added_ns(self) -> int:
        """What the plan adds to the step: replays and waiting."""
        return self.recompute_ns + self.stall_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a plan adds at every moment to the memory that no plan changes.

    Attributes:
        kept_bytes: held on the device from forward, from where its life in forward ends.
        replayed_bytes: made again by replays.
        scratch_bytes: alive while a replayed op runs.
        moved_bytes: on the way to the host, and back from there until released.
    """

    kept_bytes: tuple[int, ...]
    replayed_bytes: tuple[int, ...]
    scratch_bytes: tuple[int, ...]
    moved_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """A set of tensors to keep, and the step under it; the timeline says which of them lie on the host."""

    kept: frozenset[int]
    timeline: Timeline


def demand_schedule(problem: Problem, kept: Set[int]) -> Schedule:
    """Each op replayed once, at the first unpack that needs it, in forward order.

    Args:
        problem: the step.
        kept: positions of the tensors held from forward.

    Raises:
        ValueError: something needed is neither kept nor replayable.
    """
    done: set[int] = set()
    schedule: dict[int, tuple[int, ...]] = {}
    for step, tensor in _unpacks(problem):
        if tensor in kept:
            continue
        lacking = _closure(problem, tensor, kept, done)
        if lacking:
            schedule[step] = (*schedule.get(step, ()), *lacking)
    return schedule


def replayed_ops(problem: Problem, kept: Set[int]) -> frozenset[int]:
    """The ops (by position) that backward replays on demand when `kept` is held."""
    return frozenset(op for ops in demand_schedule(problem, kept).values() for op in ops)


def region_schedule(problem: Problem, kept: Set[int], region_of: Callable[[int], str | None]) -> Schedule:
    """Checkpointing by regions: the first unpack of a dropped tensor replays its region up to its last saved tensor.

    Args:
        problem: the step.
        kept: positions of the tensors held from forward.
        region_of: the region of an op (by position), or None outside all regions, where tensors are replayed on demand.
    """
    members: defaultdict[str, list[int]] = defaultdict(list)
    last_saving: dict[str, int] = {}
    for op in problem.ops:
        region = region_of(op.index)
        if region is not None:
            members[region].append(op.index)
            if any(problem.tensors[t].uses and t not in kept for t in op.writes):
                last_saving[region] = op.index  # checkpoint stops early: after the last tensor it must restore
    done: set[int] = set()
    schedule: dict[int, tuple[int, ...]] = {}
    for step, tensor in _unpacks(problem):
        if tensor in kept or problem.tensors[tensor].producer in done:
            continue
        lacking = set(_closure(problem, tensor, kept, done))
        for region in {region_of(op) for op in lacking} - {None}:
            lacking |= {
                op
                for op in members[region or ""]
                if op not in done
                and op <= last_saving.get(region or "", -1)
                and not _only_feeds_kept(problem, op, kept)
            }
        for member in tuple(lacking):  # whole regions may need more from outside
            for tensor_read in problem.ops[member].reads:
                lacking |= set(_closure(problem, tensor_read, kept, done))
        done |= lacking
        schedule[step] = (*schedule.get(step, ()), *sorted(lacking))
    return schedule


def _only_feeds_kept(problem: Problem, op: int, kept: Set[int]) -> bool:
    writes = problem.ops[op].writes
    return bool(writes) and all(tensor in kept for tensor in writes)


def _unpacks(problem: Problem) -> list[tuple[int, int]]:
    """(step, tensor) of every unpack, in order."""
    return sorted((unpack, t.index) for t in problem.tensors for unpack, _ in t.uses)


def _closure(problem: Problem, tensor: int, kept: Set[int], done: set[int]) -> tuple[int, ...]:
    """Ops still to replay before the tensor is there, in forward order; they are added to `done`."""
    lacking: set[int] = set()
    stack = [tensor]
    while stack:
        wanted = stack.pop()
        producer = problem.tensors[wanted].producer
        if wanted in kept or producer in done or producer in lacking:
            continue
        if producer is None:
            raise ValueError(f"tensor {wanted} is neither kept nor replayable")
        lacking.add(producer)
        stack.extend(problem.ops[producer].reads)
    done |= lacking
    return tuple(sorted(lacking))


def simulate(
    problem: Problem,
    kept: Set[int],
    schedule: Schedule | None = None,
    *,
    offloaded: Set[int] = frozenset(),
    staging: Staging | None = None,
) -> Timeline:
    """The memory timeline of the step when `kept` is held from forward and the rest replayed by the schedule.

    Kept and replayed tensors live until backward has released them and no later replay reads them.

    Args:
        problem: the step.
        kept: positions of the tensors held from forward; must contain `problem.must_keep`.
        schedule: when what is replayed; the runtime's own demand schedule if not given.
        offloaded: those of the kept that are held on the host.
        staging: see `planner.simulation.transfers.traffic`.
    """
    schedule = demand_schedule(problem, kept) if schedule is None else schedule
    copies = traffic(problem, kept, offloaded, schedule, staging=staging)
    return Lives(problem, kept, schedule, offloaded).timeline(copies)


def retained(problem: Problem, kept: Set[int]) -> Retained:
    """The plan that keeps these tensors on the device, and replays the rest on demand."""
    return Retained(kept=frozenset(kept), timeline=simulate(problem, kept))


def ideal_timeline(problem: Problem, kept: Set[int], offloaded: Set[int]) -> Timeline:
    """The timeline if copies took no time and no staging; see `planner.simulation.transfers.ideal_traffic`."""
    schedule = demand_schedule(problem, kept)
    copies = ideal_traffic(problem, kept, offloaded, schedule)
    return Lives(problem, kept, schedule, offloaded).timeline(copies)


class Lives:
    """When everything is alive in a step but the tensors that leave; arguments as `simulate`."""

    def __init__(self, problem: Problem, kept: Set[int], schedule: Schedule, offloaded: Set[int]) -> None:
        self._problem = problem
        self._points, self._position, self._replay_position = _axis(problem, schedule)
        self._end = {t.index: self._position[t.last_release] if t.uses else 0 for t in problem.tensors}
        for op, place in self._replay_position.items():
            for tensor in problem.ops[op].reads:
                self._end[tensor] = max(self._end[tensor], place + 1)
        self._kept, self._replayed, self._scratch = self._zeros(), self._zeros(), self._zeros()
        for index in set(kept) - offloaded:
            start = self._position[min(problem.tensors[index].free_step, len(problem.base_bytes))]
            self._hold(self._kept, index, start, self._end[index])
        for op, place in self._replay_position.items():
            self._scratch[place] += problem.ops[op].scratch_bytes
            self._scratch[place + 1] -= problem.ops[op].scratch_bytes
            for index in problem.ops[op].writes:
                last = place + 1 if index in kept else max(self._end[index], place + 1)
                self._hold(self._replayed, index, place, last)
        self._change = self._kept + self._replayed + self._scratch
        steps = np.fromiter((point.step for point in self._points), dtype=np.int64, count=len(self._points))
        self._base = np.asarray(problem.base_bytes, dtype=np.int64)[steps]

    def _hold(self, change: NDArray[np.int64], index: int, start: int, stop: int) -> None:
        if stop > start:
            change[start] += self._problem.tensors[index].size_bytes
            change[stop] -= self._problem.tensors[index].size_bytes

    def timeline(self, copies: Traffic) -> Timeline:
        """The timeline with the copies of the tensors that leave."""
        total = self._over_time(self._change + self._moved(copies)) + self._base
        highest = int(np.argmax(total))
        peak_bytes = int(total[highest])
        optimizer_bytes = self._problem.optimizer_peak_bytes
        return Timeline(
            points=self._points,
            live_bytes=tuple(total.tolist()),
            peak_bytes=max(peak_bytes, optimizer_bytes),
            peak=None if optimizer_bytes > peak_bytes else self._points[highest],
            recompute_ns=sum(self._problem.ops[op].cost_ns for op in self._replay_position),
            replays=len(self._replay_position),
            traffic=copies,
        )

    def parts(self, copies: Traffic) -> Parts:
        """What the timeline with these copies has beside the memory that no plan changes."""
        return Parts(
            kept_bytes=tuple(self._over_time(self._kept).tolist()),
            replayed_bytes=tuple(self._over_time(self._replayed).tolist()),
            scratch_bytes=tuple(self._over_time(self._scratch).tolist()),
            moved_bytes=tuple(self._over_time(self._moved(copies)).tolist()),
        )

    def _zeros(self) -> NDArray[np.int64]:
        return np.zeros(len(self._points) + 1, dtype=np.int64)

    def _over_time(self, change: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.cumsum(change)[: len(self._points)]

    def _moved(self, copies: Traffic) -> NDArray[np.int64]:
        change = self._zeros()
        for copy in copies.copies:
            free_step = self._problem.tensors[copy.tensor].free_step
            if copy.gone_step > free_step:
                self._hold(change, copy.tensor, self._position[free_step], self._position[copy.gone_step])
            if copy.back_replay is None:
                back = self._position[copy.back_step + 1] - 1
            else:
                back = self._replay_position[copy.back_replay]
            self._hold(change, copy.tensor, back, self._end[copy.tensor])
        return change


def _axis(problem: Problem, schedule: Schedule) -> tuple[tuple[Point, ...], list[int], dict[int, int]]:
    """All moments in order, the place of each step among them (one past the end included), and of each replay."""
    points: list[Point] = []
    position: list[int] = []
    replay_position: dict[int, int] = {}
    for step in range(len(problem.base_bytes)):
        # A tensor released at this step is gone before its replays begin.
        position.append(len(points))
        for op in schedule.get(step, ()):
            replay_position[op] = len(points)
            points.append(Point(step=step, replay=op))
        points.append(Point(step=step))
    position.append(len(points))
    return tuple(points), position, replay_position
