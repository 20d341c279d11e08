"""A plan read back onto its step is the solution that it was made of; one changed by hand is refused in words."""

from dataclasses import replace

import pytest

pytest.importorskip("ortools")

from planner.errors import PlanMismatchError
from planner.plan import Anchor, Plan, Retention
from planner.planning import check_plan
from planner.problem import build_problem
from planner.simulation.planned import Held, held, planned_timeline
from tests.reports import DEVICE, MB, layered, plan_of, small_plan
from tests.steps import Forward, step

GRAPH = layered()
PROBLEM = build_problem(GRAPH, DEVICE, host_budget_bytes=1000 * MB)


def changed(plan: Plan, place: int, **changes: object) -> Plan:
    decisions = list(plan.decisions)
    decisions[place] = replace(decisions[place], **changes)  # type: ignore[arg-type]
    return replace(plan, decisions=tuple(decisions))


@pytest.mark.parametrize("budget_mb", [170, 1000])
@pytest.mark.parametrize("host_budget_mb", [0, 1000])
def test_the_timeline_of_a_plan_is_what_it_predicts(budget_mb: int, host_budget_mb: int) -> None:
    plan = plan_of(GRAPH, budget=budget_mb * MB, host_budget=host_budget_mb * MB)

    timeline = planned_timeline(plan, PROBLEM, held(plan, GRAPH, PROBLEM))

    predicted = plan.predicted
    assert predicted.peak_bytes == timeline.peak_bytes
    assert predicted.host_bytes == timeline.traffic.host_bytes
    assert (round(1e9 * predicted.recompute_s), round(1e9 * predicted.stall_s)) == (
        timeline.recompute_ns,
        timeline.stall_ns,
    )


def test_a_plan_holds_what_it_saves_or_offloads() -> None:
    plan = small_plan()
    by_retention = {retention: plan.count(retention) for retention in Retention}

    found = held(plan, GRAPH, PROBLEM)

    assert min(by_retention.values()) > 0
    assert by_retention[Retention.OFFLOAD] == len(found.offloaded)
    assert by_retention[Retention.SAVE] + len(plan.anchors) == len(found.kept - found.offloaded)
    assert found.offloaded < found.kept


def test_decisions_that_do_not_cover_the_step_are_refused() -> None:
    plan = small_plan()
    short = replace(plan, decisions=plan.decisions[1:])
    other = changed(plan, 0, ordinal=77)

    with pytest.raises(PlanMismatchError, match=r"no decision about saved tensor 0 of layers.0.a"):
        held(short, GRAPH, PROBLEM)
    with pytest.raises(PlanMismatchError, match="no decision"):
        held(other, GRAPH, PROBLEM)
    with pytest.raises(PlanMismatchError, match=r"saved tensor 77 of layers.0.a .* cannot be found in the step"):
        held(replace(plan, decisions=(*plan.decisions, other.decisions[0])), GRAPH, PROBLEM)


def test_an_anchor_that_the_step_has_not_is_refused() -> None:
    plan = small_plan()
    anchor = Anchor(module_fqn="layers.9", module_call=0, side="output", position=0, op="", size_bytes=1)

    with pytest.raises(PlanMismatchError, match=r"keeps output 0 of layers.9, which the step has not"):
        held(replace(plan, anchors=(anchor,)), GRAPH, PROBLEM)


def test_what_may_not_leave_or_come_again_is_refused() -> None:
    plan = changed(small_plan(), 0, retention=Retention.OFFLOAD)
    must = replace(PROBLEM, tensors=tuple(replace(t, must_keep=True) for t in PROBLEM.tensors))

    with pytest.raises(PlanMismatchError, match="cannot leave for the host"):
        held(plan, GRAPH, build_problem(GRAPH, DEVICE))
    with pytest.raises(PlanMismatchError, match="cannot be recomputed"):
        held(small_plan(), GRAPH, must)


def test_a_plan_that_leaves_replays_nothing_to_start_from_is_refused() -> None:
    nowhere = replace(PROBLEM, tensors=tuple(replace(t, producer=None) for t in PROBLEM.tensors))

    with pytest.raises(PlanMismatchError, match="drops what cannot come back"):
        planned_timeline(small_plan(), nowhere, Held(kept=frozenset(), offloaded=frozenset()))


def test_a_tensor_stays_if_one_decision_about_it_saves_and_leaves_if_one_offloads() -> None:
    graph, _ = step(
        [Forward(name="aten.mm.default", module="a", sizes={"x": 2 * MB}, saved=("x",))], also_saved=[("x", "b")]
    )
    problem = build_problem(graph, DEVICE, host_budget_bytes=1000 * MB)
    plan = plan_of(graph, budget=1000 * MB)

    def found(first: Retention, second: Retention) -> tuple[bool, bool]:
        what = held(changed(changed(plan, 0, retention=first), 1, retention=second), graph, problem)
        return 0 in what.kept, 0 in what.offloaded

    assert 2 == len(plan.decisions)
    assert (True, False) == found(Retention.SAVE, Retention.OFFLOAD)
    assert (True, True) == found(Retention.RECOMPUTE, Retention.OFFLOAD)
    assert (True, False) == found(Retention.RECOMPUTE, Retention.SAVE)
    assert (False, False) == found(Retention.RECOMPUTE, Retention.RECOMPUTE)


def test_a_plan_for_another_step_is_refused() -> None:
    plan = small_plan()

    check_plan(plan, GRAPH, path="model.yaml")
    with pytest.raises(PlanMismatchError, match=r"another step than model\.yaml describes"):
        check_plan(plan, layered(5), path="model.yaml")
