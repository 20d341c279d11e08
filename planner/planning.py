"""From an op graph and a budget to a plan: the one path that the command line and Python share."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.blocks import block_levels
from planner.device import DeviceProfile, load_device
from planner.errors import InfeasibleError, PlanMismatchError, SolveInterrupted
from planner.graph import OpGraph, StorageKind, modules, saved_tensors, step_info, storages, values
from planner.plan import Anchor, BaselineRow, Decision, Plan, PlanModel, Prediction, Proof, Retention
from planner.problem import Problem, build_problem, moment_in_words
from planner.simulation.liveness import Point, Timeline, retained
from planner.simulation.rehearsal import Rehearsal, Rehearse
from planner.solving.baselines import Baseline, baselines
from planner.solving.decomposition import ChainSolver, chain_solver
from planner.solving.search import Limits, LowestPeak, SearchInterrupted, Solution, Status, lowest_peak, solve
from planner.units import as_bytes, format_bytes

_NS_PER_S = 1_000_000_000
# What finding the smallest reachable peak may take, once the budget has proven too small.
_LOWEST_PEAK_TIME_S = 15.0
# How often to solve when a rehearsal peaks over the budget.
_MAX_ROUNDS = 3

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A plan and what it took to find it.

    Attributes:
        problem: what was decided; the timeline speaks of its tensors and ops.
        timeline: of the plan, as the simulation has it.
        kept: positions of the problem's tensors that the plan holds from forward, here or on the host.
        rehearsal: of the plan, which then predicts this peak; None if there was none.
        solve_s, rehearse_s: what the solver and the rehearsals took, all rounds together.
    """

    plan: Plan
    problem: Problem
    timeline: Timeline
    rehearsal: Rehearsal | None
    solve_s: float
    rehearse_s: float
    kept: frozenset[int]


