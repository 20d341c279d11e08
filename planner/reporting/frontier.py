"""What `planner frontier` prints: budgets against what they cost, beside what people and other tools do."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from planner.reporting.tables import duration, gigabytes, percent, table, wrapped

if TYPE_CHECKING:
    from planner.tradeoff import Frontier, FrontierPoint, RivalsAtBudget

# As many as fit beside the names of the rules.
_COLUMNS = 8
_NONE = "–"


def frontier_text(found: "Frontier") -> str:
    """Tables for a person; says so when not every budget is done."""
    head = [
        f"{found.model} on {found.device}: what each budget costs; a step that recomputes nothing takes "
        f"{duration(found.step_s)}"
    ]
    if not found.is_complete:
        head.append(f"INTERRUPTED: {len(found.points)} of {len(found.budgets_bytes)} budgets are done")
    parts = [
        [line for text in head for line in wrapped(text)],
        _points(found.points),
        _baselines(found),
        _fastest(found),
        _told(found.peers),
        [line for note in found.notes for line in wrapped(f"Note: {note}")],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def frontier_document(found: "Frontier") -> dict[str, Any]:
    """The same for a program. Sizes in bytes, times in seconds, overheads as fractions of `step_s`."""
    document = asdict(found)
    return {
        "status": "complete" if found.is_complete else "interrupted",
        **{key: document[key] for key in ("model", "device", "device_memory_bytes", "static_bytes", "step_s")},
        "smallest_peak_bound_bytes": found.smallest_peak_bound_bytes,
        "budgets_bytes": list(found.budgets_bytes),
        "points": [asdict(point) for point in found.points],
        "baselines": [asdict(rival) for rival in found.baselines],
        "peers": [
            {
                "budget_bytes": row.budget_bytes,
                "fastest": [asdict(rival) for rival in row.fastest],
                "told": [asdict(rival) for rival in row.told],
            }
            for row in found.peers
        ],
        "notes": list(found.notes),
    }


def cheapest_within(points: Sequence["FrontierPoint"], peak_bytes: int) -> "FrontierPoint | None":
    """The point with the largest budget that is no larger than a peak, or None below all of them."""
    return next((point for point in reversed(points) if point.budget_bytes <= peak_bytes), None)


def _points(points: Sequence["FrontierPoint"]) -> list[str]:
    if not points:
        return []
    return table(
        ("Budget", "peak", "recompute", "stall", "overhead", "gap", "status"),
        [
            (
                gigabytes(point.budget_bytes),
                gigabytes(point.peak_bytes),
                duration(point.recompute_s),
                duration(point.stall_s),
                _share(point.overhead),
                percent(point.gap),
                point.status,
            )
            for point in points
        ],
    )


def _baselines(found: "Frontier") -> list[str]:
    rows = []
    for rival in found.baselines:
        point = cheapest_within(found.points, rival.peak_bytes)
        rows.append(
            (
                rival.name,
                gigabytes(rival.peak_bytes),
                duration(rival.recompute_s),
                _share(rival.overhead),
                _share(point.overhead) if point else _NONE,
                gigabytes(point.budget_bytes) if point else _NONE,
            )
        )
    return table(("By hand", "peak", "recompute", "overhead", "a plan's", "with"), rows)


def _fastest(found: "Frontier") -> list[str]:
    """Overheads of all rules by budget; at most `_COLUMNS` budgets, the ends among them."""
    if not found.peers:
        return []
    shown = _evenly(len(found.peers), _COLUMNS)
    names = list(dict.fromkeys(rival.name for row in found.peers for rival in row.fastest))
    overheads = [{rival.name: rival.overhead for rival in found.peers[place].fastest} for place in shown]
    rows = [["a plan", *(_share(found.points[place].overhead) for place in shown)]]
    rows += [[name, *(_share(o[name]) if name in o else _NONE for o in overheads)] for name in names]
    header = ["Fastest that fits, by GB", *(f"{found.peers[place].budget_bytes / 1e9:.2f}" for place in shown)]
    return table(header, rows)


def _told(peers: Sequence["RivalsAtBudget"]) -> list[str]:
    """How often a rule that is told a budget exceeds it, and its worst case."""
    names = list(dict.fromkeys(rival.name for row in peers for rival in row.told))
    rows = []
    for name in names:
        plans = [(row.budget_bytes, rival) for row in peers for rival in row.told if rival.name == name]
        over = [(rival.peak_bytes - budget_bytes, budget_bytes) for budget_bytes, rival in plans]
        worst, budget_bytes = max(over)
        cells = (gigabytes(worst), gigabytes(budget_bytes)) if worst > 0 else (_NONE, _NONE)
        rows.append((name, f"{sum(excess > 0 for excess, _ in over)} of {len(over)}", *cells))
    return table(("Told a budget, exceeds it", "times", "by up to", "at"), rows) if rows else []


def _share(fraction: float) -> str:
    """A percentage to one decimal, so that plans close to each other can be told apart."""
    return f"{100 * fraction:.1f}%"


def _evenly(count: int, most: int) -> list[int]:
    """At most that many of the places from 0 to count, evenly spread, both ends included."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})
