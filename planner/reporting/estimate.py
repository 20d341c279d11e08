"""What `planner estimate` prints: whether a run fits, its memory by phase and part, and what would change it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.costs.reserved import Interval
from planner.estimation.explain import Explained, Formula
from planner.estimation.knobs import Knob
from planner.estimation.phases import Phase, PhasePeak
from planner.estimation.verdict import Estimate
from planner.reporting.tables import gigabytes, percent, table, wrapped

_LABEL = 16
_LEAST_SHARE = 0.0005  # of the peak: smaller parts are left to the JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateSummary:
    """What the report is made from.

    Attributes:
        model, device: as the user named them.
        stack: what the figures are for.
        estimate: the figures.
        knobs: changes that would take less.
        notes: what else to know.
        explained: formulas, if they were asked for.
    """

    model: str
    device: str
    stack: str
    estimate: Estimate
    knobs: tuple[Knob, ...]
    notes: tuple[str, ...]
    explained: tuple[Explained, ...] = ()


def estimate_text(summary: EstimateSummary) -> str:
    """The report for a person."""
    found = summary.estimate
    parts = [
        wrapped(
            f"{found.verdict}: {summary.model} on {summary.device} needs {_interval(found.total)} of the "
            f"{gigabytes(found.usable_bytes)} there are"
        ),
        _totals(found),
        _phases(found.phases),
        _parts(found.peak),
        _knobs(summary.knobs),
        *(_explained(section) for section in summary.explained),
        [line for note in (*summary.notes, f"for {summary.stack}") for line in wrapped(f"Note: {note}")],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def estimate_document(summary: EstimateSummary) -> dict[str, Any]:
    """The same for a program. All sizes are whole bytes."""
    found = summary.estimate
    document: dict[str, Any] = {
        "model": summary.model,
        "device": summary.device,
        "stack": summary.stack,
        "verdict": str(found.verdict),
        "reason": found.reason,
        "allocated_peak_bytes": found.peak.size_bytes,
        "allocated_peak_phase": str(found.peak.phase),
        "allocated_peak_at": found.peak.where,
        "reserved_low_bytes": found.reserved.low_bytes,
        "reserved_high_bytes": found.reserved.high_bytes,
        "context_low_bytes": found.context.low_bytes,
        "context_high_bytes": found.context.high_bytes,
        "communication_low_bytes": found.communication.low_bytes,
        "communication_high_bytes": found.communication.high_bytes,
        "total_low_bytes": found.total.low_bytes,
        "total_high_bytes": found.total.high_bytes,
        "device_bytes": found.usable_bytes,
        "phases": [
            {
                "phase": str(one.phase),
                "at": one.where,
                "bytes": one.size_bytes,
                "parts": {str(part): size_bytes for part, size_bytes in one.parts.items()},
            }
            for one in found.phases
        ],
        "parts": {str(part): size_bytes for part, size_bytes in found.peak.parts.items()},
        "knobs": [
            {
                "change": knob.change,
                "effect": knob.effect,
                "allocated_peak_bytes": knob.peak_bytes,
                "total_low_bytes": knob.low_bytes,
                "total_high_bytes": knob.high_bytes,
                "verdict": str(knob.verdict),
            }
            for knob in summary.knobs
        ],
        "notes": list(summary.notes),
    }
    if summary.explained:
        document["explained"] = [
            {
                "title": section.title,
                "formulas": [
                    {
                        "name": formula.name,
                        "formula": formula_text(formula),
                        "bytes": formula.size_bytes,
                        "source": formula.source,
                    }
                    for formula in section.formulas
                ],
            }
            for section in summary.explained
        ]
    return document


def formula_text(formula: Formula) -> str:
    """The formula with its values, such as "32 blocks × 4,096 tokens × 2 bytes + 512 bytes"."""
    return " + ".join(" × ".join(f"{_number(value)} {name}" for name, value in term) for term in formula.terms)


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else repr(value)


def _interval(interval: Interval) -> str:
    low, high = gigabytes(interval.low_bytes), gigabytes(interval.high_bytes)
    return low if low == high else f"{low.removesuffix(' GB')} to {high}"


def _totals(found: Estimate) -> list[str]:
    rows = [
        ("Allocated peak", f"{gigabytes(found.peak.size_bytes)}, in {_when(found.peak)}"),
        ("Reserved", f"{_interval(found.reserved)}, by PyTorch's caching allocator"),
        ("CUDA context", _interval(found.context)),
        ("NCCL buffers", _interval(found.communication) if found.communication.high_bytes else ""),
        ("Decided by", found.reason),
    ]
    return [line for name, text in rows if text for line in wrapped(f"{name:<{_LABEL}}{text}")]


def _when(one: PhasePeak) -> str:
    return f"{one.phase} ({one.where})"


def _phases(phases: Sequence[PhasePeak]) -> list[str]:
    """One line per phase; the first optimizer step has one of its own only where it differs."""
    sizes = {one.phase: one.size_bytes for one in phases}
    is_same = sizes[Phase.FIRST_STEP] == sizes[Phase.STEP]
    shown = [one for one in phases if not (is_same and one.phase is Phase.FIRST_STEP)]
    return table(
        ("Phase", "fullest at", "allocated"),
        [(str(one.phase), one.where, gigabytes(one.size_bytes)) for one in shown],
        left=2,
    )


def _parts(peak: PhasePeak) -> list[str]:
    whole = peak.size_bytes
    shown = [(part, size_bytes) for part, size_bytes in peak.parts.items() if size_bytes >= whole * _LEAST_SHARE]
    ordered = sorted(shown, key=lambda item: -item[1])
    return table(
        ("Part, at the peak", "size", "share"),
        [(str(part), gigabytes(size_bytes), percent(size_bytes / whole)) for part, size_bytes in ordered],
    )


def _knobs(knobs: Sequence[Knob]) -> list[str]:
    singles = [knob for knob in knobs if not knob.is_combined]
    lines = []
    if singles:
        lines = table(
            ("To change it: write in the spec", "which", "verdict", "allocated", "device, at most"),
            [
                (
                    knob.change,
                    knob.effect,
                    str(knob.verdict),
                    gigabytes(knob.peak_bytes),
                    gigabytes(knob.high_bytes),
                )
                for knob in singles
            ],
            left=3,
        )
    for knob in knobs:
        if knob.is_combined:
            size, most = gigabytes(knob.peak_bytes), gigabytes(knob.high_bytes)
            lines += wrapped(f"Together: {knob.change}: {knob.verdict}, {size} allocated, {most} of the device at most")
    return lines


def _explained(section: Explained) -> list[str]:
    lines = [section.title[:1].upper() + section.title[1:]]
    source = ""
    for formula in section.formulas:
        text = f"{formula.name} = {formula_text(formula)} = {formula.size_bytes:,} bytes"
        if formula.source != source:
            source = formula.source
            lines += wrapped(f"[{source}]", indent="  ")
        lines += wrapped(text, indent="    ")
    return lines
