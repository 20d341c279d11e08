"""Knapsacks on chains small enough to pack by hand, and against trying every subset."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ortools")

from planner.problem import Problem
from planner.solving.peers import knapsack
from planner.solving.peers.knapsack import best_subset, greedy_knapsack, zero_one_knapsack
from planner.solving.peers.records import size_of
from planner.solving.search import Limits, solve
from tests.problems import problems
from tests.simulation.test_liveness import chain


def costing(problem: Problem, costs_ns: tuple[int, ...]) -> Problem:
    return replace(
        problem,
        ops=tuple(replace(op, cost_ns=cost_ns) for op, cost_ns in zip(problem.ops, costs_ns, strict=True)),
    )


# Per byte the first is the dearest, but it leaves no room for another.
TRAP = costing(chain((6, 5, 5)), (13, 10, 10))


def test_the_greedy_rule_takes_the_dearest_per_byte_first() -> None:
    found = greedy_knapsack(TRAP, limit_bytes=10, start=frozenset())

    assert frozenset({0}) == found.kept
    assert 20 == found.believed_recompute_ns


def test_the_greedy_rule_passes_over_what_does_not_fit() -> None:
    # Per byte 10, 5.5, 3 and 1.6; 3 bytes hold the first two, and the last one never fits.
    assert frozenset({0, 1}) == greedy_knapsack(chain((1, 2, 4, 8)), limit_bytes=6, start=frozenset()).kept
    assert frozenset({0, 2}) == greedy_knapsack(chain((1, 9, 4, 8)), limit_bytes=6, start=frozenset()).kept


def test_the_exact_rule_takes_the_most_time() -> None:
    found = zero_one_knapsack(TRAP, limit_bytes=10, start=frozenset())

    assert frozenset({1, 2}) == found.kept
    assert 13 == found.believed_recompute_ns
    assert 13 == found.timeline.recompute_ns


def test_bytes_of_what_is_kept_are_not_the_peak() -> None:
    found = greedy_knapsack(TRAP, limit_bytes=10, start=frozenset())

    assert 6 == found.believed_peak_bytes
    # The first unpack replays the other two while the first is held.
    assert 16 == found.timeline.peak_bytes


def test_what_a_rule_begins_with_counts_and_stays() -> None:
    found = greedy_knapsack(TRAP, limit_bytes=10, start=frozenset({1}))

    assert frozenset({1, 2}) == found.kept


def test_times_without_dependencies_are_not_the_replay_time() -> None:
    # Keeping only the last of a chain: the rule counts two ops, and that is what runs, since replays share.
    chained = zero_one_knapsack(costing(chain((5, 5, 5)), (1, 1, 9)), limit_bytes=5, start=frozenset())
    assert (frozenset({2}), 2) == (chained.kept, chained.believed_recompute_ns)
    assert 2 == chained.timeline.recompute_ns
    # An op between two saved ones that autograd does not save is replayed too, and the rule never sees it.
    base = chain((5, 5, 5))
    hidden = replace(base, tensors=(base.tensors[0], replace(base.tensors[1], uses=()), base.tensors[2]))
    found = greedy_knapsack(costing(hidden, (9, 4, 1)), limit_bytes=5, start=frozenset())
    assert (frozenset({0}), 1) == (found.kept, found.believed_recompute_ns)
    assert 4 + 1 == found.timeline.recompute_ns


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=7), st.integers(0, 40))
def test_the_best_subset_is_the_best_of_all(items: list[tuple[int, int]], room: int) -> None:
    sizes, gains = [size for size, _ in items], [gain for _, gain in items]

    chosen = best_subset(sizes, gains, room)

    assert sum(sizes[place] for place in chosen) <= room
    subsets = (c for count in range(len(items) + 1) for c in combinations(range(len(items)), count))
    best = max(sum(gains[p] for p in c) for c in subsets if sum(sizes[p] for p in c) <= room)
    assert best == sum(gains[place] for place in chosen)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=7), st.integers(-3, 40))
def test_on_a_coarse_grid_the_subset_still_fits(items: list[tuple[int, int]], room: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knapsack, "_GRID", 5)
        chosen = best_subset([size for size, _ in items], [gain for _, gain in items], room)

    assert sum(items[place][0] for place in chosen) <= max(0, room)


@given(problems(max_ops=6), st.integers(0, 40))
def test_no_rule_beats_the_solver_at_its_own_peak(problem: Problem, limit_bytes: int) -> None:
    for decide in (greedy_knapsack, zero_one_knapsack):
        start = problem.must_keep
        peer = decide(problem, limit_bytes=limit_bytes, start=start)
        fixed = peer.kept - {t.index for t in problem.tensors if t.producer is None}
        assert size_of(problem, fixed | start) <= max(limit_bytes, size_of(problem, start))
        ours = solve(problem, budget_bytes=peer.timeline.peak_bytes, limits=Limits(gap=0.0))
        assert ours.timeline is not None
        assert ours.timeline.recompute_ns <= peer.timeline.recompute_ns
