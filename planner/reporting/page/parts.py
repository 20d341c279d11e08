"""What the sections of the page share: tables, axes, and colours by kind."""

import re
from collections.abc import Iterable, Sequence

from planner.plan import Retention
from planner.reporting.page.html import Child, Markup, join, tag
from planner.simulation.kinds import MemoryKind

# Names of colours in the style sheet. What no plan changes is grey.
KIND_COLOURS = {
    MemoryKind.PARAMETERS: "grey-1",
    MemoryKind.OPTIMIZER_STATE: "grey-2",
    MemoryKind.BUCKETS: "grey-3",
    MemoryKind.GRADIENTS: "grey-4",
    MemoryKind.SHARDING: "grey-5",
    MemoryKind.INPUTS: "grey-6",
    MemoryKind.KEPT: "blue",
    MemoryKind.OFFLOADED: "sky",
    MemoryKind.REPLAYED: "orange",
    MemoryKind.FORWARD: "green",
    MemoryKind.BACKWARD: "red",
    MemoryKind.WORKSPACE: "pink",
    MemoryKind.OPTIMIZER_STEP: "yellow",
}
RETENTION_COLOURS = {Retention.SAVE: "blue", Retention.RECOMPUTE: "orange", Retention.OFFLOAD: "sky"}
_TICKS = 5
_AT_END = 0.03  # labels this close to an end of an axis, as a part of it, begin or end there


def section(identity: str, title: str, *children: Child) -> Markup:
    """A part of the page with a heading."""
    heading = f"{identity}-title"
    return tag("section", tag("h2", title, id=heading), *children, id=identity, aria_labelledby=heading)


def table(
    caption: str, header: Sequence[Child], rows: Iterable[Sequence[Child]], *, left: int = 1, foot: bool = False
) -> Markup:
    """A table that scrolls by itself where the page is too narrow.

    Args:
        caption: what it shows.
        header: a title for each column.
        rows: cells, as many in each row; the first one names the row.
        left: how many of the first columns hold text; the rest are numbers.
        foot: whether the last row is a total.
    """
    lines = [_row(row, left) for row in rows]
    head = tag("tr", *(tag("th", cell, scope="col", class_=_side(place, left)) for place, cell in enumerate(header)))
    body = lines[:-1] if foot else lines
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", head),
            tag("tbody", *body),
            tag("tfoot", lines[-1]) if foot else None,
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def _row(cells: Sequence[Child], left: int) -> Markup:
    first, *rest = cells
    return tag(
        "tr",
        tag("th", first, scope="row"),
        *(tag("td", cell, class_=_side(place, left)) for place, cell in enumerate(rest, start=1)),
    )


def _side(place: int, left: int) -> str | None:
    return "n" if place >= left else None


def swatch(colour: str) -> Markup:
    """A patch of a colour, as in a legend."""
    return tag("span", class_=f"swatch {colour}", aria_hidden="true")


def details(summary: str, *children: Child) -> Markup:
    """What is shown when asked for."""
    return tag("details", tag("summary", summary), *children)


def facts(rows: Iterable[tuple[str, Child]]) -> Markup:
    """Terms and what they are."""
    return tag("dl", *(join((tag("dt", term), tag("dd", what))) for term, what in rows))


def percent_of(value: float, whole: float) -> str:
    """A place on an axis for a style sheet."""
    return f"{100 * value / whole if whole else 0:.3f}%"


def nice_step(highest: float) -> float:
    """The distance of round ticks: about `_TICKS` of them reach the highest value."""
    if highest <= 0:
        return 1.0
    rough = highest / _TICKS
    power = 10.0 ** _exponent(rough)
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def ticks(lowest: float, highest: float) -> list[float]:
    """Round values from lowest to highest."""
    step = nice_step(highest - lowest)
    first = -(-lowest // step)
    return [(first + place) * step for place in range(int((highest - first * step) / step + 1e-9) + 1)]


def _exponent(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def tick_labels(places: Iterable[tuple[float, str]], axis: str) -> Markup:
    """Labels beside an axis, "x" or "y", each at its place from 0 to 1."""
    side = "left" if axis == "x" else "bottom"
    labels = (
        tag("span", label, class_=_end_of_axis(place), style=f"{side}:{100 * place:.3f}%") for place, label in places
    )
    return tag("div", *labels, class_=f"axis {axis}", aria_hidden="true")


def _end_of_axis(place: float) -> str | None:
    """A class for labels that would stick out if they were centred."""
    return "first" if place < _AT_END else "last" if place > 1 - _AT_END else None


def tick(value: float, unit: str) -> str:
    """A round value with its unit, without needless digits."""
    return f"{value:.10g}{'' if unit == '%' else ' '}{unit}"


def module_path(path: str) -> Markup:
    """A module path or pattern, which may be broken after its dots and underscores."""
    words = re.split(r"(?<=[^.]\.)(?=[^.])|(?<=_)(?=[^_])", path or "(the model)")
    return join(child for word in words for child in (word, tag("wbr")))
