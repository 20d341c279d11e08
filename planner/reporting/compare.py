"""What `planner compare` prints: techniques beside each other, and which combination to take."""

from collections.abc import Sequence
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
    lines = _rows(found)
    parts = [head, lines, _peaks(found.rows), _remarks(found), wrapped(recommendation(found))]
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
    header = ("", "fits", "peak", "saves", "act.", "step", "replay", "waiting", "by")
    cells = [_cells(row) for row in found.rows]
    lines = table(header, cells)
    start = 2 + len(found.alone)
    own, single, joint = lines[:2], lines[2:start], lines[start:]
    return [*own, *_headed("Alone", single), *_headed("Together", joint)]


def _headed(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *lines] if lines else []


def _cells(row: "Row") -> tuple[str, ...]:
    return (
        row.name,
        "yes" if row.fits else "no",
        gigabytes(row.peak_bytes),
        gigabytes(row.saved_bytes) if row.changes else _NONE,
        _NONE if row.saved_share is None or row.saved_share < 0 or not row.changes else f"{row.saved_share:.0%}",
        *(
            _NONE if seconds is None else duration(seconds)
            for seconds in (row.step_s, row.recompute_s, row.stall_s)
        ),
        _SHORT[row.mechanism],
    )


def _peaks(rows: Sequence["Row"]) -> list[str]:
    """Where the peaks are, the moment that most rows share first."""
    places: dict[str, list[str]] = {}
    for row in rows:
        places.setdefault(short_op(row.peak_at), []).append(row.name)
    ranked = sorted(places.items(), key=lambda item: -len(item[1]))
    if len(ranked) == 1:
        return wrapped(f"Peaks are at {ranked[0][0]}.")
    return [line for place, names in ranked for line in wrapped(f"Peak at {place}: {'; '.join(names)}")]


def _remarks(found: "Comparison") -> list[str]:
    lines = [
        "saves: of the peak as it is; act.: of what is not static memory then "
        f"({gigabytes(found.static_bytes)}). closed: by the closed form."
    ]
    reasons: dict[str, list[str]] = {}
    for row in found.rows:
        if row.why_no_time:
            reasons.setdefault(row.why_no_time, []).append(row.name)
    lines += [f"No times, {why}: {'; '.join(names)}" for why, names in reasons.items()]
    lines += [f"No row for {skipped.name}: {skipped.why}" for skipped in found.skipped]
    if found.missing:
        lines.append(f"Missing: sequences shared by ranks and other losses, since {found.missing}")
    lines += [f"Note: {note}" for note in found.notes]
    return [line for text in lines for line in wrapped(text)]
