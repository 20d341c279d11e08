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
from planner.link import Staging
from planner.plan import Anchor, BaselineRow, Decision, Plan, PlanModel, Prediction, Proof, Retention
from planner.reporting import documents, summary, text
from planner.reporting.link import LinkCopy, LinkUse, Stretch
from planner.reporting.tables import WIDTH
from planner.simulation.reserved import Limited, Replay, Reserved

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


def offloading() -> Plan:
    """The same with the tensors of the last layer on the host, for which the device waits."""
    found = plan()
    return replace(
        found,
        predicted=replace(found.predicted, host_bytes=3 * GB, stall_s=0.02),
        solver=Proof(status="feasible", gap=0.25, bound_s=0.09),
        staging=STAGING,
        decisions=tuple(
            replace(decision, retention=Retention.OFFLOAD) if decision.module_fqn == "layers.2" else decision
            for decision in found.decisions
        ),
    )


STAGING = Staging(out_bytes=6 * GB, back_bytes=3 * GB, lead=4)
LINK = LinkUse(
    tensors=1,
    size_bytes=3 * GB,
    host_bytes=3 * GB,
    host_budget_bytes=100 * GB,
    forward_busy=0.06,
    backward_busy=0.5,
    forward_stall_s=0.0,
    backward_stall_s=0.02,
    staging=STAGING,
    staged_out_bytes=3 * GB,
    staged_back_bytes=0,
    stretches=(
        Stretch(
            phase=Phase.FORWARD,
            modules="layers.{0..2}",
            start_s=0.0,
            end_s=1.0,
            out_bytes=3 * GB,
            back_bytes=0,
            busy=0.06,
            stall_s=0.0,
        ),
        Stretch(
            phase=Phase.BACKWARD,
            modules="layers.{0..2}",
            start_s=1.0,
            end_s=1.12,
            out_bytes=0,
            back_bytes=3 * GB,
            busy=0.5,
            stall_s=0.02,
        ),
    ),
    copies=(
        LinkCopy(
            module_fqn="layers.2",
            op="aten.mm.default",
            size_bytes=3 * GB,
            out_s=(0.94, 1.0),
            gone_at="end of forward",
            back_s=(1.0, 1.06),
            back_at="backward, aten.tanh_backward.default of layers.2",
        ),
    ),
    waits_s=((1.06, 1.07),),
)


RESERVED = Reserved(
    default=Replay(reserved_bytes=46 * GB, allocated_bytes=40 * GB, steps=3, is_settled=True),
    expandable=Replay(reserved_bytes=42 * GB, allocated_bytes=39 * GB, steps=2, is_settled=True),
)


def trace_summary(top: int = 10) -> summary.TraceSummary:
    return summary.summarize_trace(step(), reserved=RESERVED, seconds=1.0, top=top)


def plan_summary(found: Plan, link: LinkUse | None = None) -> summary.PlanSummary:
    return summary.summarize_plan(
        found,
        step(),
        trace_s=1.0,
        solve_s=2.0,
        rehearse_s=0.5,
        path=Path("tiny.plan.yaml"),
        link=link,
        reserved=RESERVED,
    )


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
    found = trace_summary()
    assert (9, 6, 6 * GB) == (found.saved_tensors, found.saved_activations, found.saved_bytes)
    assert (6 * 10**12, 0) == (found.forward_flops, found.backward_flops)
    assert [("layers.{0..2}", "Layer", 6, 6 * GB)] == [
        (group.name, group.kind, group.tensors, group.size_bytes) for group in found.by_module
    ]
    assert [("aten.mm.default", 6, 6 * GB)] == [(g.name, g.tensors, g.size_bytes) for g in found.by_op]
    assert [3 * GB, 2 * GB, GB] == [tensor.size_bytes for tensor in found.largest]
    assert 1 == len(trace_summary(top=1).largest)


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


