"""Plans of all sorts for a live model."""

import copy
import random
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from planner.blocks import BlockIndex, block_levels
from planner.device import load_device
from planner.errors import ReplayError
from planner.graph import OUTSIDE, OpGraph, modules, saved_tensors, values
from planner.plan import Decision, Plan, PlanModel, Prediction, Proof, Retention
from planner.planning import make_plan, smallest_peak
from planner.problem import Problem, build_problem
from planner.runtime.program import make_program, place_of
from planner.runtime.tape import TapeRecorder
from planner.simulation.liveness import simulate
from planner.solving.baselines import region_inputs
from planner.solving.search import Limits, Solution, Status, solve
from planner.tracing import Kernels, trace_module


@dataclass(frozen=True)
class Subject:
    """The traced step of a live model."""

    graph: OpGraph
    problem: Problem


def study(model: nn.Module, kwargs: Any = None, args: tuple[Any, ...] = ()) -> Subject:
    graph = trace_module(model, args, kwargs, kernels=Kernels.CPU, optimizer="none")
    return Subject(graph, build_problem(graph, load_device("h100-80gb")))


def plan_that_keeps(subject: Subject, kept: Set[int]) -> Plan:
    """The plan that keeps these tensors; a ValueError says that it is not valid."""
    solution = Solution(
        status=Status.FEASIBLE,
        kept=frozenset(kept),
        timeline=simulate(subject.problem, kept),
        bound_ns=0,
        gap=1.0,
        wall_s=0.0,
    )
    return make_plan(subject.graph, subject.problem, solution, (), budget_bytes=10**12, device="test")


def keep_all(subject: Subject) -> frozenset[int]:
    return frozenset(t.index for t in subject.problem.tensors if t.uses)


def keep_least(subject: Subject) -> frozenset[int]:
    return subject.problem.must_keep


def keep_block_inputs(subject: Subject) -> frozenset[int]:
    levels = block_levels(modules(subject.graph))
    problem = subject.problem
    block_of = BlockIndex(levels[0] if levels else ())
    return region_inputs(problem, lambda op: block_of(problem.ops[op].module_fqn))


def keep_some(subject: Subject, share: float, seed: int) -> frozenset[int]:
    """A random part of what may be kept."""
    chance = random.Random(seed)
    problem = subject.problem
    return problem.must_keep | {t.index for t in problem.choices if chance.random() < share}


def offload(plan: Plan, chosen: Callable[[], bool] = lambda: True) -> Plan:
    """The plan with what it saves, or a part of it, offloaded."""
    return replace(
        plan,
        decisions=tuple(
            replace(decision, retention=Retention.OFFLOAD)
            if decision.module_fqn != OUTSIDE and decision.retention is Retention.SAVE and chosen()
            else decision
            for decision in plan.decisions
        ),
    )


def offload_some(subject: Subject, plan: Plan, share: float, seed: int) -> Plan:
    """The plan with a random part of the values that it saves offloaded, whoever saves them."""
    chance = random.Random(seed)
    chosen = {value for value in range(len(values(subject.graph))) if chance.random() < share}
    places = {
        (saved.module_fqn, saved.module_call, saved.ordinal)
        for saved in saved_tensors(subject.graph)
        if saved.value in chosen
    }
    moved = offload(plan).decisions
    return replace(
        plan,
        decisions=tuple(
            after if place_of(before) in places else before for before, after in zip(plan.decisions, moved, strict=True)
        ),
    )


def offload_all(subject: Subject) -> Plan:
    return offload(plan_that_keeps(subject, keep_all(subject)))


def mixed(subject: Subject, seed: int) -> Plan:
    chance = random.Random(seed)
    return offload(plan_that_keeps(subject, keep_some(subject, 0.6, seed)), lambda: chance.random() < 0.5)


_LONGER = (1, 8, 64)  # there is a plan, and a busy machine only takes longer to find it


def solved(subject: Subject, places: tuple[float, ...], time_s: float) -> Iterator[tuple[str, Plan]]:
    """The solver's plans at budgets between the smallest peak and that of keeping everything."""
    problem = subject.problem
    highest = simulate(problem, keep_all(subject)).peak_bytes
    lowest = smallest_peak(subject.graph, load_device("h100-80gb"), time_s=time_s).timeline.peak_bytes
    for place in places:
        budget_bytes = round(lowest + place * (highest - lowest))
        for longer in _LONGER:
            solution = solve(problem, budget_bytes=budget_bytes, limits=Limits(time_s=longer * time_s), known=[])
            if solution.kept is not None:
                yield f"solved {place:.0%}", plan_that_keeps(subject, solution.kept)
                break


def plain_plans(subject: Subject) -> Iterator[tuple[str, Plan]]:
    yield "save all", plan_that_keeps(subject, keep_all(subject))
    yield "save least", plan_that_keeps(subject, keep_least(subject))
    yield "block inputs", plan_that_keeps(subject, keep_block_inputs(subject))


def random_plans(subject: Subject, shares: tuple[float, ...]) -> Iterator[tuple[str, Plan]]:
    for seed, share in enumerate(shares):
        yield f"random {share:.0%}", plan_that_keeps(subject, keep_some(subject, share, seed))


def recorded(model: nn.Module, *args: Any, **kwargs: Any) -> Plan:
    """A plan that drops what can be replayed, from a live forward: for what acts on real tensors only, as
    autocast does.
    """
    inputs = [item for item in (*args, *kwargs.values()) if isinstance(item, Tensor)]
    recorder = TapeRecorder(model, inputs)
    before = copy.deepcopy(model.state_dict())
    with (
        recorder.watching(),
        torch.autograd.graph.saved_tensors_hooks(recorder.note_packed, lambda _: None),  # type: ignore[arg-type, return-value]
    ):
        output = model(*args, **kwargs)
    model.load_state_dict(before)
    tape = recorder.tape(output, {})
    dropped = [not packed.is_static for packed in tape.packed]
    for place, packed in enumerate(tape.packed):
        alone = [other.window.value == packed.window.value for other in tape.packed]
        try:
            make_program(tape, [a and d for a, d in zip(alone, dropped, strict=True)], {})
        except ReplayError:
            dropped[place] = False
    return Plan(
        model=PlanModel(
            name="live",
            fingerprint="",
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            torch=torch.__version__.partition("+")[0],
            attention="flash",
        ),
        device="test",
        budget_bytes=1,
        predicted=Prediction(
            peak_bytes=1, peak_at="", static_bytes=0, host_bytes=0, step_s=1.0, recompute_s=0.0, stall_s=0.0
        ),
        solver=Proof(status="feasible", gap=1.0, bound_s=0.0),
        baselines=(),
        decisions=tuple(
            Decision(
                module_fqn=packed.module_fqn,
                module_call=packed.module_call,
                ordinal=packed.ordinal,
                op=packed.op,
                shape=packed.window.shape,
                dtype=str(packed.window.dtype).removeprefix("torch."),
                retention=Retention.RECOMPUTE if is_dropped else Retention.SAVE,
            )
            for packed, is_dropped in zip(tape.packed, dropped, strict=True)
            if not packed.is_static
        ),
        anchors=(),
    )
