"""Summaries as plain data for JSON. Keys carry their units; bytes are whole numbers, times are seconds."""

from dataclasses import asdict
from typing import Any

from planner.graph import StaticMemory
from planner.plan import Retention
from planner.records import as_dict
from planner.reporting.link import LinkUse
from planner.reporting.summary import InfeasibleSummary, NothingSummary, PlanSummary, TraceSummary
from planner.simulation.reserved import Reserved

Document = dict[str, Any]


def plan_document(summary: PlanSummary) -> Document:
    """What `planner solve --json` prints when a plan fits, or when one was known as the solver was interrupted."""
    plan, predicted = summary.plan, summary.plan.predicted
    totals = {total.retention: total for total in summary.retentions}
    return {
        "status": plan.solver.status,
        "interrupted": summary.is_interrupted,
        "gap": plan.solver.gap,
        "gap_of_step": summary.gap_of_step,
        "model": plan.model.name,
        "device": plan.device,
        "budget_bytes": plan.budget_bytes,
        "static_bytes": static_document(summary.static),
        "optimizer_transient_bytes": summary.static.optimizer_transient_bytes,
        "predicted_peak_bytes": predicted.peak_bytes,
        "predicted_peak_at": predicted.peak_at,
        "predicted_step_s": predicted.step_s,
        "recompute_s": predicted.recompute_s,
        "stall_s": predicted.stall_s,
        "added_s": summary.added_s,
        "added_bound_s": plan.solver.bound_s,
        "host_bytes": predicted.host_bytes,
        "reserved": None if summary.reserved is None else reserved_document(summary.reserved),
        "solve_seconds": round(summary.solve_s, 3),
        "trace_seconds": round(summary.trace_s, 3),
        "rehearse_seconds": round(summary.rehearse_s, 3),
        "baselines": [asdict(row) for row in plan.baselines],
        "decisions": {
            str(retention): {
                "tensors": totals[retention].tensors if retention in totals else 0,
                "bytes": totals[retention].size_bytes if retention in totals else 0,
            }
            for retention in Retention
        },
        "anchors": {
            "tensors": len(plan.anchors),
            "bytes": sum(anchor.size_bytes for anchor in plan.anchors),
        },
        "link": None if summary.link is None else link_document(summary.link),
        "plan": None if summary.path is None else str(summary.path),
        "notes": list(summary.notes),
    }


def link_document(link: LinkUse) -> Document:
    """The timeline of the link. Times are from the start of the step, with replays and waiting."""
    return {
        "tensors": link.tensors,
        "bytes": link.size_bytes,
        "host_bytes": link.host_bytes,
        "host_budget_bytes": link.host_budget_bytes,
        "forward_busy": link.forward_busy,
        "backward_busy": link.backward_busy,
        "forward_stall_s": link.forward_stall_s,
        "backward_stall_s": link.backward_stall_s,
        "staging": {
            "out_bytes": link.staging.out_bytes,
            "back_bytes": link.staging.back_bytes,
            "lead": link.staging.lead,
            "most_out_bytes": link.staged_out_bytes,
            "most_back_bytes": link.staged_back_bytes,
        },
        "stretches": [
            {
                "phase": str(stretch.phase),
                "modules": stretch.modules,
                "start_s": stretch.start_s,
                "end_s": stretch.end_s,
                "out_bytes": stretch.out_bytes,
                "back_bytes": stretch.back_bytes,
                "busy": stretch.busy,
                "stall_s": stretch.stall_s,
            }
            for stretch in link.stretches
        ],
        "copies": [
            {
                "module": copy.module_fqn,
                "op": copy.op,
                "bytes": copy.size_bytes,
                "out_start_s": copy.out_s[0],
                "out_done_s": copy.out_s[1],
                "gone_at": copy.gone_at,
                "back_start_s": copy.back_s[0],
                "back_done_s": copy.back_s[1],
                "back_at": copy.back_at,
            }
            for copy in link.copies
        ],
        "waits": [{"start_s": start_s, "end_s": end_s} for start_s, end_s in link.waits_s],
    }


def infeasible_document(summary: InfeasibleSummary) -> Document:
    """What `planner solve --json` prints without a plan; "unknown" when the time limit or rehearsals ended the
    search.
    """
    return {
        "status": "infeasible" if summary.is_proven else "unknown",
        "interrupted": False,
        "message": summary.message,
        "model": summary.model,
        "device": summary.device,
        "budget_bytes": summary.budget_bytes,
        "static_bytes": static_document(summary.static),
        "optimizer_transient_bytes": summary.static.optimizer_transient_bytes,
        "smallest_peak_bytes": summary.smallest_peak_bytes,
        "smallest_peak_at": summary.smallest_peak_at,
        "bound_bytes": summary.bound_bytes,
        "ways_out": [as_dict(way) for way in summary.ways_out],
        "plan": None,
        "notes": list(summary.notes),
    }


def nothing_document(summary: NothingSummary) -> Document:
    """What `planner solve --json` prints when it was interrupted before it had any plan."""
    return {
        "status": "unknown",
        "interrupted": True,
        "model": summary.model,
        "device": summary.device,
        "budget_bytes": summary.budget_bytes,
        "plan": None,
    }


def trace_document(summary: TraceSummary) -> Document:
    """What `planner trace --json` prints."""
    document = asdict(summary)
    return {
        **{name: document[name] for name in document if name not in ("static", "reserved")},
        "reserved": reserved_document(summary.reserved),
        "by_op": [{"op": g.name, "tensors": g.tensors, "bytes": g.size_bytes} for g in summary.by_op],
        "by_module": [
            {"modules": g.name, "class": g.kind, "tensors": g.tensors, "bytes": g.size_bytes} for g in summary.by_module
        ],
        "static_bytes": static_document(summary.static),
        "optimizer_transient_bytes": summary.static.optimizer_transient_bytes,
        "seconds": round(summary.seconds, 3),
    }


def reserved_document(reserved: Reserved) -> Document:
    """What PyTorch's allocator reserves, as it is set up and with expandable segments."""
    kinds = {"default": reserved.default, "expandable_segments": reserved.expandable}
    return {
        "low_bytes": reserved.interval.low_bytes,
        "high_bytes": reserved.interval.high_bytes,
        **{
            name: {
                "bytes": replay.reserved_bytes,
                "allocated_bytes": replay.allocated_bytes,
                "fragmentation_bytes": replay.fragmentation_bytes,
            }
            for name, replay in kinds.items()
        },
        "within_device": None
        if reserved.limited is None
        else {
            "device_bytes": reserved.limited.limit_bytes,
            "default_retries": reserved.limited.default_retries,
            "expandable_segments_retries": reserved.limited.expandable_retries,
        },
    }


def static_document(static: StaticMemory) -> Document:
    """The parts of static memory, in bytes, and their sum."""
    return {
        "parameters": static.parameters_bytes,
        "gradients": static.gradients_bytes,
        "optimizer": static.optimizer_bytes,
        "unsharded": static.unsharded_bytes,
        "total": static.total_bytes,
    }
