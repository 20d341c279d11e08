"""The frontier of a small step: its ends, its promises, and what stands beside it."""

from dataclasses import fields, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ortools")

import planner
from planner import tradeoff
from planner.graph import OpGraph
from planner.problem import build_problem
from planner.simulation.liveness import simulate
from planner.solving.search import Limits, Solution, lowest_peak, saved
from planner.tradeoff import Frontier, FrontierPoint, growing_frontier, spread, with_later_bounds
from tests.solving.peers.test_rules import model
from tests.steps import UNIT_DEVICE, step

EXACT = Limits(time_s=20.0, gap=0.0)


def small() -> OpGraph:
    return step(model(), blocks=[f"layers.{block}" for block in range(3)], backward_ns=100)[0]


@pytest.fixture(scope="module")
def found() -> Frontier:
    return planner.frontier(small(), points=6, device=UNIT_DEVICE, limits=EXACT, with_peers=True)


def test_budgets_run_from_the_smallest_peak_to_everything_saved(found: Frontier) -> None:
    problem = build_problem(small(), UNIT_DEVICE)

    assert lowest_peak(problem, limits=EXACT).timeline.peak_bytes == found.budgets_bytes[0]
    assert found.smallest_peak_bound_bytes == found.budgets_bytes[0]
    assert simulate(problem, saved(problem)).peak_bytes == found.budgets_bytes[-1]
    assert 6 == len(found.points)
    assert found.is_complete
    assert (0.0, 0.0) == (found.points[-1].overhead, found.points[-1].gap)


def test_no_plan_exceeds_its_budget_and_more_budget_never_costs_more(found: Frontier) -> None:
    assert all(point.peak_bytes <= point.budget_bytes for point in found.points)
    assert all(later.overhead <= earlier.overhead for earlier, later in pairwise(found.points))
    assert found.points[0].overhead > 0


def test_overhead_is_what_a_plan_adds_to_the_step(found: Frontier) -> None:
    for point in found.points:
        assert (point.recompute_s + point.stall_s) / found.step_s == pytest.approx(point.overhead)


def test_what_people_do_by_hand_stands_beside_it(found: Frontier) -> None:
    names = [rival.name for rival in found.baselines]

    assert ["no checkpointing", "every block", "every √N blocks", "selective"] == names
    for rival in found.baselines:
        for point in found.points:  # no baseline is faster than a plan for the same peak or less
            if rival.peak_bytes <= point.budget_bytes:
                assert point.overhead <= rival.overhead


def test_peers_are_there_for_every_budget_when_asked_for(found: Frontier) -> None:
    assert found.budgets_bytes == tuple(row.budget_bytes for row in found.peers)
    for row, point in zip(found.peers, found.points, strict=True):
        assert all(rival.peak_bytes <= row.budget_bytes for rival in row.fastest)
        replaying = [rival for rival in row.fastest if not rival.name.startswith("offload")]
        assert all(point.overhead <= rival.overhead for rival in replaying)
        assert all((rival.believed_peak_bytes or 0) <= row.budget_bytes for rival in row.told)
    assert () == planner.frontier(small(), points=2, device=UNIT_DEVICE, limits=EXACT).peers


def test_it_can_be_watched_as_it_grows() -> None:
    grown = list(growing_frontier(small(), points=3, device=UNIT_DEVICE, limits=EXACT))

    assert [0, 1, 2, 3, 3] == [len(found.points) for found in grown]
    assert [False, False, False, True, True] == [found.is_complete for found in grown]
    assert all(found.baselines for found in grown)


def test_a_search_without_time_falls_back_on_the_plan_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[list[frozenset[int]]] = []
    solve = tradeoff.solve

    def watched(*arguments: object, known: list[frozenset[int]], **options: object) -> Solution:
        offered.append(known)
        return solve(*arguments, known=known, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tradeoff, "solve", watched)
    found = planner.frontier(small(), points=5, device=UNIT_DEVICE, limits=Limits(time_s=0.0))

    assert all(point.peak_bytes <= point.budget_bytes for point in found.points)
    assert all(later.overhead <= earlier.overhead for earlier, later in pairwise(found.points))
    assert 5 == len(offered)


def test_a_step_that_no_plan_changes_has_one_budget() -> None:
    assert (7,) == spread(7, 7, 8)


@given(st.integers(1, 10**12), st.integers(1, 10**12), st.integers(2, 20))
def test_budgets_rise_and_include_both_ends(one: int, other: int, points: int) -> None:
    low, high = sorted((one, other))

    budgets = spread(low, high, points)

    assert sorted(set(budgets)) == list(budgets)
    assert high == budgets[-1]
    assert low == budgets[0]
    assert len(budgets) <= points


def test_budgets_are_a_constant_factor_apart() -> None:
    assert (100, 200, 400, 800) == spread(100, 800, 4)


def test_what_is_proven_for_a_larger_budget_holds_for_a_smaller() -> None:
    blank = {field.name: 0 for field in fields(FrontierPoint)}
    point = FrontierPoint(**{**blank, "status": "feasible"})  # type: ignore[arg-type]
    tight = replace(point, recompute_s=8.0, bound_s=8.0, status="optimal")
    loose = replace(point, recompute_s=10.0, bound_s=2.0, gap=0.8)
    nothing = replace(point, status="optimal")

    first, second, last = with_later_bounds([loose, tight, nothing], 0.0005)

    assert (8.0, pytest.approx(0.2), "feasible") == (first.bound_s, first.gap, first.status)
    assert (tight, nothing) == (second, last)
    assert "optimal" == with_later_bounds([loose, tight], 0.2)[0].status


def test_a_frontier_needs_two_points() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        planner.frontier(small(), points=1)
