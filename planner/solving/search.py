"""The search: a relaxed model, the exact simulation, and the moments it finds over budget, until they agree."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

from ortools.sat.python import cp_model

from planner.problem import Problem, without_link
from planner.simulation.liveness import Point, Retained, Timeline, ideal_timeline, replayed_ops, retained
from planner.solving.deadline import OutOfTime
from planner.solving.decomposition import ChainSolver, Decomposed
from planner.solving.interruptible import SolverInterrupted, run
from planner.solving.model import RetentionModel, Windows, replay_windows
from planner.solving.staging import Stagings, with_best_staging

_SEED = 20_260_101
# Moments added per round: enough that a repeated structure is covered in few rounds, few enough that the model stays
# small.
_MOMENTS_PER_ROUND = 16
# Solving the full linear relaxation and branching on it proves the bound: the relaxation of this model is tight (32
# Llama blocks: within 0.04% after 4 s, where the default search had none after 20 s). The default one finds plans.
_SUBSOLVERS = ("max_lp", "default_lp")
# One worker that takes turns between the strategies: the answer does not depend on the machine's cores or load, unless
# the time limit ends it.
_WORKERS = 1
# Copies make flat models hard. Where tensors may leave and there are more choices than this, what decomposition leaves
# open is not tried flat, and plans are not excluded one by one: it only takes time.
_FEW_CHOICES = 30
# Where tensors may leave, plans without copies are looked for first, and may take these parts of the time.
_WITHOUT_COPIES_IN_BLOCKS = 0.4
_WITHOUT_COPIES_FLAT = 0.7
# How often a plan for less than the budget is looked for when what copies hold on their way is over it.
_CORRECTIONS = 8
# Each time it is lower by this part of what is over the budget if the device waits as little as it can.
_ROOM_PARTS = 2
# How many plans that cost more than the model thinks are excluded one by one.
_EXCLUSIONS = 50


class Status(StrEnum):
    """What is known about the answer."""

    OPTIMAL = "optimal"  # no plan is cheaper by more than the tolerance asked for
    FEASIBLE = "feasible"  # fits the budget; the gap says how far from optimal it can be
    INFEASIBLE = "infeasible"  # proven: no plan fits
    UNKNOWN = "unknown"  # neither found nor excluded within the time limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much the solver may spend, and when it may stop: `gap` is the relative distance to the bound."""

    time_s: float = 60.0
    gap: float = 5e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The best plan found and what is proven about it. `kept` and `timeline` are None without a plan."""

    status: Status
    kept: frozenset[int] | None
    timeline: Timeline | None
    bound_ns: int  # no plan within the budget adds less
    gap: float  # (added − bound) / added
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LowestPeak:
    """The smallest peak found, the plan that reaches it, and a proven bound: no plan peaks lower."""

    kept: frozenset[int]
    timeline: Timeline
    bound_bytes: int


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a search.

    Args:
        solution: what was found and proven until then.
    """

    def __init__(self, solution: Solution) -> None:
        super().__init__()
        self.solution = solution


@dataclass(slots=True)
class _Incumbent:
    """The best plan so far by some measure, what is proven of all plans, and the moments the model must know.

    Attributes:
        measure: the best plan has the smallest.
        bound: no plan has less of what the measure counts first.
        is_infeasible: no plan fits the budget.
    """

    measure: Callable[[Timeline], tuple[int, int]]
    kept: frozenset[int] | None = None
    timeline: Timeline | None = None
    bound: int = 0
    is_infeasible: bool = False
    moments: dict[Point, None] = field(default_factory=dict)

    def offer(self, kept: frozenset[int], timeline: Timeline) -> None:
        if self.timeline is None or self.measure(timeline) < self.measure(self.timeline):
            self.kept, self.timeline = kept, timeline


