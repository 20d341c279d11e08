"""Reports about plans of small steps, for the tests of text, pages and pictures."""

from dataclasses import replace
from functools import cache

from planner.answers.plans import report_on
from planner.graph import OpGraph, StaticMemory, modules, ops, saved_tensors, step_info
from planner.plan import Plan
from planner.planning import solve_graph
from planner.reporting.report import Report
from planner.tradeoff import Frontier, FrontierPoint
from tests.steps import UNIT_DEVICE, Forward, step

MB = 1_000_000
STATIC = StaticMemory(
    parameters_bytes=30 * MB,
    gradients_bytes=0,
    optimizer_bytes=60 * MB,
    optimizer_transient_bytes=10 * MB,
    unsharded_bytes=0,
)
# A microsecond for every op, so that an op takes time though nothing moves.
DEVICE = replace(UNIT_DEVICE, launch_s=1e-6)


def layered(layers: int = 4, *, name: str = "small") -> OpGraph:
    """A chain of blocks that each save two results of 20 MB, beside static memory."""
    forward = []
    for layer in range(layers):
        before = (f"b{layer - 1}",) if layer else ()
        for part, reads in (("a", before), ("b", (f"a{layer}",))):
            forward.append(
                Forward(
                    name="aten.mm.default",
                    module=f"layers.{layer}.{part}",
                    sizes={f"{part}{layer}": 20 * MB},
                    reads=reads,
                    ns=10 * MB,
                    saved=(f"{part}{layer}",),
                )
            )
    graph, _ = step(forward, blocks=[f"layers.{layer}" for layer in range(layers)], backward_ns=10 * MB)
    graph.graph["step"] = replace(step_info(graph), static=STATIC, model=name, notes=("something is assumed",))
    return graph


def renamed(graph: OpGraph, word: str) -> OpGraph:
    """The same step with every module and op called something else."""
    graph.graph["modules"] = tuple(replace(module, class_name=word) for module in modules(graph))
    graph.graph["saved_tensors"] = tuple(
        replace(saved, module_fqn=f"{saved.module_fqn}.{word}", op=word) for saved in saved_tensors(graph)
    )
    for op in ops(graph):
        graph.nodes[op.step]["op"] = replace(op, name=word, module_fqn=f"{op.module_fqn}.{word}")
    return graph


@cache
def small_plan() -> Plan:
    """A plan for `layered()` that saves, recomputes, offloads and waits."""
    return plan_of(layered(), budget=170 * MB)


def plan_of(graph: OpGraph, *, budget: int, host_budget: int = 1000 * MB) -> Plan:
    """The best plan within the budget."""
    return solve_graph(graph, budget=budget, host_budget=host_budget, device=DEVICE).plan


def report_of(graph: OpGraph, plan: Plan, *, spec_file: str = "small.yaml", notes: tuple[str, ...] = ()) -> Report:
    """The report about a plan, with a frontier of three budgets."""
    found = report_on(plan, graph, DEVICE, plan_file="small.plan.yaml", spec_file=spec_file, trace_s=1.0, notes=notes)
    return replace(found, frontier=frontier(plan))


def frontier(plan: Plan) -> Frontier:
    points = tuple(
        FrontierPoint(
            budget_bytes=size_mb * MB,
            peak_bytes=size_mb * MB - 1,
            recompute_s=overhead * 0.25,
            stall_s=0.0,
            overhead=overhead,
            bound_s=0.0,
            gap=0.0,
            status="optimal",
            solve_s=0.1,
        )
        for size_mb, overhead in ((150, 0.3), (200, 0.1), (250, 0.0))
    )
    return Frontier(
        model=plan.model.name,
        device=plan.device,
        device_memory_bytes=1000 * MB,
        static_bytes=100 * MB,
        step_s=0.25,
        smallest_peak_bound_bytes=100 * MB,
        budgets_bytes=tuple(point.budget_bytes for point in points),
        points=points,
        baselines=(),
        peers=(),
        notes=(),
    )
