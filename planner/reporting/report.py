"""All that `planner report` shows about a plan, as one record, as text and as plain data for JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from planner.plan import BaselineRow, Plan
from planner.reporting.documents import plan_document
from planner.reporting.frontier import frontier_document
from planner.reporting.memory import MemoryOverTime, Moment
from planner.reporting.summary import ModuleDecisions, PlanSummary
from planner.reporting.tables import duration, gigabytes, table, wrapped
from planner.reporting.text import EVERY_BLOCK, proof_in_words

if TYPE_CHECKING:
    from planner.simulation.liveness import Timeline
    from planner.tradeoff import Frontier

_NS_PER_S = 1_000_000_000
_SAME_S = 1e-6  # plans hold times to the nanosecond, as floats
# What only `planner solve` knows.
_OF_SOLVING = ("interrupted", "solve_seconds", "rehearse_seconds", "plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Of the planner that made the report, of torch as it traced the step now, and as it did for the plan."""

    planner: str
    torch: str
    torch_of_plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A plan on the step it was made for.

    Attributes:
        summary: the plan and what it comes to.
        memory: over the step, as the simulation has it.
        modules: the decisions by module.
        frontier: what other budgets would cost; None if that was not asked for.
        plan_file, spec_file: as the user named them.
        notes: assumptions made while tracing, and where the plan is not what its step now gives.
    """

    summary: PlanSummary
    memory: MemoryOverTime
    modules: tuple[ModuleDecisions, ...]
    frontier: "Frontier | None"
    plan_file: str
    spec_file: str
    versions: Versions
    notes: tuple[str, ...]

    @property
    def plain_step_s(self) -> float:
        """The step if nothing were recomputed or waited for."""
        return self.summary.plan.predicted.step_s - self.summary.added_s

    def overhead(self, added_s: float) -> float:
        """What is added as a fraction of that."""
        return added_s / self.plain_step_s if self.plain_step_s else 0.0

    @property
    def every_block(self) -> BaselineRow | None:
        """Checkpointing every block, if the model has blocks."""
        return next((row for row in self.summary.plan.baselines if row.name == EVERY_BLOCK), None)


def differences(plan: Plan, timeline: "Timeline") -> tuple[str, ...]:
    """Where the plan predicts what the simulation of its step does not give now, in words."""
    predicted, found = plan.predicted, []
    if off_bytes := predicted.peak_bytes - timeline.peak_bytes:
        found.append(
            f"the plan predicts a peak of {predicted.peak_bytes:,} bytes, the simulation {timeline.peak_bytes:,}, "
            f"shown here: {abs(off_bytes):,} bytes {'less' if off_bytes > 0 else 'more'}"
        )
    added_s = timeline.added_ns / _NS_PER_S
    if abs(added_s - predicted.recompute_s - predicted.stall_s) > _SAME_S:
        found.append(
            f"the plan predicts that it adds {duration(predicted.recompute_s + predicted.stall_s)} to the step; it "
            f"adds {duration(added_s)} now: it was changed by hand, or made with another device profile or planner"
        )
    return tuple(found)


def report_text(report: Report, written: str) -> str:
    """What `planner report` prints: what makes up each peak, and where the report was written."""
    plan, peaks = report.summary.plan, report.memory.peaks
    rows = [
        (str(kind), *(gigabytes(size) if (size := peak.by_kind_bytes[place]) else "–" for peak in peaks))
        for place, kind in enumerate(report.memory.kinds)
    ]
    rows.append(("total", *(gigabytes(peak.total_bytes) for peak in peaks)))
    parts = [
        [
            f"{plan.model.name} on {plan.device}, budget {gigabytes(plan.budget_bytes)}: "
            f"predicted peak {gigabytes(plan.predicted.peak_bytes)}, step {duration(plan.predicted.step_s)}"
        ],
        table(("Memory at", *(peak_in_words(peak) for peak in peaks)), rows),
        wrapped(f"Solver     {plan.solver.status}: {proof_in_words(report.summary)}"),
        [line for note in report.notes for line in wrapped(f"Note: {note}")],
        [f"Report     {written}"],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def peak_in_words(peak: Moment) -> str:
    """What a column about a peak is called."""
    return f"peak of {peak.phase}" if peak.phase in ("forward", "backward") else peak.phase


def report_document(report: Report, written: str | None) -> dict[str, Any]:
    """What `planner report --json` prints. Sizes in bytes, times in seconds from the start of the step."""
    memory = report.memory
    document = plan_document(report.summary)
    return {
        **{key: value for key, value in document.items() if key not in _OF_SOLVING},
        "memory": {
            "kinds": [str(kind) for kind in memory.kinds],
            "backward_s": memory.backward_s,
            "optimizer_s": memory.optimizer_s,
            "end_s": memory.end_s,
            "peaks": [_moment(peak, memory) for peak in memory.peaks],
            "columns": [_moment(column, memory) for column in memory.columns],
        },
        "modules": [
            {
                "modules": row.modules,
                "class": row.kind,
                "bytes": row.size_bytes,
                **{str(total.retention): {"tensors": total.tensors, "bytes": total.size_bytes} for total in row.totals},
            }
            for row in report.modules
        ],
        "groups": [asdict(group) for group in report.summary.groups],
        "frontier": None if report.frontier is None else frontier_document(report.frontier),
        "versions": asdict(report.versions),
        "notes": list(report.notes),
        "plan": report.plan_file,
        "spec": report.spec_file,
        "report": written,
    }


def _moment(moment: Moment, memory: MemoryOverTime) -> dict[str, Any]:
    return {
        "phase": moment.phase,
        "at": moment.at,
        "start_s": moment.start_s,
        "end_s": moment.end_s,
        "bytes": moment.total_bytes,
        "by_kind": _nonzero(memory, moment.by_kind_bytes),
    }


def _nonzero(memory: MemoryOverTime, sizes: Sequence[int]) -> dict[str, int]:
    """The kinds that have bytes, by name."""
    return {str(kind): size for kind, size in zip(memory.kinds, sizes, strict=True) if size}
