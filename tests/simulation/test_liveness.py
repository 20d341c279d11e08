"""The timeline against a slow runtime, and against steps small enough to work out on paper."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.problem import Problem, ReplayOp, Tensor
from planner.simulation.liveness import Point, demand_schedule, region_schedule, simulate
from tests.problems import all_plans, problems, run_slowly


def chain(sizes: tuple[int, ...]) -> Problem:
    """x → a → b → c …: every op's output is saved, backward unpacks them last first, one step each."""
    count = len(sizes)
    return Problem(
        tensors=tuple(
            Tensor(
                index=i,
                value=i,
                size_bytes=size,
                producer=i,
                may_keep=True,
                must_keep=False,
                free_step=i + 2,
                uses=((count + 2 * (count - 1 - i), count + 2 * (count - 1 - i) + 2),),
                consumers=(i + 1,) if i + 1 < count else (),
            )
            for i, size in enumerate(sizes)
        ),
        ops=tuple(
            ReplayOp(
                index=i,
                step=i,
                name=f"op{i}",
                module_fqn=f"blocks.{i // 2}",
                cost_ns=10 + i,
                reads=(i - 1,) if i else (),
                writes=(i,),
                scratch_bytes=0,
            )
            for i in range(count)
        ),
        base_bytes=(0,) * (3 * count),
        backward_step=count,
        optimizer_peak_bytes=0,
        step_ns=1000,
    )


def test_keeping_everything_costs_nothing_and_peaks_at_the_sum() -> None:
    timeline = simulate(chain((1, 2, 4, 8)), frozenset(range(4)))

    assert 15 == timeline.peak_bytes
    assert 0 == timeline.recompute_ns


def test_keeping_the_first_replays_the_rest_once_and_peaks_when_all_are_back() -> None:
    timeline = simulate(chain((1, 2, 4, 8)), frozenset({0}))

    assert {4: (1, 2, 3)} == demand_schedule(chain((1, 2, 4, 8)), frozenset({0}))
    assert 11 + 12 + 13 == timeline.recompute_ns
    assert 15 == timeline.peak_bytes


def test_a_tensor_that_is_kept_ends_a_replay() -> None:
    timeline = simulate(chain((1, 2, 4, 8)), frozenset({0, 2}))

    assert {4: (3,), 8: (1,)} == demand_schedule(chain((1, 2, 4, 8)), frozenset({0, 2}))
    assert 13 + 11 == timeline.recompute_ns
    # At the first unpack: kept 1 + 4 and replayed 8. Later: 1 + 2, with 4 released.
    assert 13 == timeline.peak_bytes
    assert Point(step=4, replay=3) == timeline.peak


def test_a_region_is_replayed_whole_at_its_first_unpack() -> None:
    problem = chain((1, 2, 4, 8))

    schedule = region_schedule(problem, frozenset({1}), lambda op: problem.ops[op].module_fqn)

    assert {4: (2, 3), 10: (0,)} == schedule


def test_the_optimizer_step_counts_as_a_moment() -> None:
    problem = chain((1, 2))
    heavy = Problem(
        tensors=problem.tensors,
        ops=problem.ops,
        base_bytes=problem.base_bytes,
        backward_step=problem.backward_step,
        optimizer_peak_bytes=100,
        step_ns=problem.step_ns,
    )

    timeline = simulate(heavy, frozenset({0, 1}))

    assert 100 == timeline.peak_bytes
    assert timeline.peak is None


def test_a_plan_that_drops_what_cannot_come_back_is_refused() -> None:
    problem = chain((1, 2))
    lost = problem.tensors[0]
    broken = Problem(
        tensors=(
            Tensor(
                index=0,
                value=0,
                size_bytes=1,
                producer=None,
                may_keep=True,
                must_keep=True,
                free_step=lost.free_step,
                uses=lost.uses,
                consumers=lost.consumers,
            ),
            problem.tensors[1],
        ),
        ops=problem.ops,
        base_bytes=problem.base_bytes,
        backward_step=problem.backward_step,
        optimizer_peak_bytes=0,
        step_ns=0,
    )

    with pytest.raises(ValueError, match="neither kept nor replayable"):
        simulate(broken, frozenset({1}))


@settings(max_examples=300)
@given(problems(), st.data())
def test_the_timeline_agrees_with_acting_the_runtime_out(problem: Problem, data: st.DataObject) -> None:
    choices = [tensor.index for tensor in problem.choices]
    chosen = data.draw(st.sets(st.sampled_from(choices)) if choices else st.just(set()))
    kept = problem.must_keep | chosen
    timeline = simulate_or_none(problem, kept)
    if timeline is None:
        return

    assert run_slowly(problem, kept) == (timeline.peak_bytes, timeline.recompute_ns)


def simulate_or_none(problem: Problem, kept: frozenset[int]):  # type: ignore[no-untyped-def]
    """The timeline, or None where the plan drops something that cannot come back."""
    try:
        return simulate(problem, kept)
    except ValueError:
        return None


def test_some_random_problem_has_plans_that_differ() -> None:
    """Guards the generator: a strategy that only made trivial problems would prove nothing."""
    problem = chain((1, 2, 4))

    assert 8 == len(list(all_plans(problem)))
    assert {simulate(problem, kept).recompute_ns for kept in all_plans(problem)} == {0, 10, 11, 12, 21, 22, 23, 33}