def test_a_storage_that_one_decision_offloads_leaves() -> None:
    found = offloading()
    *rest, last = found.decisions
    dropped = replace(found, decisions=(*rest[:-1], replace(rest[-1], retention=Retention.RECOMPUTE), last))
    totals = plan_summary(dropped).retentions
    assert [(Retention.SAVE, GB), (Retention.RECOMPUTE, 2 * GB), (Retention.OFFLOAD, 3 * GB)] == [
        (total.retention, total.size_bytes) for total in totals
    ]


def test_the_plan_report_compares_with_every_baseline() -> None:
    report = text.plan_text(plan_summary(plan()))
    lines = report.splitlines()
    assert "this plan          yes  39.00 GB  1.50 s     100 ms               50%" in lines
    assert "no checkpointing    no  50.00 GB  1.40 s       0 ms                0%" in lines
    assert "Peak at    backward, mm of layers.0" in lines
    assert "Solver     optimal: adds 100 ms, no plan adds less" in lines
    assert "Plan       tiny.plan.yaml" == lines[-1]


def test_the_report_of_a_plan_that_offloads_has_the_timeline_of_the_link() -> None:
    lines = text.plan_text(plan_summary(offloading(), LINK)).splitlines()

    assert "offload    2 saved tensors             3.00 GB" in lines
    assert "offload    layers.2  mm        1  3.00 GB" in lines
    place = next(place for place, line in enumerate(lines) if line.startswith("Host link"))
    assert [
        "Host link  1 tensor of 3.00 GB out and back, in 3.00 GB of 100.00 GB of host memory; busy 6.0% of",
        "    forward and 50% of backward; the device waits 20.0 ms",
        "Staging    holds 3.00 GB on the way out and 0.00 GB on the way back at most, and may hold 6.00 GB",
        "    and 3.00 GB",
        "",
        "Link      during           from      to      out     back  busy  waiting",
        "forward   layers.{0..2}    0 ms  1.00 s  3.00 GB           6.0%     0 ms",
        "backward  layers.{0..2}  1.00 s  1.12 s           3.00 GB   50%  20.0 ms",
        "",
    ] == lines[place : place + 9]
    assert not any(line.startswith("Host link") for line in text.plan_text(plan_summary(plan())).splitlines())


def test_waiting_stands_beside_recomputation_where_a_plan_waits() -> None:
    lines = text.plan_text(plan_summary(offloading(), LINK)).splitlines()

    assert "                  fits      peak    step  recompute  waiting  of every block's" in lines
    assert "this plan          yes  39.00 GB  1.50 s     100 ms  20.0 ms               60%" in lines
    assert "no checkpointing    no  50.00 GB  1.40 s       0 ms     0 ms                0%" in lines
    assert "waiting" not in text.plan_text(plan_summary(plan()))


def test_the_gap_is_a_share_of_what_is_added_and_of_the_step() -> None:
    def proof(found: Plan) -> str:
        return next(line for line in text.plan_text(plan_summary(found)).splitlines() if line.startswith("Solver"))

    nothing = replace(plan(), predicted=replace(plan().predicted, recompute_s=0.0))
    assert "Solver     feasible: adds 120 ms, no plan adds less than 90.0 ms (gap 25%, 2.0% of the step)" == proof(
        offloading()
    )
    assert "Solver     optimal: adds 100 ms, no plan adds less" == proof(plan())
    assert "Solver     optimal: adds nothing to the step" == proof(nothing)


def test_the_infeasible_report_says_what_would_fit() -> None:
    lines = text.infeasible_text(infeasible_summary()).splitlines()
    assert "tiny on h100-80gb, budget 10.00 GB: no plan fits" == lines[0]
    assert "Smallest peak  18.00 GB" in lines
    assert "parallel.fsdp: 2             shards static memory   yes        9.00 GB" in lines


