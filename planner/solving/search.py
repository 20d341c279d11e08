"""The search: a relaxed model, the exact simulation, and the moments it finds over budget, until they agree."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ortools.sat.python import cp_model

from planner.problem import Problem
from planner.simulation.liveness import Point, Timeline, replayed_ops, simulate
from planner.solving.deadline import OutOfTime
from planner.solving.decomposition import ChainSolver, Decomposed
from planner.solving.interruptible import SolverInterrupted, run
from planner.solving.model import RetentionModel, replay_windows

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
    bound_ns: int  # no plan within the budget replays for less
    gap: float  # (recompute − bound) / recompute
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
    known: Iterable[frozenset[int]] = (),
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
        known: sets of kept tensors to start from, such as those of baselines.
        chain: of the same problem, if it is one; see `planner.solving.decomposition.chain_solver`.
        report: called with a line of progress.

    Raises:
        SearchInterrupted: Ctrl-C was pressed; it has the solution so far.
    """
    started = time.monotonic()
    best = _Incumbent(measure=lambda timeline: (timeline.recompute_ns, timeline.peak_bytes))

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
    known: Iterable[frozenset[int]],
    chain: ChainSolver | None,
    report: Callable[[str], None],
) -> None:
    """Better the plan and the bound until they meet or time is over."""
    best.is_infeasible = _fixed_peak(problem) > budget_bytes
    if best.is_infeasible:
        return
    for kept in (saved(problem), *known):
        timeline = simulate(problem, kept)
        if timeline.peak_bytes <= budget_bytes:
            best.offer(kept, timeline)
    if chain is not None and not _is_proven(best, limits):
        _decompose(best, budget_bytes, limits, deadline, chain, report)
    # Every moment costs the solver: it starts from those that keeping everything breaks, and learns of others.
    _add_violations(best.moments, simulate(problem, saved(problem)), budget_bytes)
    windows = replay_windows(problem)
    is_strict = False
    with suppress(OutOfTime):
        while not best.is_infeasible and not _is_proven(best, limits):
            model = RetentionModel(problem, windows, is_strict=is_strict, deadline=deadline)
            model.cp.minimize(model.replay_ns)
            solver = _solver(limits)
            try:
                status = _run(model, solver, best, budget_bytes, deadline)
            except SolverInterrupted as interrupt:
                _take(problem, best, model, solver, interrupt.status, budget_bytes)
                raise
            tried = _take(problem, best, model, solver, status, budget_bytes)
            if tried is None:
                break
            report(f"{len(best.moments)} moments watched: {_progress(tried, best.bound)}")
            if tried.peak_bytes <= budget_bytes:
                break
            if not _add_violations(best.moments, tried, budget_bytes):
                if is_strict:
                    raise AssertionError("the strict model allows a moment over budget that it knows")
                is_strict = True


def _decompose(
    best: _Incumbent,
    budget_bytes: int,
    limits: Limits,
    deadline: float,
    chain: ChainSolver,
    report: Callable[[str], None],
) -> None:
    """What the chain's solver finds and proves."""
    found: Decomposed | None = None
    for found in chain.improve(budget_bytes, gap=limits.gap, deadline=deadline):
        best.bound, best.is_infeasible = found.bound_ns, found.is_infeasible
        if found.kept is not None and found.timeline is not None:
            best.offer(found.kept, found.timeline)
    if found is not None and found.timeline is not None:
        report(_progress(found.timeline, found.bound_ns))
    if best.is_infeasible and best.timeline is not None:
        raise AssertionError("the bound excludes every plan, but one that fits is known")


def _take(
    problem: Problem,
    best: _Incumbent,
    model: RetentionModel,
    solver: cp_model.CpSolver,
    status: int,
    budget_bytes: int,
) -> Timeline | None:
    """Learn what a search of the flat model came to; the timeline of its plan, which may be over budget, if any."""
    if status == cp_model.INFEASIBLE:
        best.is_infeasible = best.timeline is None
        return None
    best.bound = max(best.bound, round(solver.best_objective_bound))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    kept = model.kept(solver)
    timeline = simulate(problem, kept)
    if timeline.peak_bytes <= budget_bytes:
        best.offer(kept, timeline)
    return timeline


