"""All rules on one small model with blocks: who is there, who fits, and what each believes."""

import pytest

pytest.importorskip("ortools")

from planner.problem import Problem, build_problem
from planner.simulation.liveness import simulate
from planner.solving.peers.records import Peer
from planner.solving.peers.rules import all_peers, fastest_within, fixed_peers, limited_rules, told_budget
from planner.solving.search import Limits, saved, solve
from tests.steps import UNIT_DEVICE, Forward, step


def model() -> list[Forward]:
    """Three blocks of mm → gelu → mm → gelu with growing and shrinking results."""
    ops: list[Forward] = []
    for block in range(3):
        for place, (name, size, ns) in enumerate(
            (("aten.mm", 4000, 900), ("aten.gelu", 4000, 100), ("aten.mm", 2000, 700), ("aten.gelu", 2000, 50))
        ):
            ops.append(
                Forward(
                    name=f"{name}.default",
                    module=f"layers.{block}",
                    sizes={f"{block}.{place}": size},
                    reads=(next(iter(ops[-1].sizes)),) if ops else (),
                    ns=ns,
                    saved=(f"{block}.{place}",),
                )
            )
    return ops


@pytest.fixture(scope="module")
def everything() -> tuple[Problem, tuple[Peer, ...]]:
    graph, _ = step(model(), blocks=[f"layers.{block}" for block in range(3)], backward_ns=100)
    problem = build_problem(graph, UNIT_DEVICE, host_budget_bytes=10**9)
    return problem, all_peers(problem, graph, limited_rules(problem, graph))


def test_every_rule_has_a_plan(everything: tuple[Problem, tuple[Peer, ...]]) -> None:
    assert {
        *("every block", "selective", "torchtitan selective"),
        *("offload all", "offload block inputs", "greedy knapsack", "0/1 knapsack", "min-cut", "two levels"),
    } <= {peer.rule for peer in everything[1]}


def test_of_each_rule_the_fastest_that_fits_is_found(everything: tuple[Problem, tuple[Peer, ...]]) -> None:
    problem, peers = everything
    budget_bytes = simulate(problem, saved(problem)).peak_bytes * 3 // 4

    best = fastest_within(peers, budget_bytes)

    for rule, peer in best.items():
        assert rule == peer.rule
        assert peer.timeline.peak_bytes <= budget_bytes
        rivals = [p for p in peers if p.rule == rule and p.timeline.peak_bytes <= budget_bytes]
        assert peer.overhead_ns == min(rival.overhead_ns for rival in rivals)
    assert {} == fastest_within(peers, 1)


def test_no_rule_that_only_replays_beats_the_solver(everything: tuple[Problem, tuple[Peer, ...]]) -> None:
    problem, peers = everything
    replaying = [peer for peer in peers if not peer.offloaded]
    for peak_bytes in sorted({peer.timeline.peak_bytes for peer in replaying})[::7]:
        ours = solve(problem, budget_bytes=peak_bytes, limits=Limits(gap=0.0)).timeline
        assert ours is not None
        for peer in fastest_within(replaying, peak_bytes).values():
            assert ours.recompute_ns <= peer.overhead_ns


def test_told_a_budget_a_rule_trusts_its_own_account() -> None:
    graph, _ = step(model(), blocks=[f"layers.{block}" for block in range(3)], backward_ns=100)
    problem = build_problem(graph, UNIT_DEVICE, host_budget_bytes=10**9)
    top_bytes = simulate(problem, saved(problem)).peak_bytes

    found = [
        (top_bytes * part // 8, told_budget(problem, limited_rules(problem, graph), top_bytes * part // 8))
        for part in range(2, 8)
    ]

    assert {"greedy knapsack", "0/1 knapsack", "min-cut", "two levels"} == {peer.rule for peer in found[-1][1]}
    believed = [(budget, peer.believed_peak_bytes) for budget, peers in found for peer in peers]
    assert all(peak_bytes is not None and peak_bytes <= budget for budget, peak_bytes in believed)
    over = {peer.rule for budget, peers in found for peer in peers if peer.timeline.peak_bytes > budget}
    assert {"min-cut", "0/1 knapsack"} <= over, over


def test_a_model_without_blocks_still_has_peers() -> None:
    graph, _ = step(model())
    problem = build_problem(graph, UNIT_DEVICE, host_budget_bytes=10**9)

    assert ["offload all"] == [peer.rule for peer in fixed_peers(problem, graph)]
    names = {rule.name for rule in limited_rules(problem, graph)}
    assert {"greedy knapsack", "0/1 knapsack", "min-cut"} == names
