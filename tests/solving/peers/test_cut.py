"""Cuts of graphs with a few tensors, and a budget for the boundary that does not bound the peak."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ortools")

from planner.problem import Problem
from planner.solving.peers.cut import boundary_range, cheap_cuts, cheapest_cut, dear_ops, min_cut, used_far_apart
from planner.solving.search import Limits, solve
from tests.problems import problems
from tests.simulation.test_liveness import chain


def named(problem: Problem, names: dict[int, str]) -> Problem:
    ops = tuple(replace(op, name=names.get(op.index, "aten.gelu.default")) for op in problem.ops)
    return replace(problem, ops=ops)


def unsaved(problem: Problem, *tensors: int) -> Problem:
    return replace(problem, tensors=tuple(replace(t, uses=()) if t.index in tensors else t for t in problem.tensors))


def test_the_narrowest_place_between_forward_and_backward_is_cut() -> None:
    # A dear op makes 8 bytes, cast to 4, widened to 9: only the last is saved, and the cast is the place to cut.
    problem = unsaved(chain((8, 4, 9)), 0, 1)

    assert frozenset({1}) == cheapest_cut(problem, {0})


def test_what_backward_needs_of_a_dear_op_is_itself_cut() -> None:
    assert frozenset({0}) == cheapest_cut(chain((8, 4, 9)), {0})
    assert frozenset({0, 2}) == cheapest_cut(chain((8, 4, 9)), {0, 2})


def test_without_a_ban_nothing_crosses() -> None:
    assert frozenset() == cheapest_cut(chain((8, 4, 9)), frozenset())


def test_what_must_be_kept_is_kept_and_free_to_read() -> None:
    problem = chain((8, 4, 9))
    problem = replace(problem, tensors=(replace(problem.tensors[0], must_keep=True), *problem.tensors[1:]))

    assert frozenset({0}) == cheapest_cut(problem, {0})


def test_a_tensor_read_before_and_after_a_dear_op_is_used_far_apart() -> None:
    problem = named(chain((1, 1, 1, 1)), {1: "aten.mm.default"})
    residual = replace(problem.tensors[0], consumers=(1, 3))
    problem = replace(problem, tensors=(residual, *problem.tensors[1:]))

    assert frozenset({1}) == dear_ops(problem)
    assert frozenset({0}) == used_far_apart(problem, {1})
    assert frozenset() == used_far_apart(problem, {3})


def test_each_limit_gets_the_cut_that_the_scheme_prescribes() -> None:
    # Products at 0 and 2; the results of all are saved, so the cheap cut keeps both products.
    problem = named(chain((8, 4, 6, 3)), {0: "aten.mm.default", 2: "aten.mm.default"})
    cheap = cheap_cuts(problem)

    assert (0, 14) == boundary_range(problem, cheap)
    assert frozenset({0, 2}) == min_cut(problem, cheap, limit_bytes=14).kept
    # Op 2 costs 12 and op 0 costs 10: with room for either, the knapsack keeps the dearer.
    assert frozenset({2}) == min_cut(problem, cheap, limit_bytes=13).kept
    assert frozenset({2}) == min_cut(problem, cheap, limit_bytes=6).kept
    assert frozenset() == min_cut(problem, cheap, limit_bytes=5).kept
    assert frozenset() == min_cut(problem, cheap, limit_bytes=0).kept


def test_a_smaller_limit_may_peak_higher_and_our_plans_never_do() -> None:
    problem = named(chain((8, 4, 6, 3)), {0: "aten.mm.default", 2: "aten.mm.default"})
    cheap = cheap_cuts(problem)

    peaks = [min_cut(problem, cheap, limit_bytes=limit).timeline.peak_bytes for limit in (14, 6, 0)]

    # 0 and 2 kept: 14 at the end of forward, and 17 with 3 replayed. 2 kept: 9 with 3 replayed; both are gone when 0
    # and 1 come back, 12 together. Nothing kept: all 21 come back at once.
    assert [17, 12, 21] == peaks
    budgets = (12, 14, 17, 19, 21)
    ours = [solve(problem, budget_bytes=budget, limits=Limits(gap=0.0)).timeline for budget in budgets]
    found = [(timeline.recompute_ns, timeline.peak_bytes) for timeline in ours if timeline is not None]
    assert len(budgets) == len(found)
    assert all(peak <= budget for budget, (_, peak) in zip(budgets, found, strict=True))
    assert sorted((cost for cost, _ in found), reverse=True) == [cost for cost, _ in found]


@given(problems(max_ops=6), st.integers(0, 40))
def test_every_cut_gives_backward_all_it_needs(problem: Problem, limit_bytes: int) -> None:
    problem = named(problem, dict.fromkeys(range(0, len(problem.ops), 2), "aten.mm.default"))

    peer = min_cut(problem, cheap_cuts(problem), limit_bytes=limit_bytes)

    ours = solve(problem, budget_bytes=peer.timeline.peak_bytes, limits=Limits(gap=0.0))
    assert ours.timeline is not None
    assert ours.timeline.recompute_ns <= peer.timeline.recompute_ns
