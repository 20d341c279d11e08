"""Summaries of a step small enough to count on paper, and the text and JSON made of them."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("networkx")

from planner.errors import InfeasibleError, WayOut
from planner.graph import (
    ModuleInfo,
    Op,
    OpGraph,
    Phase,
    SavedTensor,
    StaticMemory,
    StepInfo,
    Storage,
    StorageKind,
    Value,
    build_graph,
)
from planner.plan import Anchor, BaselineRow, Decision, Plan, PlanModel, Prediction, Proof, Retention
from planner.reporting import documents, summary, text
from planner.reporting.tables import WIDTH

GB = 1_000_000_000
LAYERS = 3
STATIC = StaticMemory(
    parameters_bytes=4 * GB,
    gradients_bytes=4 * GB,
    optimizer_bytes=8 * GB,
    optimizer_transient_bytes=2 * GB,
    unsharded_bytes=0,
)


def step() -> OpGraph:
    """Three layers, mm -> tanh; each saves a weight, and the result of its mm twice."""
    records: list[Op] = []
    storages = [Storage(index=0, size_bytes=1, kind=StorageKind.PARAMETER, name="w", alloc_step=0, free_step=9)]
    values = [Value(index=0, storage=0, version=0, producer=None, boundary="")]
    saved: list[SavedTensor] = []
    for layer in range(LAYERS):
        for place, name in enumerate(("aten.mm.default", "aten.tanh.default")):
            index = len(values)
            now = 2 * layer + place
            storages.append(
                Storage(
                    index=index,
                    size_bytes=(layer + 1) * GB if place == 0 else 0,
                    kind=StorageKind.ACTIVATION,
                    name="",
                    alloc_step=now,
                    free_step=now + 1,
                )
            )
            values.append(Value(index=index, storage=index, version=0, producer=now, boundary=""))
            records.append(
                Op(
                    step=now,
                    name=name,
                    phase=Phase.FORWARD,
                    module_fqn=f"layers.{layer}",
                    module_call=0,
                    reads=(index - 1,),
                    writes=(index,),
                    read_bytes=0,
                    write_bytes=0,
                    flops=10**12,
                    dtype="bfloat16",
                    shape=(2, 2),
                    is_view=False,
                    is_random=False,
                    is_causal=False,
                    mutates_state=False,
                    is_opaque=False,
                )
            )
        for ordinal, (value, op) in enumerate(
            ((0, ""), (index - 1, "aten.mm.default"), (index - 1, "aten.mm.default"))
        ):
            saved.append(
                SavedTensor(
                    index=len(saved),
                    value=value,
                    module_fqn=f"layers.{layer}",
                    module_call=0,
                    ordinal=ordinal,
                    op=op,
                    shape=(2, 2),
                    dtype="bfloat16",
                    pack_step=index,
                    uses=(),
                )
            )
    layers = [
        ModuleInfo(fqn=f"layers.{i}", class_name="Layer", is_container=False, is_checkpoint_unit=False, parameters=1)
        for i in range(LAYERS)
    ]
    return build_graph(
        ops=records,
        storages=storages,
        values=values,
        saved_tensors=saved,
        modules=layers,
        step=StepInfo(
            model="tiny",
            torch_version="2.13.0",
            attention="flash",
            steps=9,
            backward_step=6,
            parameters=3,
            static=STATIC,
            tokens=1,
            notes=("something is assumed " * 12,),
        ),
    )


def plan(*, saved_layers: tuple[int, ...] = (0,)) -> Plan:
    return Plan(
        model=PlanModel(name="tiny", fingerprint="sha256:0", parameters=3, torch="2.13.0", attention="flash"),
        device="h100-80gb",
        budget_bytes=40 * GB,
        predicted=Prediction(
            peak_bytes=39 * GB,
            peak_at="backward, aten.mm.default of layers.0",
            static_bytes=STATIC.total_bytes,
            host_bytes=0,
            step_s=1.5,
            recompute_s=0.1,
            stall_s=0.0,
        ),
        solver=Proof(status="optimal", gap=0.0, bound_s=0.1),
        baselines=(
            BaselineRow(name="no checkpointing", fits=False, peak_bytes=50 * GB, step_s=1.4, recompute_s=0.0),
            BaselineRow(name="every block", fits=True, peak_bytes=30 * GB, step_s=1.6, recompute_s=0.2),
        ),
        decisions=tuple(
            Decision(
                module_fqn=f"layers.{layer}",
                module_call=0,
                ordinal=ordinal,
                op="aten.mm.default",
                shape=(2, 2),
                dtype="bfloat16",
                retention=Retention.SAVE if layer in saved_layers else Retention.RECOMPUTE,
            )
            for layer in range(LAYERS)
            for ordinal in (1, 2)
        ),
        anchors=(Anchor(module_fqn="layers.1", module_call=0, side="input", position=0, op="", size_bytes=5 * GB),),
    )


def plan_summary(found: Plan) -> summary.PlanSummary:
    return summary.summarize_plan(found, step(), trace_s=1.0, solve_s=2.0, rehearse_s=0.5, path=Path("tiny.plan.yaml"))


def infeasible_summary() -> summary.InfeasibleSummary:
    error = InfeasibleError(
        "no plan fits: really",
        budget_bytes=10 * GB,
        static_bytes=16 * GB,
        smallest_peak_bytes=18 * GB,
        bound_bytes=17 * GB,
        where="optimizer step",
        is_proven=True,
    )
    way = WayOut(change="parallel.fsdp: 2", effect="shards static memory", peak_bytes=9 * GB, fits=True)
    return summary.summarize_infeasible(error, step(), device="h100-80gb", ways_out=(way,))


def test_a_storage_saved_twice_is_counted_once() -> None:
    found = summary.summarize_trace(step(), seconds=1.0)
    assert (9, 6, 6 * GB) == (found.saved_tensors, found.saved_activations, found.saved_bytes)
    assert (6 * 10**12, 0) == (found.forward_flops, found.backward_flops)
    assert [("layers.{0..2}", "Layer", 6, 6 * GB)] == [
        (group.name, group.kind, group.tensors, group.size_bytes) for group in found.by_module
    ]
    assert [("aten.mm.default", 6, 6 * GB)] == [(g.name, g.tensors, g.size_bytes) for g in found.by_op]
    assert [3 * GB, 2 * GB, GB] == [tensor.size_bytes for tensor in found.largest]
    assert 1 == len(summary.summarize_trace(step(), seconds=1.0, top=1).largest)


def test_decisions_add_up_to_what_is_saved() -> None:
    found = plan_summary(plan())
    assert [(Retention.SAVE, 2, GB), (Retention.RECOMPUTE, 4, 5 * GB)] == [
        (total.retention, total.tensors, total.size_bytes) for total in found.retentions
    ]
    assert [("layers.{1..2}", Retention.RECOMPUTE, 2, 5 * GB), ("layers.0", Retention.SAVE, 1, GB)] == [
        (group.modules, group.retention, group.tensors, group.size_bytes) for group in found.groups
    ]


def test_a_storage_that_one_decision_saves_is_saved() -> None:
    mixed = plan()
    first, *rest = mixed.decisions
    dropped = replace(first, retention=Retention.RECOMPUTE)
    totals = plan_summary(replace(mixed, decisions=(dropped, *rest))).retentions
    assert [GB, 5 * GB] == [total.size_bytes for total in totals]


def test_the_plan_report_compares_with_every_baseline() -> None:
    report = text.plan_text(plan_summary(plan()))
    lines = report.splitlines()
    assert "this plan          yes  39.00 GB  1.50 s     100 ms               50%" in lines
    assert "no checkpointing    no  50.00 GB  1.40 s       0 ms                0%" in lines
    assert "Peak at    backward, mm of layers.0" in lines
    assert "Solver     optimal: adds 100 ms, no plan adds less" in lines
    assert "Plan       tiny.plan.yaml" == lines[-1]


def test_the_infeasible_report_says_what_would_fit() -> None:
    lines = text.infeasible_text(infeasible_summary()).splitlines()
    assert "tiny on h100-80gb, budget 10.00 GB: no plan fits" == lines[0]
    assert "Smallest peak  18.00 GB" in lines
    assert "parallel.fsdp: 2             shards static memory   yes        9.00 GB" in lines


@pytest.mark.parametrize(
    "report",
    [
        text.plan_text(plan_summary(plan())),
        text.infeasible_text(infeasible_summary()),
        text.trace_text(summary.summarize_trace(step(), seconds=1.0)),
    ],
)
def test_reports_fit_the_terminal_and_stay_in_gb(report: str) -> None:
    assert all(len(line) <= WIDTH and line == line.rstrip() for line in report.splitlines())
    assert "GB" in report
    assert not any(unit in report for unit in ("GiB", "MiB", " MB", " KB", " TB"))


def test_json_documents_are_plain_data_with_the_same_numbers() -> None:
    found = json.loads(json.dumps(documents.plan_document(plan_summary(plan()))))
    assert {"save": {"tensors": 2, "bytes": GB}, "recompute": {"tensors": 4, "bytes": 5 * GB}} == {
        name: found["decisions"][name] for name in ("save", "recompute")
    }
    assert {"tensors": 1, "bytes": 5 * GB} == found["anchors"]
    assert 16 * GB == found["static_bytes"]["total"]
    unfit = json.loads(json.dumps(documents.infeasible_document(infeasible_summary())))
    assert ("infeasible", 17 * GB) == (unfit["status"], unfit["bound_bytes"])
    assert [True] == [way["fits"] for way in unfit["ways_out"]]
    traced = json.loads(json.dumps(documents.trace_document(summary.summarize_trace(step(), seconds=1.0))))
    assert {"modules": "layers.{0..2}", "class": "Layer", "tensors": 6, "bytes": 6 * GB} == traced["by_module"][0]


def test_lists_of_devices_and_presets_need_no_extra() -> None:
    code = (
        "import sys, planner.reporting.catalogue\n"
        "assert not {'torch', 'networkx', 'ortools', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(summary.__file__).parents[2], check=True)
