"""Solving and rehearsing take turns until the runtime stays within the budget, or says honestly that it does not."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import planner
from planner import planning
from planner.errors import InfeasibleError, SolveInterrupted
from planner.graph import OpGraph
from planner.plan import Plan
from planner.planning import Outcome, solve_graph
from planner.runtime.rehearsal import rehearse
from planner.simulation.rehearsal import Rehearsal
from planner.solving.search import Limits
from planner.spec import from_mapping
from planner.tracing import Step, prepare_module


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


@pytest.fixture(scope="module")
def step() -> Step:
    return prepare_module(nn.Sequential(*(Block(32) for _ in range(4))), (torch.randn(512, 32),))


@pytest.fixture(scope="module")
def graph(step: Step) -> OpGraph:
    return planner.trace(step)


@pytest.fixture(scope="module")
def budget_bytes(graph: OpGraph) -> int:
    """Half way between the lowest baseline and no checkpointing."""
    peaks = [row.peak_bytes for row in solve_graph(graph, budget=2**60).plan.baselines]
    return (min(peaks) + max(peaks)) // 2


def rehearsal(peak_bytes: int, peak_at: str = "backward, something of a test") -> Rehearsal:
    return Rehearsal(peak_bytes=peak_bytes, peak_at=peak_at, live_bytes=(), replays=0, fallbacks=0, wall_s=0.25)


def heavier(by_bytes: int, seen: list[Plan]) -> Callable[[Plan], Rehearsal]:
    """A rehearsal in which every plan takes this much more than it was simulated to take."""

    def run(plan: Plan) -> Rehearsal:
        seen.append(plan)
        return rehearsal(plan.predicted.peak_bytes + by_bytes)

    return run


def test_the_plan_predicts_what_was_rehearsed(step: Step, graph: OpGraph, budget_bytes: int) -> None:
    lines: list[str] = []

    outcome = solve_graph(graph, budget=budget_bytes, rehearse=partial(rehearse, step), report=lines.append)

    assert outcome.rehearsal is not None
    assert outcome.timeline.peak_bytes == outcome.rehearsal.peak_bytes == outcome.plan.predicted.peak_bytes
    assert lines[-1].startswith("rehearsed: peak ")
    assert "from the simulation" not in lines[-1]


@pytest.mark.filterwarnings("ignore")
def test_a_sharded_step_is_rehearsed_as_it_is_counted() -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4}
    sharded = planner.prepare(
        from_mapping(
            {
                "model": {"transformers": "LlamaForCausalLM", "config": {**sizes, "vocab_size": 96}},
                "batch": {"micro_batch": 8, "sequence_length": 64},
                "precision": {"parameters": "float32", "compute": "bfloat16"},
                "parallel": {"fsdp": 4},
            }
        )
    )
    traced = planner.trace(sharded)
    peaks = [row.peak_bytes for row in solve_graph(traced, budget=2**60).plan.baselines]
    half_way_bytes = (min(peaks) + max(peaks)) // 2

    outcome = solve_graph(traced, budget=half_way_bytes, rehearse=partial(planner.rehearse, sharded))

    assert outcome.rehearsal is not None
    assert 0 < outcome.rehearsal.replays
    assert outcome.timeline.peak_bytes == outcome.rehearsal.peak_bytes == outcome.plan.predicted.peak_bytes
    assert outcome.plan.predicted.peak_bytes <= half_way_bytes


def test_a_round_after_the_time_is_up_still_finds_a_plan_made_by_hand(graph: OpGraph, budget_bytes: int) -> None:
    found = solve_graph(graph, budget=budget_bytes, limits=Limits(time_s=1e-9), rehearse=heavier(100_000, [])).plan

    assert found.predicted.peak_bytes <= budget_bytes
    assert "feasible" == found.solver.status


def test_what_precedes_the_search_counts_for_the_time_limit(
    graph: OpGraph, budget_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Limits] = []
    solve = planning.solve

    def slow(*_: object) -> None:
        time.sleep(0.02)

    def watched(*arguments: Any, limits: Limits, **options: Any) -> Any:
        given.append(limits)
        return solve(*arguments, limits=limits, **options)

    monkeypatch.setattr(planning, "chain_solver", slow)
    monkeypatch.setattr(planning, "solve", watched)
    found = solve_graph(graph, budget=budget_bytes, limits=Limits(time_s=0.01)).plan

    assert [0.0] == [limits.time_s for limits in given]
    assert found.predicted.peak_bytes <= budget_bytes


def test_a_rehearsal_changes_nothing_of_a_plan_that_does_what_it_should(
    step: Step, graph: OpGraph, budget_bytes: int
) -> None:
    alone = solve_graph(graph, budget=budget_bytes)

    assert alone.rehearsal is None
    assert alone.plan == solve_graph(graph, budget=budget_bytes, rehearse=partial(rehearse, step)).plan


def test_a_plan_that_takes_more_than_it_should_is_solved_again(graph: OpGraph, budget_bytes: int) -> None:
    seen: list[Plan] = []
    lines: list[str] = []
    excess_bytes = 100_000

    found = solve_graph(graph, budget=budget_bytes, rehearse=heavier(excess_bytes, seen), report=lines.append)

    first, second = seen
    assert second.predicted.peak_bytes <= budget_bytes - excess_bytes < first.predicted.peak_bytes
    assert second.predicted.peak_bytes + excess_bytes == found.plan.predicted.peak_bytes <= budget_bytes
    assert "backward, something of a test" == found.plan.predicted.peak_at
    assert found.timeline.peak_bytes == second.predicted.peak_bytes
    assert (budget_bytes, 0.5) == (found.plan.budget_bytes, found.rehearse_s)
    assert any(f"{excess_bytes:+,} bytes from the simulation" in line for line in lines)


def test_what_is_proven_of_a_later_plan_is_for_the_budget_that_was_given(graph: OpGraph, budget_bytes: int) -> None:
    alone = solve_graph(graph, budget=budget_bytes).plan

    found = solve_graph(graph, budget=budget_bytes, rehearse=heavier(100_000, [])).plan

    assert alone.solver.bound_s == found.solver.bound_s
    assert alone.predicted.recompute_s <= found.predicted.recompute_s
    gap = (found.predicted.recompute_s - found.solver.bound_s) / found.predicted.recompute_s
    assert gap == pytest.approx(found.solver.gap, abs=1e-5)
    assert ("optimal" if found.solver.gap <= Limits().gap else "feasible") == found.solver.status


def test_a_plan_below_its_budget_is_not_found_again(graph: OpGraph) -> None:
    """With a budget far above what the step takes, the excess alone would leave it there."""
    everything = solve_graph(graph, budget=2**40).plan.predicted.peak_bytes
    seen: list[Plan] = []

    found = solve_graph(graph, budget=everything + 50_000, rehearse=heavier(100_000, seen))

    assert 2 == len(seen)
    assert found.plan.predicted.peak_bytes <= everything + 50_000


def test_after_three_rounds_it_is_an_error_with_the_lowest_peak(graph: OpGraph, budget_bytes: int) -> None:
    peaks = iter((budget_bytes + 3_000, budget_bytes + 1_000, budget_bytes + 2_000, 0))
    rounds: list[Plan] = []

    def run(plan: Plan) -> Rehearsal:
        rounds.append(plan)
        return rehearsal(next(peaks))

    with pytest.raises(InfeasibleError, match="in 3 rounds the lowest rehearsed peak is") as caught:
        solve_graph(graph, budget=budget_bytes, rehearse=run)

    assert 3 == len(rounds)
    error = caught.value
    assert (budget_bytes, budget_bytes + 1_000, False) == (
        error.budget_bytes,
        error.smallest_peak_bytes,
        error.is_proven,
    )
    assert error.static_bytes <= error.bound_bytes <= error.smallest_peak_bytes


def test_an_excess_that_leaves_no_plan_is_an_error_for_the_budget_that_was_given(
    graph: OpGraph, budget_bytes: int
) -> None:
    with pytest.raises(InfeasibleError, match="in 1 round the lowest") as caught:
        solve_graph(graph, budget=budget_bytes, rehearse=heavier(budget_bytes, []))

    assert budget_bytes == caught.value.budget_bytes
    assert isinstance(caught.value.__cause__, InfeasibleError)


def test_a_rehearsal_below_the_simulation_is_believed_too(graph: OpGraph, budget_bytes: int) -> None:
    outcome: Outcome = solve_graph(graph, budget=budget_bytes, rehearse=heavier(-1_000, []))

    assert outcome.timeline.peak_bytes - 1_000 == outcome.plan.predicted.peak_bytes


def test_a_forward_that_fell_back_is_reported(graph: OpGraph, budget_bytes: int) -> None:
    lines: list[str] = []

    solve_graph(
        graph,
        budget=budget_bytes,
        rehearse=lambda plan: replace(rehearsal(plan.predicted.peak_bytes), fallbacks=1),
        report=lines.append,
    )

    assert "1 forwards fell back to keeping everything" in lines[-1]


def interrupt(*_: object, **__: object) -> Rehearsal:
    raise KeyboardInterrupt


def test_an_interrupt_before_the_search_leaves_a_plan_made_by_hand(
    graph: OpGraph, budget_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "chain_solver", interrupt)

    with pytest.raises(SolveInterrupted) as caught:
        solve_graph(graph, budget=budget_bytes)

    assert caught.value.plan is not None
    assert caught.value.plan.predicted.peak_bytes <= budget_bytes == caught.value.plan.budget_bytes
    assert ("feasible", 1.0, 0.0) == (
        caught.value.plan.solver.status,
        caught.value.plan.solver.gap,
        caught.value.plan.solver.bound_s,
    )


def test_an_interrupt_while_the_smallest_peak_is_looked_for_has_no_plan(
    graph: OpGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "lowest_peak", interrupt)

    with pytest.raises(SolveInterrupted) as caught:
        solve_graph(graph, budget=1)

    assert caught.value.plan is None


def test_a_plan_over_budget_in_its_rehearsal_is_not_the_best_so_far(
    graph: OpGraph, budget_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search of the second round has a plan for a smaller budget, with what the first one proved."""
    first = solve_graph(graph, budget=budget_bytes).plan
    seen: list[Plan] = []

    def run(plan: Plan) -> Rehearsal:
        if seen:
            raise KeyboardInterrupt
        seen.append(plan)
        return rehearsal(plan.predicted.peak_bytes + 100_000)

    with pytest.raises(SolveInterrupted) as caught:
        solve_graph(graph, budget=budget_bytes, rehearse=run)

    assert caught.value.plan is not None
    assert caught.value.plan.predicted.peak_bytes <= budget_bytes - 100_000
    assert first.solver.bound_s == caught.value.plan.solver.bound_s
    assert first.predicted.recompute_s <= caught.value.plan.predicted.recompute_s
