"""What `planner compare` prints: techniques beside each other, and which combination to take."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from planner.reporting.tables import duration, gigabytes, percent, table, wrapped
from planner.reporting.text import short_op

if TYPE_CHECKING:
    from planner.comparison import Comparison, Row

_NONE = "–"
# In a column of their own, there is no room for more.
_SHORT = {"traced": "traced", "closed form": "closed"}


def compare_text(found: "Comparison") -> str:
    """One table for a person, where the peaks are, why cells are empty, and one sentence on what to do."""
    head = wrapped(f"{found.model} on {found.device}, budget {gigabytes(found.budget_bytes)}: what each technique does")
    if not found.is_complete:
        done = len(found.rows) + len(found.skipped)
        head.append(f"INTERRUPTED: {done} of {found.rows_asked} rows are done, and none is recommended")
    below = [[line for text in texts for line in wrapped(text)] for texts in (_peaks(found.rows), _remarks(found))]
    parts = [head, _rows(found), *below, wrapped(recommendation(found))]
    return "\n\n".join("\n".join(part) for part in parts if part)


def compare_document(found: "Comparison") -> dict[str, Any]:
    """The same for a program. Sizes in bytes, times in seconds; null where there are none."""
    best = found.recommended
    return {
        "status": "complete" if found.is_complete else "interrupted",
        **{name: getattr(found, name) for name in ("model", "device", "budget_bytes", "static_bytes")},
        "own": _row_document(found.own),
        "alone": [_row_document(row) for row in found.alone],
        "together": [_row_document(row) for row in found.together],
        "skipped": [asdict(skipped) for skipped in found.skipped],
        "missing": found.missing or None,
        "recommended": None if best is None else best.name,
        "changes": None if best is None else list(best.changes),
        "notes": list(found.notes),
    }


def recommendation(found: "Comparison") -> str:
    """One sentence: the cheapest combination that fits and what to change, or that none does."""
    if not found.is_complete:
        return ""
    best = found.recommended
    if best is None:
        lowest = min(found.rows, key=lambda row: row.peak_bytes)
        return (
            f"None of these fits {gigabytes(found.budget_bytes)}; the smallest peak is {gigabytes(lowest.peak_bytes)}: "
            f"{lowest.name}."
        )
    peak = f"peaks at {gigabytes(best.peak_bytes)}"
    if not best.changes:
        return f"Recommended: the spec as it is; it {peak} and adds nothing."
    count = "1 change" if len(best.changes) == 1 else f"{len(best.changes)} changes"
    return f"Recommended: {best.name}; it {peak} and {_cost(found, best)}, with {count}: {'; '.join(best.changes)}."


def _cost(found: "Comparison", row: "Row") -> str:
    own_s, added_s = found.own.step_s, row.added_s
    if added_s is None or own_s is None:
        return f"its time is not known ({row.why_no_time})"
    if not added_s:
        return "adds nothing"
    return f"adds {duration(added_s)} to a step of {duration(own_s)} ({percent(added_s / own_s)})"


def _row_document(row: "Row") -> dict[str, Any]:
    return {
        **asdict(row),
        "mechanism": str(row.mechanism),
        "changes": list(row.changes),
        "why_no_time": row.why_no_time or None,
        "added_s": row.added_s,
    }


def _rows(found: "Comparison") -> list[str]:
    """The table; alone and together are headed, and share their columns."""
    header = ("", "", "fits", "peak", "saves", "act.", "step", "replay", "waiting", "by")
    lines = table(header, [(str(number), *_cells(row)) for number, row in enumerate(found.rows, start=1)], left=2)
    start = 2 + len(found.alone)
    return [*lines[:2], *_headed("Alone", lines[2:start]), *_headed("Together", lines[start:])]


def _headed(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *lines] if lines else []


def _cells(row: "Row") -> tuple[str, ...]:
    has_share = row.saved_share is not None and row.saved_share >= 0 and row.changes
    return (
        row.name,
        "yes" if row.fits else "no",
        _in_gb(row.peak_bytes),
        _in_gb(row.saved_bytes) if row.changes else _NONE,
        f"{row.saved_share:.0%}" if has_share else _NONE,
        *(_NONE if seconds is None else duration(seconds) for seconds in (row.step_s, row.recompute_s, row.stall_s)),
        _SHORT[row.mechanism],
    )


def _in_gb(size_bytes: int) -> str:
    """In GB without the unit, for which there is no room."""
    return gigabytes(size_bytes).removesuffix(" GB")


def _peaks(rows: Sequence["Row"]) -> list[str]:
    """Where the peaks are, in the order of the rows."""
    return [f"Peak at {place}: {numbers}" for place, numbers in _grouped(rows, lambda row: short_op(row.peak_at))]


def _remarks(found: "Comparison") -> list[str]:
    reasons = _grouped(found.rows, lambda row: row.why_no_time)
    skipped: dict[str, list[str]] = {}
    for one in found.skipped:
        skipped.setdefault(one.why, []).append(one.name)
    return [
        f"Sizes are in GB. act.: part of the activations, the peak as it is less {gigabytes(found.static_bytes)} of "
        "static memory. by: traced, or closed form.",
        *(f"No times, since {why}: {numbers}" for why, numbers in reasons),
        *(f"No row for {'; '.join(names)}: {why}" for why, names in skipped.items()),
        *_missing(found.missing),
        *(f"Note: {note}" for note in found.notes),
    ]


def _missing(why: str) -> list[str]:
    return [f"Missing: what only the closed form has, shared sequences and fused losses: {why}"] if why else []


def _grouped(rows: Sequence["Row"], text_of: Callable[["Row"], str]) -> list[tuple[str, str]]:
    """Each text with the numbers of the rows that have it; rows without text apart."""
    found: dict[str, list[int]] = {}
    for number, row in enumerate(rows, start=1):
        if text := text_of(row):
            found.setdefault(text, []).append(number)
    return [(text, _ranges(numbers)) for text, numbers in found.items()]


def _ranges(numbers: Sequence[int]) -> str:
    """Rising numbers, with neighbours as ranges: "1, 3–7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