@pytest.mark.parametrize(
    "report",
    [
        text.plan_text(plan_summary(plan())),
        text.plan_text(plan_summary(offloading(), LINK)),
        text.infeasible_text(infeasible_summary()),
        text.trace_text(trace_summary()),
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
    assert (None, 0.1, 0.1, 0.0) == tuple(found[key] for key in ("link", "added_s", "added_bound_s", "gap_of_step"))
    unfit = json.loads(json.dumps(documents.infeasible_document(infeasible_summary())))
    assert ("infeasible", 17 * GB) == (unfit["status"], unfit["bound_bytes"])
    assert [True] == [way["fits"] for way in unfit["ways_out"]]
    traced = json.loads(json.dumps(documents.trace_document(trace_summary())))
    assert {"modules": "layers.{0..2}", "class": "Layer", "tensors": 6, "bytes": 6 * GB} == traced["by_module"][0]


def test_reports_say_what_the_allocator_reserves() -> None:
    line = (
        "46.00 GB by PyTorch's allocator, 42.00 GB with expandable segments: 6.00 GB and 3.00 GB more than is ever in "
        "use"
    )
    for report in (text.plan_text(plan_summary(plan())), text.trace_text(trace_summary())):
        assert line in " ".join(report.split())
    for document in (documents.plan_document(plan_summary(plan())), documents.trace_document(trace_summary())):
        assert {
            "low_bytes": 42 * GB,
            "high_bytes": 46 * GB,
            "default": {"bytes": 46 * GB, "allocated_bytes": 40 * GB, "fragmentation_bytes": 6 * GB},
            "expandable_segments": {"bytes": 42 * GB, "allocated_bytes": 39 * GB, "fragmentation_bytes": 3 * GB},
            "within_device": None,
        } == json.loads(json.dumps(document))["reserved"]


@pytest.mark.parametrize(
    ("default", "expandable", "line"),
    [
        (None, 2, "runs out of memory; with expandable segments it has to give back unused memory 2 times a step"),
        (1, 0, "has to give back unused memory once a step; with expandable segments it has enough"),
        (None, None, "runs out of memory; with expandable segments as well"),
    ],
)
def test_a_report_says_how_the_allocator_gets_by_on_a_device_that_is_too_small(
    default: int | None, expandable: int | None, line: str
) -> None:
    limited = Limited(limit_bytes=40 * GB, default_retries=default, expandable_retries=expandable)
    found = replace(plan_summary(plan()), reserved=replace(RESERVED, limited=limited))

    assert f"In 40.00 GB it {line}" in " ".join(text.plan_text(found).split())
    assert {"device_bytes": 40 * GB, "default_retries": default, "expandable_segments_retries": expandable} == (
        documents.plan_document(found)["reserved"]["within_device"]
    )


def test_json_has_every_copy() -> None:
    found = json.loads(json.dumps(documents.plan_document(plan_summary(offloading(), LINK))))

    link = found["link"]
    assert {"tensors": 2, "bytes": 3 * GB} == found["decisions"]["offload"]
    assert (0.12, 0.09, 0.02) == tuple(round(found[key], 9) for key in ("added_s", "added_bound_s", "gap_of_step"))
    assert (1, 3 * GB, 3 * GB, 100 * GB) == tuple(
        link[key] for key in ("tensors", "bytes", "host_bytes", "host_budget_bytes")
    )
    assert (0.06, 0.5, 0.0, 0.02) == tuple(
        link[key] for key in ("forward_busy", "backward_busy", "forward_stall_s", "backward_stall_s")
    )
    assert {
        "out_bytes": 6 * GB,
        "back_bytes": 3 * GB,
        "lead": 4,
        "most_out_bytes": 3 * GB,
        "most_back_bytes": 0,
    } == link["staging"]
    assert [
        {
            "module": "layers.2",
            "op": "aten.mm.default",
            "bytes": 3 * GB,
            "out_start_s": 0.94,
            "out_done_s": 1.0,
            "gone_at": "end of forward",
            "back_start_s": 1.0,
            "back_done_s": 1.06,
            "back_at": "backward, aten.tanh_backward.default of layers.2",
        }
    ] == link["copies"]
    assert [("forward", 0.06, 3 * GB), ("backward", 0.5, 0)] == [
        (stretch["phase"], stretch["busy"], stretch["out_bytes"]) for stretch in link["stretches"]
    ]


def test_lists_of_devices_and_presets_need_no_extra() -> None:
    code = (
        "import sys, planner.reporting.catalogue\n"
        "assert not {'torch', 'networkx', 'ortools', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(summary.__file__).parents[2], check=True)
