"""All rules together: their plans for a step, the fastest that fit a budget, and what each picks when told one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from planner.graph import OpGraph
from planner.problem import Problem
from planner.solving.baselines import baselines, block_regions, region_inputs
from planner.solving.peers.cut import MIN_CUT, boundary_range, cheap_cuts, min_cut
from planner.solving.peers.knapsack import GREEDY, ZERO_ONE, greedy_knapsack, zero_one_knapsack
from planner.solving.peers.offload import STAGINGS, USUAL_STAGING, offload_all, offload_block_inputs
from planner.solving.peers.records import Peer, chosen_blocks, saveable, size_of
from planner.solving.peers.selective import core_attention, every_second_matmul
from planner.solving.peers.two_level import TWO_LEVEL, two_levels

# Settings tried of each rule with a limit. A cut takes longer than a knapsack.
SETTINGS = 48
CUT_SETTINGS = 24


class _Decide(Protocol):
    """From a limit on the bytes of all kept tensors to a plan."""

    def __call__(self, *, limit_bytes: int) -> Peer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedRule:
    """A rule that takes a limit on kept bytes, ready to decide about one step.

    Attributes:
        name: of the rule. A rule that may begin with different sets of tensors is there once for each.
        decide: from a limit to a plan.
        smallest_bytes, largest_bytes: the limits between which its plans differ.
        settings: how many limits are tried.
        is_usual: the one to use when the rule is told a budget: it begins with block inputs where there are blocks.
    """

    name: str
    decide: _Decide
    smallest_bytes: int
    largest_bytes: int
    settings: int
    is_usual: bool


def fixed_peers(problem: Problem, graph: OpGraph) -> tuple[Peer, ...]:
    """One plan of every rule without a limit: every block, every √N, selective ones, offloading as it comes."""
    by_hand = (
        Peer(rule=baseline.name, setting="", kept=baseline.kept, timeline=baseline.timeline)
        for baseline in baselines(problem, graph)
        if baseline.timeline.replays
    )
    found = (
        every_second_matmul(problem, graph),
        core_attention(problem, graph),
        offload_all(problem, graph),
        offload_block_inputs(problem, graph),
    )
    return (*by_hand, *(peer for peer in found if peer is not None))


def limited_rules(problem: Problem, graph: OpGraph) -> tuple[LimitedRule, ...]:
    """The rules with a limit, for a step."""
    found = []
    everything = {tensor.index for tensor in saveable(problem)}
    blocks = chosen_blocks(problem, graph)
    starts = [problem.must_keep]
    if blocks:
        starts.append(region_inputs(problem, block_regions(problem, blocks, 1)))
    for start in starts:
        for name, decide in ((GREEDY, greedy_knapsack), (ZERO_ONE, zero_one_knapsack)):
            found.append(
                LimitedRule(
                    name=name,
                    decide=partial(decide, problem, start=start),
                    smallest_bytes=size_of(problem, start),
                    largest_bytes=size_of(problem, start | everything),
                    settings=SETTINGS,
                    is_usual=start is starts[-1],
                )
            )
    cheap = cheap_cuts(problem)
    smallest_bytes, largest_bytes = boundary_range(problem, cheap)
    found.append(
        LimitedRule(
            name=MIN_CUT,
            decide=partial(min_cut, problem, cheap),
            smallest_bytes=smallest_bytes,
            largest_bytes=largest_bytes,
            settings=CUT_SETTINGS,
            is_usual=True,
        )
    )
    if blocks:
        found.append(
            LimitedRule(
                name=TWO_LEVEL,
                decide=partial(two_levels, problem, blocks),
                smallest_bytes=size_of(problem, starts[-1]),
                largest_bytes=size_of(problem, starts[-1] | everything),
                settings=SETTINGS,
                is_usual=True,
            )
        )
    return tuple(found)


def all_peers(
    problem: Problem,
    graph: OpGraph,
    rules: Iterable[LimitedRule],
    *,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[Peer, ...]:
    """The plans of every rule, those with a setting at many settings.

    Args:
        problem: the step.
        graph: the graph it was built from.
        rules: from `limited_rules`.
        report: called with a line of progress.
    """
    found: list[Peer | None] = [*fixed_peers(problem, graph)]
    for staging in STAGINGS:
        if staging != USUAL_STAGING:
            found.append(offload_all(problem, graph, staging=staging))
            found.append(offload_block_inputs(problem, graph, staging=staging))
    for rule in rules:
        report(f"trying the rule {rule.name} at {rule.settings} settings")
        span = rule.largest_bytes - rule.smallest_bytes
        limits = {rule.smallest_bytes + span * k // (rule.settings - 1) for k in range(rule.settings)}
        found.extend(rule.decide(limit_bytes=limit) for limit in sorted(limits))
    return tuple(peer for peer in found if peer is not None)


def fastest_within(peers: Iterable[Peer], budget_bytes: int) -> dict[str, Peer]:
    """Of each rule the fastest plan whose simulated peak fits, by rule; rules without one are absent."""
    best: dict[str, Peer] = {}
    for peer in peers:
        if peer.timeline.peak_bytes > budget_bytes:
            continue
        known = best.get(peer.rule)
        if known is None or _merit(peer) < _merit(known):
            best[peer.rule] = peer
    return best


def told_budget(problem: Problem, rules: Iterable[LimitedRule], budget_bytes: int) -> tuple[Peer, ...]:
    """What each rule with a limit picks when it is told a budget and takes its own account of the peak for true.

    A rule that believes nothing to fit is absent. Whether its plan does fit, the simulated peak says.
    """
    room_bytes = max(0, budget_bytes - max(problem.base_bytes))
    plans = [rule.decide(limit_bytes=room_bytes) for rule in rules if rule.is_usual]
    return tuple(plan for plan in plans if (plan.believed_peak_bytes or 0) <= budget_bytes)


def _merit(peer: Peer) -> tuple[int, int]:
    return peer.overhead_ns, peer.timeline.peak_bytes