def lowest_peak(
    problem: Problem,
    *,
    limits: Limits,
    known: Iterable[frozenset[int]] = (),
    chain: ChainSolver | None = None,
    enough_bytes: int = 0,
) -> LowestPeak:
    """The plan with the smallest peak, whatever it replays, and a bound below which no plan can get.

    Args:
        problem: the step.
        limits: time; the tolerance is not used.
        known: sets of kept tensors to start from.
        chain: of the same problem, if it is one.
        enough_bytes: a plan that peaks at no more will do.
    """
    deadline = time.monotonic() + limits.time_s
    best = _Incumbent(measure=lambda timeline: (timeline.peak_bytes, timeline.recompute_ns))
    for kept in (saved(problem), *known):
        best.offer(kept, simulate(problem, kept))
    assert best.timeline is not None
    assert best.kept is not None
    bound_bytes = _fixed_peak(problem)
    if chain is not None:
        found, bound_bytes = chain.lowest_peak(
            best.timeline.peak_bytes, bound_bytes, deadline=deadline, enough_bytes=enough_bytes
        )
        if found is not None and found.kept is not None and found.timeline is not None:
            best.offer(found.kept, found.timeline)
    for kept in (saved(problem), *known):
        _add_violations(best.moments, simulate(problem, kept), bound_bytes)
    windows = replay_windows(problem)
    with suppress(OutOfTime):
        while max(bound_bytes, enough_bytes) < best.timeline.peak_bytes:
            model = RetentionModel(problem, windows, is_strict=True, deadline=deadline)
            peak_bytes = model.largest_peak()
            model.cp.minimize(peak_bytes)
            solver = _solver(limits)
            if _run(model, solver, best, peak_bytes, deadline) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                break
            bound_bytes = max(bound_bytes, round(solver.best_objective_bound))
            kept = model.kept(solver)
            timeline = simulate(problem, kept)
            best.offer(kept, timeline)
            reached_bytes = solver.value(peak_bytes)  # exact; the objective value is a float
            is_new = _add_violations(best.moments, timeline, reached_bytes)
            if not is_new and timeline.peak_bytes > reached_bytes:
                raise AssertionError("the strict model gets less at a moment that it knows than the simulation does")
            if not is_new:
                break
    return LowestPeak(kept=best.kept, timeline=best.timeline, bound_bytes=min(bound_bytes, best.timeline.peak_bytes))


def _progress(timeline: Timeline, bound_ns: int) -> str:
    return (
        f"replays {timeline.recompute_ns / 1e6:.2f} ms, at least {bound_ns / 1e6:.2f} ms needed, "
        f"peak {timeline.peak_bytes / 1e9:.3f} GB"
    )


def saved(problem: Problem) -> frozenset[int]:
    """What autograd keeps without a plan."""
    return frozenset(tensor.index for tensor in problem.tensors if tensor.uses)


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
    return best.timeline is not None and best.timeline.recompute_ns * (1 - limits.gap) <= best.bound


def without_idle_anchors(problem: Problem, kept: frozenset[int]) -> frozenset[int]:
    """The kept tensors less those that autograd does not save and no replay reads: they would never be touched."""
    read = {tensor for op in replayed_ops(problem, kept) for tensor in problem.ops[op].reads}
    return frozenset(tensor for tensor in kept if problem.tensors[tensor].uses or tensor in read)


def _conclude(problem: Problem, best: _Incumbent, limits: Limits, wall_s: float) -> Solution:
    if best.timeline is None:
        status = Status.INFEASIBLE if best.is_infeasible else Status.UNKNOWN
        return Solution(status=status, kept=None, timeline=None, bound_ns=best.bound, gap=1.0, wall_s=wall_s)
    assert best.kept is not None
    cost_ns = best.timeline.recompute_ns
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