def solve_graph(
    graph: OpGraph,
    *,
    budget: str | int,
    host_budget: str | int | None = None,
    device: str | Mapping[str, Any] | DeviceProfile = "h100-80gb",
    limits: Limits = Limits(),  # noqa: B008  # frozen
    rehearse: Rehearse | None = None,
    report: Progress = lambda _: None,
) -> Outcome:
    """The cheapest plan for a traced step that fits the budget.

    A rehearsal has the last word on the peak: if it is over the budget, the step is solved again for a budget lower by
    what the rehearsal found on top, at most three times in all.

    Args:
        graph: from `planner.trace`.
        budget: bytes, or text with a unit such as "40GB" (10⁹) or "40GiB" (2³⁰).
        host_budget: bytes of host memory that offloaded tensors may take, in the same way; 0 for no offloading, None
            for half of the memory that the device's profile has for the host.
        device: a profile, its name, or a mapping that describes one.
        limits: time and tolerance; all but rehearsals counts, and a later round has what the ones before it left.
        rehearse: runs a plan on the step that the graph was traced from, as
            `functools.partial(planner.rehearse, step)` does; without it the peak is that of the simulation alone.
        report: called with lines of progress.

    Raises:
        InfeasibleError: no plan fits, or none was found in time or in three rounds; says how low the peak can get.
        UnitError: a budget cannot be read, or is no whole number of bytes from 1 on (the host's: from 0 on).
        DeviceError: the device is unknown.
        SolveInterrupted: Ctrl-C was pressed; it has the best plan so far. It is a KeyboardInterrupt.
    """
    started = time.monotonic()
    budget_bytes = as_bytes(budget)
    profile = device if isinstance(device, DeviceProfile) else load_device(device)
    problem = build_problem(graph, profile, host_budget_bytes=profile.host_budget(host_budget))
    known = baselines(problem, graph)
    rounds: list[_Round] = []
    solver_budget_bytes = budget_bytes
    solution: Solution | None = None  # of this round

    def planned(solution: Solution) -> Plan:
        return make_plan(graph, problem, solution, known, budget_bytes=budget_bytes, device=profile.name)

    def rehearsed_s() -> float:
        return sum(past.rehearsal.wall_s for past in rounds)

    try:
        chain = chain_solver(problem, block_levels(modules(graph)))
        while len(rounds) < _MAX_ROUNDS:
            left_s = limits.time_s - (time.monotonic() - started - rehearsed_s())
            left = replace(limits, time_s=max(0.0, left_s))
            try:
                solution = _solved(graph, problem, known, chain, solver_budget_bytes, left, report)
            except InfeasibleError as error:
                if not rounds:
                    raise
                raise _over_budget(graph, rounds, budget_bytes) from error
            solution = _bounded(solution, rounds, limits)
            assert solution.kept is not None
            assert solution.timeline is not None
            plan = planned(solution)
            solve_s = time.monotonic() - started - rehearsed_s()
            rehearsal = None if rehearse is None else rehearse(plan)
            if rehearsal is not None:
                report(_rehearsed_line(plan, rehearsal))
            if rehearsal is None or rehearsal.peak_bytes <= budget_bytes:
                return Outcome(
                    plan=_with_peak_of(plan, rehearsal),
                    problem=problem,
                    timeline=solution.timeline,
                    rehearsal=rehearsal,
                    solve_s=solve_s,
                    rehearse_s=(rehearsal.wall_s if rehearsal else 0.0) + rehearsed_s(),
                    kept=solution.kept,
                )
            rounds.append(_Round(solution=solution, rehearsal=rehearsal))
            # From the peak, not from the budget that was solved for: the plan may have stayed below it by more than
            # this, and would be found again.
            solver_budget_bytes = solution.timeline.peak_bytes - (rehearsal.peak_bytes - budget_bytes)
            solution = None
    except KeyboardInterrupt as interrupt:
        if isinstance(interrupt, SearchInterrupted):
            solution = interrupt.solution
        if (solution is None or solution.kept is None) and not rounds:  # it may not have looked at these yet
            kept = [retained(problem, baseline.kept) for baseline in known]
            solution = solve(problem, budget_bytes=budget_bytes, limits=replace(limits, time_s=0.0), known=kept)
        best = None if solution is None or solution.kept is None else planned(_bounded(solution, rounds, limits))
        raise SolveInterrupted(best, solve_s=time.monotonic() - started - rehearsed_s()) from interrupt
    raise _over_budget(graph, rounds, budget_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """A plan that was over budget in its rehearsal."""

    solution: Solution
    rehearsal: Rehearsal


def _solved(
    graph: OpGraph,
    problem: Problem,
    known: tuple[Baseline, ...],
    chain: ChainSolver | None,
    budget_bytes: int,
    limits: Limits,
    report: Progress,
) -> Solution:
    """A solution with a plan.

    Raises:
        InfeasibleError: there is none, or none was found in time.
    """
    report(f"looking for the cheapest plan within {format_bytes(budget_bytes)}; Ctrl-C shows the best one so far")
    solution = solve(
        problem,
        budget_bytes=budget_bytes,
        limits=limits,
        known=[retained(problem, baseline.kept) for baseline in known],
        chain=chain,
        report=report,
    )
    if solution.timeline is not None:
        return solution
    report("no plan found yet; looking for the smallest peak")
    lowest = lowest_peak(
        problem,
        limits=Limits(time_s=_LOWEST_PEAK_TIME_S),
        known=[retained(problem, baseline.kept) for baseline in known],
        chain=chain,
        enough_bytes=budget_bytes,
    )
    if lowest.timeline.peak_bytes > budget_bytes:
        raise _infeasible(graph, problem, lowest, solution, budget_bytes)
    return _lowest_as_solution(lowest, solution)


def _bounded(solution: Solution, rounds: Sequence[_Round], limits: Limits) -> Solution:
    """The solution of a later round with what the first one proved: that bound is for the budget the user gave."""
    if not rounds:
        return solution
    assert solution.timeline is not None
    bound_ns, cost_ns = rounds[0].solution.bound_ns, solution.timeline.added_ns
    gap = (cost_ns - bound_ns) / cost_ns if cost_ns else 0.0
    return replace(
        solution, bound_ns=bound_ns, gap=gap, status=Status.OPTIMAL if gap <= limits.gap else Status.FEASIBLE
    )


def _rehearsed_line(plan: Plan, rehearsal: Rehearsal) -> str:
    off_bytes = rehearsal.peak_bytes - plan.predicted.peak_bytes
    apart = f", {off_bytes:+,} bytes from the simulation ({plan.predicted.peak_at})" if off_bytes else ""
    fallbacks = f", {rehearsal.fallbacks} forwards fell back to keeping everything" if rehearsal.fallbacks else ""
    return (
        f"rehearsed: peak {rehearsal.peak_bytes / 1e9:.3f} GB ({rehearsal.peak_at}) in {rehearsal.wall_s:.1f} s"
        f"{apart}{fallbacks}"
    )


def _with_peak_of(plan: Plan, rehearsal: Rehearsal | None) -> Plan:
    """The plan, predicting what its rehearsal found, if there was one."""
    if rehearsal is None or rehearsal.peak_bytes == plan.predicted.peak_bytes:
        return plan  # whose place is the more exact: it names the module of a replayed op
    predicted = replace(plan.predicted, peak_bytes=rehearsal.peak_bytes, peak_at=rehearsal.peak_at)
    return replace(plan, predicted=predicted)


def _over_budget(graph: OpGraph, rounds: list[_Round], budget_bytes: int) -> InfeasibleError:
    """That plans which should fit do not when the runtime carries them out."""
    best = min((past.rehearsal for past in rounds), key=lambda rehearsal: rehearsal.peak_bytes)
    first = rounds[0].solution.timeline
    assert first is not None
    static_bytes = step_info(graph).static.total_bytes
    how_often = "1 round" if len(rounds) == 1 else f"{len(rounds)} rounds"
    return InfeasibleError(
        f"no plan was found that stays within {format_bytes(budget_bytes)} when the runtime carries it out: in "
        f"{how_often} the lowest rehearsed peak is {format_bytes(best.peak_bytes)} ({best.peak_at}), where "
        f"the first was simulated at {format_bytes(first.peak_bytes)}; please report this with the model, or raise "
        "the budget",
        budget_bytes=budget_bytes,
        static_bytes=static_bytes,
        smallest_peak_bytes=best.peak_bytes,
        bound_bytes=static_bytes,
        where=best.peak_at,
        is_proven=False,
    )


def smallest_peak(
    graph: OpGraph,
    device: DeviceProfile,
    *,
    host_budget: int | None = None,
    enough_bytes: int = 0,
    time_s: float = _LOWEST_PEAK_TIME_S,
) -> LowestPeak:
    """The smallest peak that some plan reaches for a traced step, and a bound below it.

    Args:
        graph: of the step.
        device: it runs on.
        host_budget: see `solve_graph`.
        enough_bytes: a plan that peaks at no more will do.
        time_s: what finding it may take.
    """
    problem = build_problem(graph, device, host_budget_bytes=device.host_budget(host_budget))
    return lowest_peak(
        problem,
        limits=Limits(time_s=time_s),
        known=[retained(problem, baseline.kept) for baseline in baselines(problem, graph)],
        chain=chain_solver(problem, block_levels(modules(graph))),
        enough_bytes=enough_bytes,
    )


def _lowest_as_solution(lowest: LowestPeak, solution: Solution) -> Solution:
    """The plan with the smallest peak, for a search that ended before it found any other."""
    cost_ns = lowest.timeline.added_ns
    bound_ns = min(solution.bound_ns, cost_ns)
    return replace(
        solution,
        status=Status.FEASIBLE,
        kept=lowest.kept,
        timeline=lowest.timeline,
        bound_ns=bound_ns,
        gap=(cost_ns - bound_ns) / cost_ns if cost_ns else 0.0,
    )


def _infeasible(
    graph: OpGraph, problem: Problem, lowest: LowestPeak, solution: Solution, budget_bytes: int
) -> InfeasibleError:
    is_proven = solution.status is Status.INFEASIBLE or lowest.bound_bytes > budget_bytes
    # That the budget is impossible is itself a bound, often a better one.
    bound_bytes = max(lowest.bound_bytes, budget_bytes + 1 if is_proven else 0)
    where = describe_point(graph, problem, lowest.timeline.peak)
    verdict = "no plan fits" if is_proven else "no plan was found within the time limit"
    return InfeasibleError(
        f"{verdict}: the budget is {format_bytes(budget_bytes)}; static memory is "
        f"{format_bytes(step_info(graph).static.total_bytes)}, and the smallest peak found is "
        f"{format_bytes(lowest.timeline.peak_bytes)} ({where}); no plan can peak below "
        f"{format_bytes(bound_bytes)}",
        budget_bytes=budget_bytes,
        static_bytes=step_info(graph).static.total_bytes,
        smallest_peak_bytes=lowest.timeline.peak_bytes,
        bound_bytes=bound_bytes,
        where=where,
        is_proven=is_proven,
    )


def make_plan(
    graph: OpGraph,
    problem: Problem,
    solution: Solution,
    known: tuple[Baseline, ...],
    *,
    budget_bytes: int,
    device: str,
) -> Plan:
    """The solution in the words of a plan: decisions by module, ordinal and op instead of positions."""
    assert solution.kept is not None
    assert solution.timeline is not None
    info, timeline = step_info(graph), solution.timeline
    return Plan(
        model=PlanModel(
            name=info.model,
            fingerprint=fingerprint(graph),
            parameters=info.parameters,
            torch=info.torch_version,
            attention=info.attention,
            micro_batch=info.micro_batch,
        ),
        device=device,
        budget_bytes=budget_bytes,
        predicted=Prediction(
            peak_bytes=timeline.peak_bytes,
            peak_at=describe_point(graph, problem, timeline.peak),
            static_bytes=info.static.total_bytes,
            host_bytes=timeline.traffic.host_bytes,
            step_s=_seconds(problem.step_ns + timeline.added_ns),
            recompute_s=_seconds(timeline.recompute_ns),
            stall_s=_seconds(timeline.stall_ns),
        ),
        solver=Proof(status=str(solution.status), gap=round(solution.gap, 6), bound_s=_seconds(solution.bound_ns)),
        baselines=tuple(
            BaselineRow(
                name=baseline.name,
                fits=baseline.timeline.peak_bytes <= budget_bytes,
                peak_bytes=baseline.timeline.peak_bytes,
                step_s=_seconds(problem.step_ns + baseline.timeline.recompute_ns),
                recompute_s=_seconds(baseline.timeline.recompute_ns),
            )
            for baseline in known
        ),
        staging=timeline.traffic.staging if timeline.traffic.offloaded else None,
        decisions=_decisions(graph, problem, solution.kept, timeline.traffic.offloaded),
        anchors=_anchors(graph, problem, solution.kept),
    )


def fingerprint(graph: OpGraph) -> str:
    """A hash of the sequence of saved tensors: what a plan for this step must match, and nothing else."""
    rows = [(s.module_fqn, s.module_call, s.ordinal, s.op, list(s.shape), s.dtype) for s in saved_tensors(graph)]
    return "sha256:" + hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def check_plan(plan: Plan, graph: OpGraph, *, path: str) -> None:
    """Returns when the plan is for the graph's step, which the spec at `path` describes.

    Raises:
        PlanMismatchError: it is for another.
    """
    if fingerprint(graph) == plan.model.fingerprint:
        return
    planned, traced = plan.model.micro_batch, step_info(graph).micro_batch
    if planned is not None and planned != traced:
        raise PlanMismatchError(
            f"the plan was made for a micro-batch of {planned}, and {path} has {traced}; change the spec, or solve "
            "again"
        )
    raise PlanMismatchError(
        f"the plan was made for another step than {path} describes: the saved tensors differ "
        f"({plan.model.name}, torch {plan.model.torch}); solve again"
    )


def describe_point(graph: OpGraph, problem: Problem, point: Point | None) -> str:
    """Where in the step a moment is, for a person."""
    return "optimizer step" if point is None else moment_in_words(problem, graph, point.step, point.replay)


def _decisions(
    graph: OpGraph, problem: Problem, kept: frozenset[int], offloaded: frozenset[int]
) -> tuple[Decision, ...]:
    position = {tensor.value: tensor.index for tensor in problem.tensors}
    table = values(graph)
    return tuple(
        Decision(
            module_fqn=saved.module_fqn,
            module_call=saved.module_call,
            ordinal=saved.ordinal,
            op=saved.op,
            shape=saved.shape,
            dtype=saved.dtype,
            retention=_retention(position.get(saved.value), kept, offloaded),
        )
        for saved in saved_tensors(graph)
        if storages(graph)[table[saved.value].storage].kind is StorageKind.ACTIVATION
    )


def _retention(tensor: int | None, kept: frozenset[int], offloaded: frozenset[int]) -> Retention:
    if tensor is None:
        return Retention.SAVE  # what backward never asks for is not in the problem, and stays
    if tensor in offloaded:
        return Retention.OFFLOAD
    return Retention.SAVE if tensor in kept else Retention.RECOMPUTE


def _anchors(graph: OpGraph, problem: Problem, kept: frozenset[int]) -> tuple[Anchor, ...]:
    table = values(graph)
    found = []
    for tensor in problem.tensors:
        if tensor.index in kept and not tensor.uses:
            path, call, side, place = table[tensor.value].boundary.rsplit(":", 3)
            producer = table[tensor.value].producer
            found.append(
                Anchor(
                    module_fqn=path,
                    module_call=int(call),
                    side=side,
                    position=int(place),
                    op="" if producer is None else graph.nodes[producer]["op"].name,
                    size_bytes=tensor.size_bytes,
                )
            )
    return tuple(found)


def _seconds(time_ns: int) -> float:
    return time_ns / _NS_PER_S
