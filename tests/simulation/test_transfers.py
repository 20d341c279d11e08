"""Copies to the host and back: the simulation against acting the step out, and the ideal against both."""

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.problem import Problem
from planner.simulation.liveness import ideal_timeline, simulate
from tests.problems import Acted, OffloadedRun, all_offloads, chain_problems, problems, stagings
from tests.simulation.test_liveness import simulate_or_none


def random_plan(problem: Problem, data: st.DataObject) -> tuple[frozenset[int], frozenset[int]] | None:
    """(kept, offloaded), or None where the plan drops something that cannot come back."""
    choices = [tensor.index for tensor in problem.choices]
    kept = problem.must_keep | data.draw(st.sets(st.sampled_from(choices)) if choices else st.just(set()))
    if simulate_or_none(problem, kept) is None:
        return None
    return kept, data.draw(st.sampled_from(list(all_offloads(problem, kept))))


@settings(max_examples=400)
@given(
    st.one_of(problems(max_movable=6), chain_problems(max_movable=8).map(lambda made: made.problem)),
    st.data(),
)
def test_the_simulation_agrees_with_acting_the_step_out(problem: Problem, data: st.DataObject) -> None:
    plan = random_plan(problem, data)
    if plan is None:
        return
    kept, offloaded = plan
    staging = data.draw(stagings(problem))

    timeline = simulate(problem, kept, offloaded=offloaded, staging=staging)

    found = Acted(
        peak_bytes=timeline.peak_bytes,
        recompute_ns=timeline.recompute_ns,
        forward_stall_ns=timeline.traffic.forward_stall_ns,
        backward_stall_ns=timeline.traffic.backward_stall_ns,
        host_bytes=timeline.traffic.host_bytes,
    )
    assert OffloadedRun(problem, kept, offloaded, staging).act() == found


@settings(max_examples=300)
@given(
    st.one_of(problems(max_movable=6), chain_problems(max_movable=8).map(lambda made: made.problem)),
    st.data(),
)
def test_nothing_is_alive_ideally_that_is_not_alive_in_the_simulation(problem: Problem, data: st.DataObject) -> None:
    plan = random_plan(problem, data)
    if plan is None:
        return
    kept, offloaded = plan
    timeline = simulate(problem, kept, offloaded=offloaded, staging=data.draw(stagings(problem)))

    ideal = ideal_timeline(problem, kept, offloaded)

    assert ideal.points == timeline.points
    assert all(low <= high for low, high in zip(ideal.live_bytes, timeline.live_bytes, strict=True))
    assert ideal.traffic.host_bytes == timeline.traffic.host_bytes
    assert 0 == ideal.stall_ns


@settings(max_examples=300)
@given(
    st.one_of(problems(max_movable=6), chain_problems(max_movable=8).map(lambda made: made.problem)),
    st.data(),
)
def test_no_plan_waits_longer_than_its_copies_take(problem: Problem, data: st.DataObject) -> None:
    plan = random_plan(problem, data)
    if plan is None:
        return
    kept, offloaded = plan
    timeline = simulate(problem, kept, offloaded=offloaded, staging=data.draw(stagings(problem)))
    assert problem.link is not None
    copies_ns = sum(problem.link.copy_ns(problem.tensors[index].size_bytes) for index in offloaded)

    assert timeline.traffic.forward_stall_ns <= copies_ns
    assert timeline.traffic.backward_stall_ns <= copies_ns
