"""`verify` against the CPU allocator: what was predicted is what happens, and the bits are the same."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

import planner
from planner.device import load_device
from planner.errors import PlanMismatchError, SpecError
from planner.plan import Plan, Retention
from planner.planning import Outcome, solve_graph
from planner.problem import build_problem
from planner.reporting.verification import verification_document, verification_text
from planner.runtime.live import LiveRun, make_live
from planner.runtime.rehearsal import rehearse
from planner.solving.search import Limits
from planner.spec import RunSpec, from_mapping
from planner.tracing import Kernels, Step, prepare_spec, trace_step
from planner.verification import compare, verify
from tests.runtime.plans import Subject, mixed, offload_all

pytest.importorskip("transformers")

_CPU = torch.device("cpu")
LLAMA = {
    "transformers": "LlamaForCausalLM",
    "config": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
    },
}
VIT = {
    "transformers": "ViTForImageClassification",
    "config": {
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 96,
        "image_size": 32,
        "patch_size": 8,
    },
}


def spec(model: dict[str, Any], **others: Any) -> RunSpec:
    return from_mapping({"model": model, "batch": {"micro_batch": 16, "sequence_length": 64}, **others})


def plan_between(run: RunSpec, share: float) -> Plan:
    """A plan for a budget that lies `share` of the way from the lowest baseline's peak to the highest."""
    graph = planner.trace(run)
    peaks = [row.peak_bytes for row in planner.solve(graph, budget=2**60).plan.baselines]
    return planner.solve(graph, budget=min(peaks) + round(share * (max(peaks) - min(peaks)))).plan


@pytest.mark.parametrize("share", [0.6, 0.1])
@pytest.mark.parametrize("model", [LLAMA, VIT], ids=["llama", "vit"])
@pytest.mark.filterwarnings("ignore")
def test_bits_are_equal_and_the_peak_is_the_predicted_one(model: dict[str, Any], share: float) -> None:
    run = spec(model)

    found = verify(run, plan_between(run, share), steps=1)

    assert () == found.failures
    assert found.measured_peak_bytes <= found.budget_bytes
    assert found.measured_peak_bytes < found.baseline_peak_bytes
    assert abs(found.prediction_error) < 0.001


def rehearsed(step: Step, plan: Plan) -> Plan:
    """The plan with what a rehearsal predicts."""
    found = rehearse(step, plan)
    return replace(plan, predicted=replace(plan.predicted, peak_bytes=found.peak_bytes, host_bytes=found.host_bytes))


@pytest.mark.parametrize("model", [LLAMA, VIT], ids=["llama", "vit"])
@pytest.mark.filterwarnings("ignore")
def test_a_plan_that_offloads_takes_what_its_rehearsal_predicts(model: dict[str, Any]) -> None:
    run = spec(model)
    step = prepare_spec(run, kernels=Kernels.CPU)
    graph = trace_step(step)
    subject = Subject(graph, build_problem(graph, load_device(run.device)))

    for plan in (offload_all(subject), mixed(subject, 1)):
        found = compare(make_live(run, _CPU), rehearsed(step, plan), _CPU, steps=1)

        assert () == found.failures
        assert found.predicted_peak_bytes == found.measured_peak_bytes
        assert 0 < found.predicted_host_bytes == found.measured_host_bytes
        assert "offloaded to the host" in verification_text(found)
        document = verification_document(found)
        assert found.measured_host_bytes == document["predicted_host_bytes"] == document["measured_host_bytes"]

    more = replace(found, measured_host_bytes=2 * found.measured_host_bytes)
    assert ["were predicted" in failure for failure in more.failures] == [True]


@pytest.mark.filterwarnings("ignore")
def test_what_differs_without_a_plan_too_is_noted_and_not_blamed_on_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    run = spec(LLAMA)
    plan = plan_between(run, 0.5)

    def unsteady(*args: Any, **kwargs: Any) -> LiveRun:
        live = make_live(*args, **kwargs)
        live.module.lm_head.weight.register_hook(lambda gradient: gradient + random.random())
        return live

    monkeypatch.setattr("planner.verification.make_live", unsteady)

    found = verify(run, plan, steps=1)

    assert () == found.failures
    assert "not the same from run to run without a plan either, and so not compared: lm_head.weight" in found.notes


def test_a_plan_for_another_step_is_refused_before_anything_runs() -> None:
    plan = plan_between(spec(LLAMA), 0.5)
    other = from_mapping({"model": LLAMA, "batch": {"micro_batch": 8, "sequence_length": 64}})

    with pytest.raises(PlanMismatchError, match="solve again"):
        verify(other, plan, steps=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_verify_says_so() -> None:
    run = spec(LLAMA)

    with pytest.raises(SpecError, match="no CUDA device"):
        verify(run, plan_between(run, 0.5), device="cuda")


@pytest.mark.filterwarnings("ignore")
def test_fewer_layers_are_solved_again_and_noted() -> None:
    run = spec(LLAMA)

    found = verify(run, plan_between(run, 0.3), layers=1, steps=1)

    assert () == found.failures
    assert any("1 layers instead of 3" in note for note in found.notes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("host_bytes", [0, 123_456])
def test_a_plan_solved_again_may_offload_as_much_as_the_plan_does(
    host_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = spec(LLAMA)
    plan = plan_between(run, 0.3)
    budgets = []

    def noted(*args: Any, host_budget: int, **options: Any) -> Outcome:
        budgets.append(host_budget)
        return solve_graph(*args, host_budget=host_budget, **{**options, "limits": Limits(time_s=2)})

    monkeypatch.setattr("planner.verification.solve_graph", noted)

    found = verify(run, replace(plan, predicted=replace(plan.predicted, host_bytes=host_bytes)), layers=1, steps=1)

    assert () == found.failures
    assert {host_bytes} == set(budgets)


@pytest.mark.filterwarnings("ignore")
def test_what_of_a_plan_was_not_tried_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.verification.Limits", lambda: Limits(time_s=1))
    run = spec(LLAMA)
    plan = planner.solve(planner.trace(run), budget=2**60).plan
    first, *others = plan.decisions
    lowest_bytes = min(row.peak_bytes for row in plan.baselines)
    offloading = replace(plan, decisions=(replace(first, retention=Retention.OFFLOAD), *others))

    found = verify(run, replace(offloading, budget_bytes=lowest_bytes - 1), layers=1, steps=1)

    assert () == found.failures
    assert any("lowest baseline's peak, since the plan's budget is below it" in note for note in found.notes)
    assert any("offloading was not tried" in note for note in found.notes)
