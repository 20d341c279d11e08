"""Techniques beside each other on small models: two mechanisms that agree, and one recommendation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ortools")
pytest.importorskip("transformers")

from planner import comparison, planning
from planner.comparison import AGREEMENT, Comparison, Mechanism, Row, Skipped, cheapest, growing_comparison
from planner.costs.static import OPTIMIZER_COSTS, ParameterInfo, static_memory, with_optimizer
from planner.device import load_device
from planner.errors import TraceError
from planner.estimation.blocks import Writer
from planner.graph import OpGraph, saved_tensors, step_info, storages, values
from planner.problem import build_problem
from planner.solving.baselines import baselines
from planner.solving.search import Limits
from planner.spec import AttentionKernel, RunSpec, from_mapping
from planner.tracing import trace_spec

DEVICE = load_device("h100-80gb")
LLAMA = {
    "model": {
        "transformers": "LlamaForCausalLM",
        "config": {
            "vocab_size": 8000,
            "hidden_size": 256,
            "intermediate_size": 704,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
        },
    },
    "batch": {"micro_batch": 1, "sequence_length": 1024},
    "precision": {"parameters": "float32", "compute": "bfloat16"},
}
SHARDED = {**LLAMA, "parallel": {"fsdp": 4}}
HALF = {**LLAMA, "precision": {"parameters": "bfloat16"}}
GPT2 = {
    **LLAMA,
    "model": {
        "preset": "gpt2",
        "config": {
            "n_layer": 4,
            "n_embd": 256,
            "n_head": 8,
            "vocab_size": 8000,
            "bos_token_id": 1,
            "eos_token_id": 1,
        },
    },
}
BUDGET_BYTES = 215_000_000  # every block fits, saving everything does not


def steps(
    spec: dict[str, Any],
    *,
    budget_bytes: int = BUDGET_BYTES,
    host_budget_bytes: int = 10**10,
    trace: Callable[[RunSpec], OpGraph] = trace_spec,
) -> list[Comparison]:
    return list(
        growing_comparison(
            from_mapping(spec),
            budget_bytes=budget_bytes,
            host_budget_bytes=host_budget_bytes,
            device=DEVICE,
            trace=trace,
            limits=Limits(time_s=2.0),
        )
    )


@pytest.fixture(scope="module")
def llama() -> Comparison:
    return steps(LLAMA)[-1]


def by_name(found: Comparison) -> dict[str, Row]:
    return {row.name: row for row in found.rows}


# ---- two mechanisms


@pytest.mark.parametrize("spec", [LLAMA, SHARDED, HALF, GPT2], ids=["llama", "fsdp", "bfloat16", "gpt2"])
def test_where_both_mechanisms_have_a_peak_they_agree(spec: dict[str, Any]) -> None:
    found = steps(spec, budget_bytes=10**9, host_budget_bytes=0)[-1]
    both = {row.name: row.other_peak_bytes / row.peak_bytes for row in found.rows if row.other_peak_bytes}

    assert {"as it is", "eager attention", "every block", "every √N blocks", "selective"} <= both.keys()
    assert {"chunked loss", "8-bit optimizer"} <= both.keys()
    assert {"block, chunked", "block, chunked, 8-bit", "selective, chunked, 8-bit"} <= both.keys()
    assert {} == {name: ratio for name, ratio in both.items() if abs(ratio - 1) > AGREEMENT}


def test_each_row_is_by_one_mechanism_and_times_are_by_the_trace(llama: Comparison) -> None:
    for row in llama.rows:
        is_timed = row.step_s is not None
        assert is_timed == (not row.why_no_time) == (row.added_s is not None)
        assert not is_timed or row.mechanism is Mechanism.TRACED
        assert (row.peak_bytes <= BUDGET_BYTES) == row.fits
    closed = {row.name for row in llama.rows if row.mechanism is Mechanism.CLOSED_FORM}
    assert {"fused loss", "fused linear loss", "sequence parallel, 8 ranks", "context parallel, 2 ranks"} <= closed


def test_a_model_that_a_function_builds_has_traced_rows_and_is_told_what_is_missing() -> None:
    spec = {"model": {"factory": "torch.nn:Linear", "arguments": {"in_features": 8, "out_features": 8}}}
    found = steps({**spec, "inputs": {"input": {"shape": [4, 8], "dtype": "float32"}}})[-1]

    assert "what a function builds is not known in closed form" == found.missing
    assert {Mechanism.TRACED} == {row.mechanism for row in found.rows}
    assert ["as it is", "8-bit optimizer", "solved plan", "plan, 8-bit"] == [row.name for row in found.rows]


def test_the_closed_form_is_left_out_where_it_is_far_from_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "AGREEMENT", -1.0)
    found = steps(HALF, budget_bytes=10**9, host_budget_bytes=0)[-1]

    assert {Mechanism.TRACED} == {row.mechanism for row in found.rows}
    assert found.missing.endswith("off for the spec as it is")


def test_a_kernel_that_the_closed_form_has_wrong_takes_its_closed_rows_along(monkeypatch: pytest.MonkeyPatch) -> None:
    # In float32 with grouped heads, no fused kernel of PyTorch runs, and the trace has the scores.
    monkeypatch.setattr(Writer, "has_no_kernel", False)
    spec = {**LLAMA, "attention": "eager", "precision": {"parameters": "float32"}}
    found = steps(spec, budget_bytes=10**9, host_budget_bytes=0)[-1]

    assert found.is_complete
    assert any(one.name == "flash, block, fused linear, 8-bit" for one in found.skipped)
    assert not {row.name for row in found.together if row.mechanism is Mechanism.CLOSED_FORM}


# ---- what is traced


def test_one_trace_serves_all_rows_with_the_same_kernels() -> None:
    asked: list[tuple[AttentionKernel, str | None]] = []

    def trace(spec: RunSpec) -> OpGraph:
        asked.append((spec.attention, spec.loss))
        return trace_spec(spec)

    steps(HALF, budget_bytes=10**9, trace=trace)

    chunked = "planner.tracing.losses:chunked_cross_entropy"
    assert [(AttentionKernel.FLASH, None), (AttentionKernel.EAGER, None), (AttentionKernel.FLASH, chunked)] == asked


def test_the_changes_of_a_row_in_the_spec_give_its_peak(llama: Comparison) -> None:
    row = by_name(llama)["block, chunked, 8-bit"]
    loss, optimizer = "planner.tracing.losses:chunked_cross_entropy", {"name": "adamw-8bit"}
    graph = trace_spec(from_mapping({**LLAMA, "loss": loss, "optimizer": optimizer}))
    block = next(one for one in baselines(build_problem(graph, DEVICE), graph) if one.name == "every block")

    assert ("checkpointing: block", f"loss: {loss}", "optimizer: {name: adamw-8bit}") == row.changes
    assert block.timeline.peak_bytes == row.peak_bytes


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZER_COSTS.keys() - {"adafactor"}))
@pytest.mark.parametrize("fsdp", [1, 3])
def test_static_memory_under_another_optimizer_is_that_of_a_step_with_it(optimizer: str, fsdp: int) -> None:
    parameters = [ParameterInfo(fqn="weight", shape=(7, 5), is_trainable=True, block=None)]

    def static(name: str) -> Any:
        return static_memory(
            parameters,
            buffer_bytes=3,
            parameter_dtype="bfloat16",
            compute_dtype="bfloat16",
            optimizer=name,
            fsdp=fsdp,
        )

    assert static(optimizer) == with_optimizer(static("adamw"), optimizer, parameter_dtype="bfloat16")


@pytest.mark.parametrize("length", [512, 1024])
def test_eager_attention_saves_two_score_matrices_a_layer_and_a_fused_kernel_none(length: int) -> None:
    def scores_bytes(attention: str) -> int:
        spec = {**HALF, "batch": {"micro_batch": 1, "sequence_length": length}, "attention": attention}
        graph = trace_spec(from_mapping(spec))
        table = values(graph)
        found = {table[s.value].storage for s in saved_tensors(graph) if s.shape[-2:] == (length, length)}
        return sum(storages(graph)[storage].size_bytes for storage in found)

    # The softmax in float32 and the weights in bfloat16, for eight heads in four layers.
    assert 4 * 8 * length**2 * (4 + 2) == scores_bytes("eager")
    assert 0 == scores_bytes("flash")


def test_a_kernel_that_the_model_does_not_run_with_is_skipped_with_the_reason() -> None:
    def trace(spec: RunSpec) -> OpGraph:
        if spec.attention is AttentionKernel.EAGER:
            raise TraceError("it has no eager attention")
        return trace_spec(spec)

    found = steps(HALF, budget_bytes=10**9, host_budget_bytes=0, trace=trace)[-1]

    assert Skipped(name="eager attention", why="it has no eager attention") in found.skipped
    assert found.is_complete


def test_a_spec_that_cannot_be_traced_as_it_is_has_no_comparison() -> None:
    def trace(spec: RunSpec) -> OpGraph:
        raise TraceError("no")

    with pytest.raises(TraceError):
        steps(HALF, trace=trace)


def test_without_host_memory_nothing_is_offloaded() -> None:
    found = steps(HALF, budget_bytes=10**9, host_budget_bytes=0)[-1]

    assert {"no host budget"} == {one.why for one in found.skipped}
    assert {"offload all", "offload block inputs"} <= {one.name for one in found.skipped}
    assert all(not row.stall_s for row in found.rows)


# ---- what comes of it


def test_rows_say_what_they_save(llama: Comparison) -> None:
    rows = by_name(llama)
    block = rows["every block"]

    assert rows["as it is"].peak_bytes - block.peak_bytes == block.saved_bytes
    assert block.saved_bytes / (rows["as it is"].peak_bytes - llama.static_bytes) == block.saved_share
    assert rows["8-bit optimizer"].saved_share is None  # what it saves is no activation
    assert rows["eager attention"].saved_bytes < 0


def test_plans_fit_and_add_no_more_than_rules_that_fit_with_the_same_techniques(llama: Comparison) -> None:
    rows = by_name(llama)
    for plan, rule in (("solved plan", "every block"), ("plan, chunked, 8-bit", "block, chunked, 8-bit")):
        own, theirs = rows[plan], rows[rule]
        assert own.fits
        assert theirs.fits
        assert own.added_s is not None
        assert theirs.added_s is not None
        assert own.added_s <= theirs.added_s
    assert not rows["as it is"].fits


def test_a_budget_below_all_plans_is_a_row_with_the_smallest_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_LOWEST_PEAK_TIME_S", 0.5)
    found = steps(HALF, budget_bytes=1000, host_budget_bytes=0)[-1]
    plan = by_name(found)["solved plan"]

    assert not plan.fits
    assert plan.why_no_time.startswith("no plan fits")
    assert 0 < plan.peak_bytes <= by_name(found)["every block"].peak_bytes
    assert found.is_complete
    assert found.recommended is None


def test_a_spec_that_fits_as_it_is_is_recommended() -> None:
    found = steps(HALF, budget_bytes=10**9, host_budget_bytes=0)[-1]

    assert found.own == found.recommended


def test_nothing_is_recommended_before_all_rows_are_there() -> None:
    *growing, last = steps(HALF, budget_bytes=10**9, host_budget_bytes=0)

    assert len(growing) + 1 == last.rows_asked
    assert all(found.recommended is None and not found.is_complete for found in growing)


def test_the_loss_of_its_own_that_a_spec_names_leaves_only_the_trace() -> None:
    found = steps({**HALF, "loss": "mean"}, budget_bytes=10**9, host_budget_bytes=0)[-1]

    assert "a loss other than the model's own is not known in closed form" == found.missing
    assert "chunked loss" not in by_name(found)


def test_notes_are_those_of_all_traces_once() -> None:
    found = steps({**LLAMA, "precision": {"parameters": "float32"}}, budget_bytes=10**9, host_budget_bytes=0)[-1]

    assert len(found.notes) == len(set(found.notes))
    assert any("flash attention needs 16-bit inputs" in note for note in found.notes)
    assert step_info(trace_spec(from_mapping(LLAMA))).notes[0] in found.notes


# ---- the cheapest


def row(name: str, *, added_ms: float | None, changes: int, peak_bytes: int = 1, fits: bool = True) -> Row:
    seconds = None if added_ms is None else added_ms / 1e3
    return Row(
        name=name,
        changes=("change",) * changes,
        mechanism=Mechanism.TRACED,
        fits=fits,
        peak_bytes=peak_bytes,
        peak_at="",
        saved_bytes=0,
        saved_share=None,
        recompute_s=seconds,
        stall_s=None if added_ms is None else 0.0,
    )


def name_of_cheapest(*rows: Row) -> str | None:
    best = cheapest(rows, 1.0)  # so that differences below 1 ms are none
    return None if best is None else best.name


def test_the_least_added_time_comes_first_and_then_the_fewest_changes() -> None:
    many, few, slow = (
        row("many", added_ms=10.0, changes=3),
        row("few", added_ms=10.3, changes=1),
        row("slow", added_ms=20.0, changes=1),
    )

    assert "few" == name_of_cheapest(many, few, slow)
    assert "many" == name_of_cheapest(many, replace(few, recompute_s=0.012), slow)


def test_what_does_not_fit_is_not_recommended() -> None:
    assert "slow" == name_of_cheapest(
        row("fast", added_ms=0.0, changes=1, fits=False), row("slow", added_ms=9.0, changes=9)
    )
    assert name_of_cheapest(row("fast", added_ms=0.0, changes=1, fits=False)) is None


def test_a_row_without_times_is_recommended_only_where_no_other_fits() -> None:
    unknown = row("unknown", added_ms=None, changes=1)

    assert "slow" == name_of_cheapest(unknown, row("slow", added_ms=900.0, changes=5))
    assert "unknown" == name_of_cheapest(unknown, row("slow", added_ms=900.0, changes=5, fits=False))


def test_of_rows_without_times_fewer_ranks_come_first_though_more_have_a_lower_peak() -> None:
    two, four = (row(f"{n} ranks", added_ms=None, changes=1, peak_bytes=100 // n) for n in (2, 4))

    assert "2 ranks" == name_of_cheapest(two, four)
