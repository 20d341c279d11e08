"""What the solver says of copies to the host, against every plan of small random steps."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from planner.link import HostLink, Staging
from planner.problem import Pack, Packing, Problem
from planner.simulation.liveness import ideal_timeline, replayed_ops, simulate
from planner.solving.cells import cut
from planner.solving.decomposition import ChainSolver
from planner.solving.model import RetentionModel, replay_windows
from planner.solving.search import Limits, Status, lowest_peak, solve, without_idle_anchors
from planner.solving.staging import Stagings, with_best_staging
from tests.problems import ChainProblem, all_offloads, all_plans, chain_problems, problems, stagings
from tests.simulation.test_liveness import simulate_or_none
from tests.simulation.test_transfers import random_plan
from tests.solving.rows import Rows
from tests.solving.test_decomposition import GB, decompose, step, tensor

EXACT = Limits(time_s=60.0, gap=0.0)
MOST_PLANS = 150  # problems with more are passed over


@settings(max_examples=300)
@given(
    st.one_of(problems(max_movable=6), chain_problems(max_movable=8).map(lambda made: made.problem)),
    st.data(),
)
def test_the_model_demands_no_waiting_that_does_not_happen(problem: Problem, data: st.DataObject) -> None:
    plan = random_plan(problem, data)
    if plan is None:
        return
    kept, offloaded = plan
    timeline = simulate(problem, kept, offloaded=offloaded, staging=data.draw(stagings(problem)))
    replayed = replayed_ops(problem, kept)
    model = RetentionModel(problem, replay_windows(problem), is_strict=True)
    for one in problem.tensors:
        model.cp.add(model.keep(one.index) == int(one.index in kept))
        model.cp.add(model.host(one.index) == int(one.index in offloaded))
    for op in problem.ops:
        model.cp.add(model.replay(op.index) == int(op.index in replayed))
    model.cp.minimize(model.add_link())

    solver = cp_model.CpSolver()
    assert cp_model.OPTIMAL == solver.solve(model.cp)
    assert solver.objective_value <= timeline.stall_ns


def linked(
    problem: Problem, packings: Mapping[int, Packing], times_ns: Sequence[int], unpack_steps: tuple[int, ...]
) -> Problem:
    """The same step with a link that takes a ns for a GB."""
    return replace(
        problem,
        tensors=tuple(replace(t, packing=packings.get(t.index)) for t in problem.tensors),
        times_ns=tuple(times_ns),
        link=HostLink(bytes_per_s=GB * 1e9, launch_ns=0, budget_bytes=100 * GB),
        packs=tuple(Pack(step=0, unpack_step=unpack) for unpack in unpack_steps),
        settle_step=problem.backward_step,
    )


def link_that_comes_back_late() -> tuple[Problem, tuple[int, ...]]:
    """Only the cell that makes the link unpacks it, and not first."""
    tensors = [
        tensor(1, 0, unpacked=(6, 7)),
        tensor(5, 1, read_by=(3,), unpacked=(7, 8)),
        tensor(1, 2, unpacked=(5, 6), must_keep=True),
        tensor(1, 3, unpacked=(4, 5)),
    ]
    problem = step(tensors, [5, 5, 5, 5], [0, 0, 0, 0, 0, 6, 0, 0, 0])
    return linked(problem, {1: Packing(step=2, first_rank=1, last_rank=1)}, [1] * 9, (6, 7, 5, 4)), (3,)


def packed_long_before_its_cell() -> tuple[Problem, tuple[int, ...]]:
    """The last cell reads what no op of ours makes, and what was packed in the first."""
    tensors = [
        tensor(1, 0, read_by=(1,), unpacked=(8, 9)),
        tensor(1, 1, read_by=(2,), unpacked=(7, 8)),
        tensor(1, 2, unpacked=(6, 7)),
        tensor(5, None, read_by=(2,), unpacked=(5, 6), must_keep=True),
    ]
    problem = replace(step(tensors, [5, 5, 5], [0] * 10), backward_step=5)
    return linked(problem, {3: Packing(step=0, first_rank=0, last_rank=0)}, [9] + [0] * 9, (5, 8, 7, 6)), (1, 2)


def let_go_by_a_shared_replay() -> tuple[Problem, tuple[int, ...]]:
    """The first tensor is held for replays alone, and the replay of a shared one lets it go before a later peak."""
    tensors = [
        tensor(3, 0, read_by=(1,), must_keep=True),
        tensor(3, 1, read_by=(2,), unpacked=(5, 6)),
        tensor(1, 2, unpacked=(6, 7), must_keep=True),
        tensor(1, 3, unpacked=(4, 5), must_keep=True),
    ]
    problem = step(tensors, [5, 5, 5, 5], [0, 0, 0, 0, 0, 0, 5, 0, 0])
    return linked(problem, {}, [1] * 9, (5, 6, 4)), (1, 2, 3)


def plans_of(problem: Problem) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
    """(kept, offloaded) of every plan that can run and keeps nothing in vain."""
    for kept in all_plans(problem):
        if (
            simulate_or_none(problem, kept) is not None
            and without_idle_anchors(problem, kept) | problem.must_keep == kept
        ):
            for offloaded in all_offloads(problem, kept):
                yield kept, offloaded


def broken_rows(rows: Rows, kept: Set[int], offloaded: Set[int]) -> list[str]:
    """The rows that a plan breaks, with as much room for staging as it likes."""
    whole_bytes = sum(tensor.size_bytes for tensor in rows.problem.tensors)
    ideal = ideal_timeline(rows.problem, kept, offloaded)
    options = rows.options(kept, offloaded)
    found = []
    for lead in (0, 1, 3, 48) if offloaded else (0,):
        staging = Staging(out_bytes=whole_bytes, back_bytes=whole_bytes, lead=lead)
        timeline = simulate(rows.problem, kept, offloaded=offloaded, staging=staging)
        found += rows.broken(options, timeline, ideal)
    return found


@pytest.mark.parametrize(
    "case", [link_that_comes_back_late(), packed_long_before_its_cell(), let_go_by_a_shared_replay()]
)
def test_every_row_holds_for(case: tuple[Problem, tuple[int, ...]]) -> None:
    problem, starts = case
    rows = Rows.of(problem, cut(problem, starts))

    for kept, offloaded in plans_of(problem):
        assert not broken_rows(rows, kept, offloaded)


@settings(max_examples=15)
@given(chain_problems(max_choices=4, max_movable=4))
def test_every_row_holds_for_every_plan(made: ChainProblem) -> None:
    rows = Rows.of(made.problem, cut(made.problem, made.starts))

    for kept, offloaded in islice(plans_of(made.problem), 100):
        assert not broken_rows(rows, kept, offloaded)


def test_an_option_says_what_of_its_copies_goes_on_outside_its_cell() -> None:
    problem, _ = link_that_comes_back_late()
    rows = Rows.of(problem, cut(problem, ()))

    [option] = rows.options({0, 1, 2, 3}, {1})

    # Of 5 ns out, 2 run between the packing and the end of forward; of 5 ns back, 3 before it is asked for.
    assert (3, 2) == (option.out_rest_ns, option.back_ahead_ns)


@settings(max_examples=100)
@given(problems(max_movable=6), st.data())
def test_with_room_for_all_copies_forward_waits_for_what_its_only_cell_leaves(
    problem: Problem, data: st.DataObject
) -> None:
    problem = replace(problem, settle_step=problem.backward_step)
    plan = random_plan(problem, data)
    assume(plan is not None and plan[1] and problem.ops)
    assert plan is not None
    whole_bytes = sum(tensor.size_bytes for tensor in problem.tensors)
    staging = Staging(out_bytes=whole_bytes, back_bytes=whole_bytes, lead=len(problem.packs))

    [option] = Rows.of(problem, cut(problem, ())).options(*plan)

    timeline = simulate(problem, plan[0], offloaded=plan[1], staging=staging)
    assert timeline.traffic.forward_stall_ns == option.out_rest_ns


@given(problems(max_movable=6), st.data())
def test_a_plan_fits_where_no_part_of_the_step_is_over_the_budget(problem: Problem, data: st.DataObject) -> None:
    plan = random_plan(problem, data)
    assume(plan is not None)
    assert plan is not None
    budget_bytes = data.draw(st.integers(0, 40))
    stagings_of_plan = Stagings(problem, *plan)

    for timeline in (stagings_of_plan.best(budget_bytes), stagings_of_plan.cheapest(budget_bytes, 0.5)):
        excess_bytes = max(stagings_of_plan.excess_bytes(timeline, budget_bytes))
        assert max(0, timeline.peak_bytes - budget_bytes) == excess_bytes


def few_plans_of(problem: Problem) -> list[tuple[frozenset[int], frozenset[int]]]:
    """All plans, of a problem that has not too many."""
    plans = list(islice(plans_of(problem), MOST_PLANS + 1))
    assume(len(plans) <= MOST_PLANS)
    return plans


def some_budget(data: st.DataObject, problem: Problem, plans: Sequence[tuple[frozenset[int], frozenset[int]]]) -> int:
    """One that no plan fits, or some plan, or one that would if copies took no memory."""
    peaks = {ideal_timeline(problem, *plan).peak_bytes for plan in plans}
    peaks |= {with_best_staging(problem, *plan, 0).peak_bytes for plan in plans}
    return data.draw(st.sampled_from([min(peaks) - 1, *sorted(peaks)]))


@settings(max_examples=60)
@given(problems(max_ops=5, max_movable=4), st.data())
def test_with_a_link_the_optimum_equals_exhaustive_search(problem: Problem, data: st.DataObject) -> None:
    plans = few_plans_of(problem)
    budget = some_budget(data, problem, plans)
    timelines = [with_best_staging(problem, *plan, budget) for plan in plans]
    affordable = [timeline.added_ns for timeline in timelines if timeline.peak_bytes <= budget]

    solution = solve(problem, budget_bytes=budget, limits=EXACT)

    if not affordable:
        assert Status.INFEASIBLE == solution.status
        return
    assert Status.OPTIMAL == solution.status
    assert solution.timeline is not None
    assert min(affordable) == solution.timeline.added_ns == solution.bound_ns
    assert solution.timeline.peak_bytes <= budget


@settings(max_examples=30)
@given(problems(max_ops=5, max_movable=4))
def test_with_a_link_no_plan_peaks_below_the_bound(problem: Problem) -> None:
    plans = few_plans_of(problem)

    found = lowest_peak(problem, limits=EXACT)

    lowest = min(with_best_staging(problem, *plan, found.bound_bytes).peak_bytes for plan in plans)
    assert found.bound_bytes <= lowest <= found.timeline.peak_bytes


@settings(max_examples=8)
@given(chain_problems(unit_bytes=1 << 29, max_choices=4, max_movable=4), st.data())
def test_with_a_link_no_plan_beats_the_bound_of_a_chain(made: ChainProblem, data: st.DataObject) -> None:
    problem = made.problem
    plans = few_plans_of(problem)
    budget = some_budget(data, problem, plans)
    timelines = [with_best_staging(problem, *plan, budget) for plan in plans]
    affordable = [timeline.added_ns for timeline in timelines if timeline.peak_bytes <= budget]

    found = decompose(ChainSolver(problem, cut(problem, made.starts)), budget)

    if affordable:
        assert not found.is_infeasible
        assert found.bound_ns <= min(affordable)
    if found.timeline is not None:
        assert found.kept is not None
        assert with_best_staging(problem, found.kept, found.timeline.traffic.offloaded, budget) == found.timeline
        assert found.timeline.peak_bytes <= budget
        assert min(affordable) <= found.timeline.added_ns
