"""What the solver says of copies to the host, against every plan of small random steps."""

from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from planner.problem import Problem
from planner.simulation.liveness import replayed_ops, simulate
from planner.solving.model import RetentionModel, replay_windows
from tests.problems import chain_problems, problems, stagings
from tests.simulation.test_transfers import random_plan


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
    for tensor in problem.tensors:
        model.cp.add(model.keep(tensor.index) == int(tensor.index in kept))
        model.cp.add(model.host(tensor.index) == int(tensor.index in offloaded))
    for op in problem.ops:
        model.cp.add(model.replay(op.index) == int(op.index in replayed))
    model.cp.minimize(model.add_link())

    solver = cp_model.CpSolver()
    assert cp_model.OPTIMAL == solver.solve(model.cp)
    assert solver.objective_value <= timeline.stall_ns