def solve(
    problem: Problem,
    *,
    budget_bytes: int,
    limits: Limits,
    known: Iterable[Retained] = (),
    chain: ChainSolver | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Solution:
    """The cheapest retention that fits the budget at every moment of the step.

    A problem that is a chain of cells is decomposed first. What that leaves open, and every other problem, is solved
    flat: as one model with a variable for each tensor and op.

    Args:
        problem: the step.
        budget_bytes: limit on the bytes alive at any moment.
        limits: time and tolerance.
        known: plans to start from, such as those of baselines.
        chain: of the same problem, if it is one; see `planner.solving.decomposition.chain_solver`.
        report: called with a line of progress.

    Raises:
        SearchInterrupted: Ctrl-C was pressed; it has the solution so far.
    """
    started = time.monotonic()
    best = _Incumbent(measure=lambda timeline: (timeline.added_ns, timeline.peak_bytes))

    def conclusion() -> Solution:
        return _conclude(problem, best, limits, time.monotonic() - started)

    try:
        _search(problem, best, budget_bytes, limits, started + limits.time_s, known, chain, report)
        return conclusion()
    except KeyboardInterrupt as interrupt:
        raise SearchInterrupted(conclusion()) from interrupt


def _search(
    problem: Problem,
    best: _Incumbent,
    budget_bytes: int,
    limits: Limits,
    deadline: float,
    known: Iterable[Retained],
    chain: ChainSolver | None,
    report: Callable[[str], None],
) -> None:
    """Better the plan and the bound until they meet or time is over."""
    report = _unrepeated(report)
    best.is_infeasible = _fixed_peak(problem) > budget_bytes
    if best.is_infeasible:
        return
    for plan in (_everything(problem), *known):
        if plan.timeline.peak_bytes <= budget_bytes:
            best.offer(plan.kept, plan.timeline)
    if chain is not None and not _is_proven(best, limits):
        without_copies: Iterator[Decomposed] = iter(())
        if problem.may_offload:  # first a plan without copies: it is a plan of this problem too, and comes fast
            soon = _part_of_time(_WITHOUT_COPIES_IN_BLOCKS, deadline)
            without_copies = chain.without_copies.improve(budget_bytes, gap=limits.gap, deadline=soon)
            _offer(best, islice(without_copies, 1), report)
        _decompose(best, budget_bytes, limits, deadline, chain, report)
        if best.timeline is not None and not best.timeline.traffic.offloaded:  # then what time is left is for these
            _offer(best, without_copies, report)
        if problem.may_offload and best.timeline is not None and len(problem.choices) > _FEW_CHOICES:
            return
    # Every moment costs the solver: it starts from those that keeping everything breaks, and learns of others.
    _add_violations(best.moments, _everything(problem).timeline, budget_bytes)
    windows = replay_windows(problem)
    if not problem.may_offload:
        with suppress(OutOfTime):
            _Flat(problem, windows, best, best, limits, deadline, budget_bytes, report).prove()
        return
    # Without copies first: what is found is a plan of this problem too, and the model with copies may not find any.
    here = without_link(problem)
    first = _Incumbent(measure=best.measure, kept=best.kept, timeline=best.timeline, moments=dict(best.moments))
    with suppress(OutOfTime):
        soon = _part_of_time(_WITHOUT_COPIES_FLAT, deadline)
        _Flat(here, windows, first, best, limits, soon, budget_bytes, report).prove()
    if first.kept is not None and first.timeline is not None:
        best.offer(first.kept, first.timeline)
    best.moments.update(first.moments)
    with suppress(OutOfTime):
        flat = _Flat(problem, windows, best, best, limits, deadline, budget_bytes, report)
        flat.prove()
        flat.make_room()
        if len(problem.choices) <= _FEW_CHOICES:
            flat.exclude()


def _offer(best: _Incumbent, plans: Iterable[Decomposed], report: Callable[[str], None]) -> None:
    for found in plans:
        if found.kept is not None and found.timeline is not None:
            best.offer(found.kept, found.timeline)
            report(_progress(best.timeline, best.bound))


def _part_of_time(part: float, deadline: float) -> float:
    """When that part of the time left is over."""
    now = time.monotonic()
    return now + part * (deadline - now)


def _decompose(
    best: _Incumbent,
    budget_bytes: int,
    limits: Limits,
    deadline: float,
    chain: ChainSolver,
    report: Callable[[str], None],
) -> None:
    """What the chain's solver finds and proves."""
    for found in chain.improve(budget_bytes, gap=limits.gap, deadline=deadline):
        best.bound, best.is_infeasible = found.bound_ns, found.is_infeasible
        if found.kept is not None and found.timeline is not None:
            best.offer(found.kept, found.timeline)
        report(_progress(best.timeline, best.bound))
    if best.is_infeasible and best.timeline is not None:
        raise AssertionError("the bound excludes every plan, but one that fits is known")


@dataclass(slots=True)
class _Flat:
    """The search with one model of the whole problem, its limits, and what it betters."""

    problem: Problem
    windows: Windows
    best: _Incumbent
    whole: _Incumbent  # of all plans: what is proven of those without copies is not proven of others
    limits: Limits
    deadline: float
    budget_bytes: int
    report: Callable[[str], None]
    is_strict: bool = False
    excluded: list[Retained] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether there is something to do."""
        return not self.best.is_infeasible and not _is_proven(self.best, self.limits)

    def prove(self) -> None:
        """Solve with ever more moments until the model's plan fits: with copies as it takes them, that is exact."""
        while self.is_open:
            tried = self._solve(self.budget_bytes, is_bound=True)
            if tried is None or not self._learn(tried, self.budget_bytes):
                break

    def make_room(self) -> None:
        """Solve for less than the budget until what copies hold on their way fits too."""
        limit_bytes = self.budget_bytes
        for _ in range(_CORRECTIONS):
            if not self.is_open:
                return
            tried = self._solve(limit_bytes, is_bound=False)
            if tried is None:
                return
            if not self._learn(tried, limit_bytes):
                stagings = Stagings(self.problem, tried.kept, tried.timeline.traffic.offloaded)
                waits_least = stagings.cheapest(self.budget_bytes, 0.0)
                if waits_least.peak_bytes <= self.budget_bytes:
                    return
                limit_bytes -= (waits_least.peak_bytes - self.budget_bytes) // _ROOM_PARTS

    def exclude(self) -> None:
        """Exclude, one after the other, the plans that cost more than the model thinks, or do not fit."""
        for _ in range(_EXCLUSIONS):
            if not self.is_open:
                return
            tried = self._solve(self.budget_bytes, is_bound=True)
            if tried is None:
                return
            if not self._learn(tried, self.budget_bytes):
                self.excluded.append(tried)

    def _solve(self, limit_bytes: int, *, is_bound: bool) -> Retained | None:
        """The model's plan, offered if it fits; None if there is none. Where the limit is the budget, its bound holds.

        Raises:
            OutOfTime: the deadline passed.
            SolverInterrupted: Ctrl-C was pressed; what was found is taken.
        """
        model = RetentionModel(self.problem, self.windows, is_strict=self.is_strict, deadline=self.deadline)
        if self.problem.link is not None:
            model.forbid_idle()  # otherwise the same plan would have to be excluded again with each that it may hold
        for plan in self.excluded:
            model.forbid(plan.kept, plan.timeline.traffic.offloaded)
        model.cp.minimize(model.replay_ns + model.add_link())
        solver = _solver(self.limits)
        try:
            status = _run(model, solver, self.best, limit_bytes, self.deadline)
        except SolverInterrupted as interrupt:
            self._take(model, solver, interrupt.status, is_bound=is_bound)
            raise
        return self._take(model, solver, status, is_bound=is_bound)

    def _take(
        self, model: RetentionModel, solver: cp_model.CpSolver, status: int, *, is_bound: bool
    ) -> Retained | None:
        if status == cp_model.INFEASIBLE:
            if is_bound and self.best.timeline is None:
                self.best.is_infeasible = True
            elif is_bound:  # all plans but the excluded ones, of which the best is known
                assert self.best.timeline is not None
                self.best.bound = self.best.timeline.added_ns
            return None
        if is_bound:
            # Excluded plans cost what they cost: none of those that fit is better than the best.
            self.best.bound = max(self.best.bound, round(solver.best_objective_bound))
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        kept = model.kept(solver)
        timeline = with_best_staging(self.problem, kept, model.offloaded(solver), self.budget_bytes)
        if timeline.peak_bytes <= self.budget_bytes:
            self.best.offer(kept, timeline)
        self.report(f"{len(self.best.moments)} moments watched: {_progress(self.best.timeline, self.whole.bound)}")
        return Retained(kept=kept, timeline=timeline)

    def _learn(self, tried: Retained, limit_bytes: int) -> bool:
        """Learn the moments at which a plan is over the limit whatever the copies take; say whether it was."""
        ideal = ideal_timeline(self.problem, tried.kept, tried.timeline.traffic.offloaded)
        if ideal.peak_bytes <= limit_bytes:
            return False
        if not _add_violations(self.best.moments, ideal, limit_bytes):
            if self.is_strict:
                if self.problem.link is not None:
                    return False
                raise AssertionError("the strict model allows a moment over budget that it knows")
            self.is_strict = True
        return True


def lowest_peak(
    problem: Problem,
    *,
    limits: Limits,
    known: Iterable[Retained] = (),
    chain: ChainSolver | None = None,
    enough_bytes: int = 0,
) -> LowestPeak:
    """The plan with the smallest peak, whatever it replays, and a bound below which no plan can get.

    Args:
        problem: the step.
        limits: time; the tolerance is not used.
        known: plans to start from.
        chain: of the same problem, if it is one.
        enough_bytes: a plan that peaks at no more will do.
    """
    deadline = time.monotonic() + limits.time_s
    best = _Incumbent(measure=lambda timeline: (timeline.peak_bytes, timeline.added_ns))
    for plan in (_everything(problem), *known):
        best.offer(plan.kept, plan.timeline)
    assert best.timeline is not None
    assert best.kept is not None
    bound_bytes = _fixed_peak(problem)
    if chain is not None:
        found, bound_bytes = chain.lowest_peak(
            best.timeline.peak_bytes, bound_bytes, deadline=deadline, enough_bytes=enough_bytes
        )
        if found is not None and found.kept is not None and found.timeline is not None:
            best.offer(found.kept, found.timeline)
    for plan in (_everything(problem), *known):
        _add_violations(best.moments, plan.timeline, bound_bytes)
    windows = replay_windows(problem)
    with suppress(OutOfTime):
        while max(bound_bytes, enough_bytes) < best.timeline.peak_bytes:
            model = RetentionModel(problem, windows, is_strict=True, deadline=deadline)
            peak_bytes = model.largest_peak()
            model.add_link()
            model.cp.minimize(peak_bytes)
            solver = _solver(limits)
            if _run(model, solver, best, peak_bytes, deadline) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                break
            bound_bytes = max(bound_bytes, round(solver.best_objective_bound))
            kept, offloaded = model.kept(solver), model.offloaded(solver)
            best.offer(kept, with_best_staging(problem, kept, offloaded, bound_bytes))
            ideal = ideal_timeline(problem, kept, offloaded)
            reached_bytes = solver.value(peak_bytes)  # exact; the objective value is a float
            is_new = _add_violations(best.moments, ideal, reached_bytes)
            if not is_new and not offloaded and ideal.peak_bytes > reached_bytes:
                raise AssertionError("the strict model gets less at a moment that it knows than the simulation does")
            if not is_new:
                break
    return LowestPeak(kept=best.kept, timeline=best.timeline, bound_bytes=min(bound_bytes, best.timeline.peak_bytes))


def _progress(best: Timeline | None, bound_ns: int) -> str:
    """The best plan so far and what is proven of all; `planner.service.progress` reads it."""
    bound = f"none can add less than {bound_ns / 1e6:.2f} ms"
    if best is None:
        return f"no plan yet, {bound}"
    waits = f", {best.stall_ns / 1e6:.2f} ms of it waiting for the host link" if best.traffic.offloaded else ""
    return f"best plan adds {best.added_ns / 1e6:.2f} ms{waits}, {bound}, peak {best.peak_bytes / 1e9:.3f} GB"


def _unrepeated(report: Callable[[str], None]) -> Callable[[str], None]:
    """Reports no line twice in a row."""
    said = ""

    def once(line: str) -> None:
        nonlocal said
        if line != said:
            said = line
            report(line)

    return once


def saved(problem: Problem) -> frozenset[int]:
    """What autograd keeps without a plan."""
    return frozenset(tensor.index for tensor in problem.tensors if tensor.uses)


def _everything(problem: Problem) -> Retained:
    return retained(problem, saved(problem))


def _fixed_peak(problem: Problem) -> int:
    """Bytes that every plan reaches."""
    return max(*problem.base_bytes, problem.optimizer_peak_bytes)


def _run(model: RetentionModel, solver: cp_model.CpSolver, best: _Incumbent, limit_bytes: Any, deadline: float) -> int:
    """Solve with the known moments. No hint is given: with one, the proof took 2 to 10 times as long (Llama-3-8B)."""
    for moment in best.moments:
        model.add_moment(moment, limit_bytes)
    solver.parameters.max_time_in_seconds = max(0.0, deadline - time.monotonic())
    return run(solver, model.cp)


def _solver(limits: Limits) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = _WORKERS
    solver.parameters.interleave_search = True
    solver.parameters.random_seed = _SEED
    solver.parameters.catch_sigint_signal = False  # it would take Ctrl-C for "that is enough"
    solver.parameters.relative_gap_limit = limits.gap
    solver.parameters.subsolvers.extend(_SUBSOLVERS)
    return solver


def _add_violations(moments: dict[Point, None], timeline: Timeline, limit_bytes: int) -> bool:
    """Add the highest moment of each stretch over the limit, the highest first; say whether any was new."""
    peaks: list[tuple[int, Point]] = []
    is_over = False
    for point, size_bytes in zip(timeline.points, timeline.live_bytes, strict=True):
        if size_bytes <= limit_bytes:
            is_over = False
        elif not is_over:
            peaks.append((size_bytes, point))
            is_over = True
        elif size_bytes > peaks[-1][0]:
            peaks[-1] = (size_bytes, point)
    before = len(moments)
    for _, point in sorted(peaks, key=lambda peak: -peak[0])[:_MOMENTS_PER_ROUND]:
        moments[point] = None
    return len(moments) > before


def _is_proven(best: _Incumbent, limits: Limits) -> bool:
    return best.timeline is not None and best.timeline.added_ns * (1 - limits.gap) <= best.bound


def without_idle_anchors(problem: Problem, kept: frozenset[int]) -> frozenset[int]:
    """The kept tensors less those that autograd does not save and no replay reads: they would never be touched."""
    read = {tensor for op in replayed_ops(problem, kept) for tensor in problem.ops[op].reads}
    return frozenset(tensor for tensor in kept if problem.tensors[tensor].uses or tensor in read)


def _conclude(problem: Problem, best: _Incumbent, limits: Limits, wall_s: float) -> Solution:
    if best.timeline is None:
        status = Status.INFEASIBLE if best.is_infeasible else Status.UNKNOWN
        return Solution(status=status, kept=None, timeline=None, bound_ns=best.bound, gap=1.0, wall_s=wall_s)
    assert best.kept is not None
    cost_ns = best.timeline.added_ns
    bound_ns = min(best.bound, cost_ns)
    gap = (cost_ns - bound_ns) / cost_ns if cost_ns else 0.0
    return Solution(
        status=Status.OPTIMAL if gap <= limits.gap else Status.FEASIBLE,
        kept=without_idle_anchors(problem, best.kept),
        timeline=best.timeline,
        bound_ns=bound_ns,
        gap=gap,
        wall_s=wall_s,
    )
