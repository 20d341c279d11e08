"""What is said about a plan: the summary of a solve, and the report of a plan on its traced step.

It needs the "solve" extra.
"""

from pathlib import Path

from planner import __version__
from planner.device import DeviceProfile
from planner.graph import OpGraph, step_info
from planner.plan import Plan
from planner.planning import Outcome, check_plan
from planner.problem import build_problem
from planner.reporting.link import summarize_link
from planner.reporting.memory import memory_over_time
from planner.reporting.report import Report, Versions, differences
from planner.reporting.summary import PlanSummary, decisions_by_module, summarize_plan
from planner.simulation.allocations import planned_step
from planner.simulation.breakdown import breakdown
from planner.simulation.planned import held, planned_timeline
from planner.simulation.reserved import reserved

# Rows in the list of groups of alike tensors.
_GROUPS = 100


def summary_of(
    plan: Plan, outcome: Outcome, graph: OpGraph, *, memory_bytes: int, trace_s: float, path: Path
) -> PlanSummary:
    """The summary of a plan that was just solved for; `memory_bytes` is the device's, `path` where the plan is."""
    return summarize_plan(
        plan,
        graph,
        trace_s=trace_s,
        solve_s=outcome.solve_s,
        rehearse_s=outcome.rehearse_s,
        path=path,
        link=summarize_link(outcome.timeline, outcome.problem, graph),
        reserved=reserved(
            planned_step(graph, outcome.problem, outcome.kept, outcome.timeline), limit_bytes=memory_bytes
        ),
    )


def report_on(
    plan: Plan,
    graph: OpGraph,
    profile: DeviceProfile,
    *,
    plan_file: str,
    spec_file: str,
    trace_s: float,
    notes: tuple[str, ...] = (),
) -> Report:
    """The report about a plan on a traced step, but for the frontier.

    Raises:
        PlanMismatchError: the plan is not for this step, or says what cannot be done.
    """
    check_plan(plan, graph, path=spec_file)
    # As much host memory as the plan takes, and tensors of any size: what leaves is decided.
    problem = build_problem(
        graph,
        profile,
        host_budget_bytes=plan.predicted.host_bytes or profile.host_memory_bytes,
        smallest_offload_bytes=0,
    )
    what = held(plan, graph, problem)
    timeline = planned_timeline(plan, problem, what)
    summary = summarize_plan(
        plan,
        graph,
        trace_s=trace_s,
        solve_s=0.0,
        rehearse_s=0.0,
        path=Path(plan_file),
        link=summarize_link(timeline, problem, graph),
        top=_GROUPS,
    )
    return Report(
        summary=summary,
        memory=memory_over_time(timeline, breakdown(graph, problem, what, timeline), problem, graph),
        modules=decisions_by_module(plan, graph),
        frontier=None,
        plan_file=plan_file,
        spec_file=spec_file,
        versions=Versions(planner=__version__, torch=step_info(graph).torch_version, torch_of_plan=plan.model.torch),
        notes=(*notes, *differences(plan, timeline), *summary.notes),
    )
