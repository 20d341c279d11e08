"""What every budget would cost: the cheapest plan at budgets from the smallest reachable peak to everything saved."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.blocks import block_levels
from planner.device import DeviceProfile, load_device
from planner.graph import OpGraph, modules, step_info
from planner.problem import Problem, build_problem
from planner.simulation.liveness import Retained, Timeline, retained
from planner.solving.baselines import baselines
from planner.solving.decomposition import chain_solver
from planner.solving.peers.records import Peer
from planner.solving.peers.rules import all_peers, fastest_within, limited_rules, told_budget
from planner.solving.search import Limits, Solution, Status, lowest_peak, saved, solve

_NS_PER_S = 1_000_000_000
POINTS = 8
# What one budget may take; a frontier asks for many.
POINT_LIMITS = Limits(time_s=20.0)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """The cheapest plan found for one budget.

    Attributes:
        budget_bytes: what the step may use.
        peak_bytes: what it does use.
        recompute_s: replay time.
        stall_s: time waiting for the host link.
        overhead: both together as a fraction of a step without them.
        bound_s: no plan within the budget adds less.
        gap: how far from that bound, as a fraction of what the plan adds.
        status: "optimal" within the gap asked for, or "feasible".
        solve_s: time it took to find.
    """

    budget_bytes: int
    peak_bytes: int
    recompute_s: float
    stall_s: float
    overhead: float
    bound_s: float
    gap: float
    status: str
    solve_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One plan by another rule, from the same cost model.

    Attributes:
        name: of the rule.
        setting: what it was told; empty for a rule without a setting.
        peak_bytes, recompute_s, stall_s, overhead: as of a point of the frontier.
        believed_peak_bytes: the peak by the rule's own account; None for a rule that has none.
    """

    name: str
    setting: str
    peak_bytes: int
    recompute_s: float
    stall_s: float
    overhead: float
    believed_peak_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalsAtBudget:
    """What peers do at one budget.

    Attributes:
        budget_bytes: the budget.
        fastest: of each rule the fastest plan whose simulated peak fits, over all its settings.
        told: of each rule with a limit, what it picks when it is told the budget; its simulated peak may not fit.
    """

    budget_bytes: int
    fastest: tuple[Rival, ...]
    told: tuple[Rival, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Budgets against what they cost, by rising budget.

    Attributes:
        model, device: their names.
        device_memory_bytes: what the device has.
        static_bytes: what no plan changes.
        step_s: the step without any recomputation.
        smallest_peak_bound_bytes: no plan peaks below this; the first budget is the smallest peak found.
        budgets_bytes: all budgets asked about; `points` has those that are done.
        points: the cheapest plan for each.
        baselines: what people do by hand.
        peers: what other tools' rules do at each budget; empty unless asked for.
        notes: assumptions made while tracing.
    """

    model: str
    device: str
    device_memory_bytes: int
    static_bytes: int
    step_s: float
    smallest_peak_bound_bytes: int
    budgets_bytes: tuple[int, ...]
    points: tuple[FrontierPoint, ...]
    baselines: tuple[Rival, ...]
    peers: tuple[RivalsAtBudget, ...]
    notes: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every budget is done."""
        return len(self.points) == len(self.budgets_bytes)


def frontier(
    graph: OpGraph,
    *,
    points: int = POINTS,
    host_budget: str | int | None = None,
    device: str | Mapping[str, Any] | DeviceProfile = "h100-80gb",
    limits: Limits = POINT_LIMITS,
    with_peers: bool = False,
    report: Progress = lambda _: None,
) -> Frontier:
    """What each of several budgets would cost.

    Args:
        graph: from `planner.trace`.
        points: how many budgets, the smallest reachable peak and that of saving everything included; fewer where these
            are too close.
        host_budget: see `planner.solve`.
        device: a profile, its name, or a mapping that describes one.
        limits: time and tolerance for each budget.
        with_peers: whether to run other tools' rules as well.
        report: called with lines of progress.

    Raises:
        ValueError: fewer than two points are asked for.
        DeviceError: the device is unknown.
    """
    found = list(
        growing_frontier(
            graph,
            points=points,
            host_budget=host_budget,
            device=device,
            limits=limits,
            with_peers=with_peers,
            report=report,
        )
    )
    return found[-1]


def growing_frontier(
    graph: OpGraph,
    *,
    points: int = POINTS,
    host_budget: str | int | None = None,
    device: str | Mapping[str, Any] | DeviceProfile = "h100-80gb",
    limits: Limits = POINT_LIMITS,
    with_peers: bool = False,
    report: Progress = lambda _: None,
) -> Iterator[Frontier]:
    """The frontier after each budget, for who wants to show or keep what is there so far; arguments as `frontier`.

    A plan that fits a budget fits every larger one, so each search starts from the plan before: more budget never costs
    more. What is proven for a budget holds for every smaller one, so in the last frontier earlier gaps may be smaller.
    """
    if points < 2:
        raise ValueError(f"a frontier has at least 2 points, not {points}")
    profile = device if isinstance(device, DeviceProfile) else load_device(device)
    problem = build_problem(graph, profile, host_budget_bytes=profile.host_budget(host_budget))
    by_hand = baselines(problem, graph)
    known = [retained(problem, baseline.kept) for baseline in by_hand]
    report("looking for the smallest peak")
    chain = chain_solver(problem, block_levels(modules(graph)))
    lowest = lowest_peak(problem, limits=limits, known=known, chain=chain)
    top_bytes = retained(problem, saved(problem)).timeline.peak_bytes
    found = Frontier(
        model=step_info(graph).model,
        device=profile.name,
        device_memory_bytes=profile.memory_bytes,
        static_bytes=step_info(graph).static.total_bytes,
        step_s=problem.step_ns / _NS_PER_S,
        smallest_peak_bound_bytes=lowest.bound_bytes,
        budgets_bytes=spread(lowest.timeline.peak_bytes, top_bytes, points),
        points=(),
        baselines=tuple(_rival(problem, baseline.name, baseline.timeline) for baseline in by_hand),
        peers=(),
        notes=step_info(graph).notes,
    )
    yield found
    cheapest = Retained(kept=lowest.kept, timeline=lowest.timeline)
    for place, budget_bytes in enumerate(found.budgets_bytes):
        solution = solve(problem, budget_bytes=budget_bytes, limits=limits, known=[*known, cheapest], chain=chain)
        assert solution.kept is not None, "the plan for the budget before fits this one"
        assert solution.timeline is not None
        cheapest = Retained(kept=solution.kept, timeline=solution.timeline)
        point = _point(problem, solution, budget_bytes)
        report(
            f"budget {place + 1} of {len(found.budgets_bytes)}, {budget_bytes / 1e9:.2f} GB: "
            f"overhead {point.overhead:.2%}, gap {point.gap:.2%}, {point.solve_s:.1f} s"
        )
        found = replace(found, points=(*found.points, point))
        yield found
    found = replace(found, points=with_later_bounds(found.points, limits.gap))
    if with_peers:
        found = replace(found, peers=_rivals(problem, graph, found.budgets_bytes, report))
    yield found


def spread(low_bytes: int, high_bytes: int, points: int) -> tuple[int, ...]:
    """Budgets from low to high, each by the same factor above the one before, so that they are dense where it is tight.

    Fewer than asked for where whole bytes leave no more; one if low is not below high.
    """
    if low_bytes >= high_bytes:
        return (high_bytes,)
    factor = high_bytes / low_bytes
    inner = (round(low_bytes * factor ** (place / (points - 1))) for place in range(1, points - 1))
    return tuple(sorted({low_bytes, high_bytes, *(min(max(budget, low_bytes), high_bytes) for budget in inner)}))


def with_later_bounds(points: Iterable[FrontierPoint], tolerance: float) -> tuple[FrontierPoint, ...]:
    """The points with the best bound proven for their own or any larger budget: a smaller one cannot do better."""
    tightened: list[FrontierPoint] = []
    bound_s = 0.0
    for point in reversed(list(points)):
        bound_s = max(bound_s, point.bound_s)
        added_s = point.recompute_s + point.stall_s
        gap = max(0.0, added_s - bound_s) / added_s if added_s else 0.0
        status = str(Status.OPTIMAL) if gap <= tolerance else point.status
        tightened.append(replace(point, bound_s=min(bound_s, added_s), gap=gap, status=status))
    return tuple(reversed(tightened))


def _point(problem: Problem, solution: Solution, budget_bytes: int) -> FrontierPoint:
    assert solution.timeline is not None
    return FrontierPoint(
        budget_bytes=budget_bytes,
        peak_bytes=solution.timeline.peak_bytes,
        recompute_s=solution.timeline.recompute_ns / _NS_PER_S,
        stall_s=solution.timeline.stall_ns / _NS_PER_S,
        overhead=solution.timeline.added_ns / problem.step_ns,
        bound_s=solution.bound_ns / _NS_PER_S,
        gap=solution.gap,
        status=str(solution.status),
        solve_s=solution.wall_s,
    )


def _rivals(
    problem: Problem, graph: OpGraph, budgets_bytes: Iterable[int], report: Progress
) -> tuple[RivalsAtBudget, ...]:
    rules = limited_rules(problem, graph)
    peers = all_peers(problem, graph, rules, report=report)
    found = []
    for budget_bytes in budgets_bytes:
        told = told_budget(problem, rules, budget_bytes)
        fastest = fastest_within((*peers, *told), budget_bytes)
        found.append(
            RivalsAtBudget(
                budget_bytes=budget_bytes,
                fastest=tuple(_peer(problem, peer) for peer in fastest.values()),
                told=tuple(_peer(problem, peer) for peer in told),
            )
        )
    return tuple(found)


def _peer(problem: Problem, peer: Peer) -> Rival:
    rival = _rival(problem, peer.rule, peer.timeline)
    return replace(rival, setting=peer.setting, believed_peak_bytes=peer.believed_peak_bytes)


def _rival(problem: Problem, name: str, timeline: Timeline) -> Rival:
    return Rival(
        name=name,
        setting="",
        peak_bytes=timeline.peak_bytes,
        recompute_s=timeline.recompute_ns / _NS_PER_S,
        stall_s=timeline.stall_ns / _NS_PER_S,
        overhead=timeline.added_ns / problem.step_ns,
    )
