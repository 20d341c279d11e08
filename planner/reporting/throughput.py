"""What `planner solve --objective throughput` prints beside the plan: micro-batches against tokens per second."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from planner.reporting.tables import duration, gigabytes, percent, table, wrapped
from planner.units import format_rate

if TYPE_CHECKING:
    from planner.throughput import Attempt, Throughput

_NONE = "–"
_FITS = "fits"
_NO = ("too large", "too large at any size")


def throughput_text(found: "Throughput") -> str:
    """The table for a person, and which row was chosen; says so when the search has not ended."""
    how = "those named" if found.is_given else f"searched from the spec's {found.own_micro_batch}"
    head = wrapped(
        f"{found.model} on {found.device}, budget {gigabytes(found.budget_bytes)}: {found.unit} per second by "
        f"micro-batch, {how}"
    )
    if not found.is_complete:
        head.append(f"INTERRUPTED: {len(found.tried)} micro-batches are done, and none is chosen")
    notes = [line for note in found.notes for line in wrapped(f"Note: {note}")]
    parts = [head, _rows(found.tried, found.unit), _reasons(found.tried), notes, _choice(found)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def throughput_document(found: "Throughput") -> dict[str, Any]:
    """The same for a program. Sizes in bytes, times in seconds; rates are per device."""
    return {
        "status": "complete" if found.is_complete else "interrupted",
        **{name: getattr(found, name) for name in ("model", "device", "budget_bytes", "unit", "own_micro_batch")},
        "micro_batch": found.chosen.attempt.micro_batch if found.chosen else None,
        "tokens_per_s": found.chosen.attempt.tokens_per_s if found.chosen else None,
        "tried": [
            {**asdict(row), "verdict": str(row.verdict), "tokens_per_s": row.tokens_per_s} for row in found.tried
        ],
        "notes": list(found.notes),
    }


def _rows(tried: Sequence["Attempt"], unit: str) -> list[str]:
    if not tried:
        return []
    return table(
        ("Micro-batch", f"{unit}/s", "peak", "step", "recompute", "stall", "gap", "fits", "graph"),
        [_row(attempt) for attempt in tried],
    )


def _row(attempt: "Attempt") -> tuple[str, ...]:
    if attempt.verdict != _FITS:
        peak = gigabytes(attempt.peak_bytes) if attempt.peak_bytes else _NONE
        fits = "no" if attempt.verdict in _NO else str(attempt.verdict)
        return (str(attempt.micro_batch), _NONE, peak, *[_NONE] * 4, fits, _NONE)
    return (
        str(attempt.micro_batch),
        format_rate(attempt.tokens_per_s),
        gigabytes(attempt.peak_bytes),
        duration(attempt.step_s),
        duration(attempt.recompute_s),
        duration(attempt.stall_s),
        percent(attempt.gap),
        "yes",
        "scaled" if attempt.is_scaled else "traced",
    )


def _reasons(tried: Sequence["Attempt"]) -> list[str]:
    return [
        line
        for attempt in tried
        if attempt.why
        for line in wrapped(f"Micro-batch {attempt.micro_batch} {attempt.verdict}: {attempt.why}")
    ]


def _choice(found: "Throughput") -> list[str]:
    if found.refusal is not None:
        return [f"None of these fits. What follows is about the smallest, {found.refusal.micro_batch}:"]
    if found.chosen is None:
        return []
    best = found.chosen.attempt
    line = f"Chosen     micro-batch {best.micro_batch}"
    own = next((row for row in found.tried if row.micro_batch == found.own_micro_batch), None)
    if best.micro_batch == found.own_micro_batch:
        return [f"{line}, as in the spec"]
    lines = [line]
    if own is not None and own.tokens_per_s:
        gain = best.tokens_per_s / own.tokens_per_s - 1
        lines = [f"{line}: {gain:+.1%} {found.unit}/s beside the spec's {own.micro_batch}"]
    return [*lines, "The plan is for that micro-batch: change the spec's before using it"]
