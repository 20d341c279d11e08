"""A plan's decisions on the problem of its step again: what `planner.planning.make_plan` wrote down, read back.

Whether a plan belongs to a step is not asked here; see `planner.planning.check_plan`.
"""

from dataclasses import dataclass

from planner.errors import PlanMismatchError
from planner.graph import OpGraph, StorageKind, saved_tensors, storages, values
from planner.plan import Anchor, Decision, Plan, Retention
from planner.problem import Problem
from planner.simulation.liveness import Timeline, demand_schedule, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Positions in `Problem.tensors` of what a plan holds from forward, and of those of them that lie on the host."""

    kept: frozenset[int]
    offloaded: frozenset[int]


def held(plan: Plan, graph: OpGraph, problem: Problem) -> Held:
    """What the plan holds. Where decisions about one tensor differ, it stays if one saves it, leaves if one offloads.

    Args:
        plan: for the graph's step.
        graph: of the step.
        problem: made from the graph, with a link if the plan offloads.

    Raises:
        PlanMismatchError: the plan is not about what the step saves, or drops or offloads what no plan can; it was
            changed by hand.
    """
    decisions = _by_value(plan, graph)
    kept, offloaded = _anchored(plan, graph, problem), set()
    for tensor in problem.tensors:
        retentions = {decision.retention for decision in decisions.get(tensor.value, ())}
        if not tensor.uses:
            continue
        if retentions == {Retention.RECOMPUTE}:
            if tensor.must_keep:
                raise _cannot("be recomputed", decisions[tensor.value][0])
            continue
        kept.add(tensor.index)
        if Retention.OFFLOAD in retentions and Retention.SAVE not in retentions:
            if problem.link is None or tensor.packing is None:
                raise _cannot("leave for the host", decisions[tensor.value][0])
            offloaded.add(tensor.index)
    return Held(kept=frozenset(kept), offloaded=frozenset(offloaded))


def planned_timeline(plan: Plan, problem: Problem, what: Held) -> Timeline:
    """The step under the plan.

    Raises:
        PlanMismatchError: the plan drops what cannot be recomputed from what it keeps; it was changed by hand.
    """
    try:
        schedule = demand_schedule(problem, what.kept)
    except ValueError as error:
        raise PlanMismatchError(f"the plan drops what cannot come back: {error}; {_WAY_OUT}") from error
    return simulate(problem, what.kept, schedule, offloaded=what.offloaded, staging=plan.staging)


_WAY_OUT = "undo what was changed in the plan, or solve again"


def _by_value(plan: Plan, graph: OpGraph) -> dict[int, list[Decision]]:
    left = {(d.module_fqn, d.module_call, d.ordinal): d for d in plan.decisions}
    found: dict[int, list[Decision]] = {}
    for saved in saved_tensors(graph):
        if storages(graph)[values(graph)[saved.value].storage].kind is not StorageKind.ACTIVATION:
            continue
        decision = left.pop((saved.module_fqn, saved.module_call, saved.ordinal), None)
        if decision is None:
            where = saved.module_fqn or "the model"
            raise PlanMismatchError(
                f"the plan has no decision about saved tensor {saved.ordinal} of {where}; {_WAY_OUT}"
            )
        found.setdefault(saved.value, []).append(decision)
    for decision in left.values():
        raise _cannot("be found in the step", decision)
    return found


def _anchored(plan: Plan, graph: OpGraph, problem: Problem) -> set[int]:
    at = {values(graph)[tensor.value].boundary: tensor.index for tensor in problem.tensors if tensor.may_keep}
    found = set()
    for anchor in plan.anchors:
        name = f"{anchor.module_fqn}:{anchor.module_call}:{anchor.side}:{anchor.position}"
        if name not in at:
            raise PlanMismatchError(f"the plan keeps {_in_words(anchor)}, which the step has not; {_WAY_OUT}")
        found.add(at[name])
    return found


def _in_words(anchor: Anchor) -> str:
    return f"{anchor.side} {anchor.position} of {anchor.module_fqn or 'the model'}"


def _cannot(what: str, decision: Decision) -> PlanMismatchError:
    return PlanMismatchError(
        f"saved tensor {decision.ordinal} of {decision.module_fqn or 'the model'} ({decision.op}) cannot {what}; "
        f"{_WAY_OUT}"
    )
