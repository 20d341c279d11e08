"""The chart of memory over the step, with its legend: what makes up each peak, kind by kind."""

from collections.abc import Sequence
from typing import Any

from planner.reporting.memory import MemoryOverTime, Moment
from planner.reporting.page.html import Markup, join, tag
from planner.reporting.page.parts import KIND_COLOURS, percent_of, swatch, table, tick, tick_labels, ticks
from planner.reporting.report import peak_in_words
from planner.reporting.tables import duration, gigabytes
from planner.simulation.kinds import MemoryKind

# The chart's own units from bottom to top; it is stretched to whatever room the page has.
HEIGHT = 1000
# Above the highest point there is room for the number of a peak.
_HEADROOM = 1.14
# A budget this many times the peak is not drawn: the rest would be squashed.
_FAR_BUDGET = 2
# Names of phases are shown where they fit.
_NARROW = 0.1
_BYTES_PER_GB = 1e9
_TINY_BYTES = 5_000_000  # of peaks of many GB, less than this is no more than "something"
_KIND_HINTS = {
    MemoryKind.PARAMETERS: "with buffers",
    MemoryKind.GRADIENTS: "of parameters",
    MemoryKind.SHARDING: "gathered parameters, reductions",
    MemoryKind.KEPT: "saved tensors, and what replays start from",
    MemoryKind.OFFLOADED: "until they have left, and once back",
    MemoryKind.REPLAYED: "made again in backward",
    MemoryKind.FORWARD: "not kept for backward",
    MemoryKind.BACKWARD: "and other temporaries of backward",
    MemoryKind.WORKSPACE: "of kernels",
}


def memory_chart(memory: MemoryOverTime, budget_bytes: int) -> Markup:
    """The stacked chart: bytes over time by kind, the budget, and the numbers of the peaks."""
    top_bytes = _top(memory, budget_bytes)
    values = ticks(0, top_bytes / _BYTES_PER_GB)
    plot = tag(
        "div",
        tag(
            "svg",
            *(_line(value * _BYTES_PER_GB, memory, top_bytes, "grid") for value in values),
            *stacked(memory, top_bytes),
            _line(budget_bytes, memory, top_bytes, "budget") if budget_bytes <= top_bytes else None,
            viewBox=f"0 0 {len(memory.columns)} {HEIGHT}",
            preserveAspectRatio="none",
            aria_hidden="true",
        ),
        *(_mark(number, peak, memory, top_bytes) for number, peak in enumerate(memory.peaks, start=1)),
        _budget_label(budget_bytes, top_bytes) if budget_bytes <= top_bytes else None,
        tag("div", class_="cursor", hidden=True),
        class_="plot tall",
        id="memory-plot",
        role="img",
        aria_label=_in_words(memory, budget_bytes),
    )
    y = [(value * _BYTES_PER_GB / top_bytes, tick(value, "GB")) for value in values]
    return tag(
        "div",
        tick_labels(y, "y"),
        plot,
        _phases(memory),
        time_axis(memory.end_s),
        class_="chart",
    )


def time_axis(end_s: float) -> Markup:
    """Labels of the time from the start of the step."""
    unit, scale = ("s", 1.0) if end_s >= 2 else ("ms", 1e3)
    places = [(value / (end_s * scale), tick(value, unit)) for value in ticks(0, end_s * scale)] if end_s else []
    return tick_labels(places, "x")


def stacked(memory: MemoryOverTime, top_bytes: int) -> list[Markup]:
    """A path for each kind, from the top of the stack down: each covers what those below it will paint over."""
    paths = []
    for place in reversed(range(len(memory.kinds))):
        heights = [HEIGHT - round(HEIGHT * sum(c.by_kind_bytes[: place + 1]) / top_bytes) for c in memory.columns]
        paths.append(tag("path", d=outline(heights), class_=KIND_COLOURS[memory.kinds[place]]))
    return paths


def outline(heights: Sequence[int]) -> str:
    """The area under a line of steps, one unit wide each, down to the bottom."""
    commands = [f"M0,{HEIGHT}"]
    for place, height in enumerate(heights):
        if place == 0 or height != heights[place - 1]:
            commands.append(f"H{place}V{height}" if place else f"V{height}")
    commands.append(f"H{len(heights)}V{HEIGHT}Z")
    return "".join(commands)


def peaks_table(memory: MemoryOverTime) -> Markup:
    """The legend of the chart, and as a table what it shows at the peaks."""
    header = [
        "Kind",
        *(
            join((tag("span", str(number), class_="number"), " ", peak.phase.partition(" ")[0].capitalize()))
            for number, peak in enumerate(memory.peaks, start=1)
        ),
        tag("span", "At the cursor", class_="at-cursor"),
    ]
    rows: list[list[str]] = []
    for place, kind in reversed(list(enumerate(memory.kinds))):
        hint = _KIND_HINTS.get(kind)
        name = join((swatch(KIND_COLOURS[kind]), tag("span", str(kind)), tag("small", f" {hint}") if hint else None))
        rows.append([name, *(_size(peak.by_kind_bytes[place]) for peak in memory.peaks), _cursor(place)])
    rows.append(["When", *(duration(peak.start_s) for peak in memory.peaks), tag("span", "–", data_cursor="when")])
    rows.append(
        ["Total", *(gigabytes(peak.total_bytes) for peak in memory.peaks), tag("span", "–", data_cursor="total")]
    )
    return table("What is alive at each peak", header, rows, foot=True)


def peaks_in_words(memory: MemoryOverTime) -> Markup:
    """Where in the step each peak is."""
    return tag(
        "ol",
        *(
            tag(
                "li",
                tag("strong", f"{peak_in_words(peak).capitalize()}, {gigabytes(peak.total_bytes)}"),
                "" if peak.at == peak.phase else f" at {peak.at.partition(', ')[2]}",
                f", {duration(peak.start_s)} into the step",
            )
            for peak in memory.peaks
        ),
        class_="peaks",
        id="peaks",
    )


def cursor_data(memory: MemoryOverTime) -> dict[str, Any]:
    """What the page's script needs to read the chart out: for each column where it is, and bytes by kind."""
    places = list(dict.fromkeys(column.at for column in memory.columns))
    index = {at: place for place, at in enumerate(places)}
    return {
        "end_s": memory.end_s,
        "places": places,
        "columns": [[index[column.at], *column.by_kind_bytes] for column in memory.columns],
    }


def _top(memory: MemoryOverTime, budget_bytes: int) -> int:
    shown = [memory.peak_bytes]
    if budget_bytes <= _FAR_BUDGET * memory.peak_bytes:
        shown.append(budget_bytes)
    return max(1, round(_HEADROOM * max(shown)))


def _line(size_bytes: float, memory: MemoryOverTime, top_bytes: int, name: str) -> Markup:
    y = HEIGHT - round(HEIGHT * size_bytes / top_bytes)
    return tag("path", d=f"M0,{y}H{len(memory.columns)}", class_=name)


def _budget_label(budget_bytes: int, top_bytes: int) -> Markup:
    return tag(
        "span",
        f"budget {gigabytes(budget_bytes)}",
        class_="budget-label",
        style=f"bottom:{percent_of(budget_bytes, top_bytes)}",
        aria_hidden="true",
    )


def _mark(number: int, peak: Moment, memory: MemoryOverTime, top_bytes: int) -> Markup:
    where = percent_of((peak.start_s + peak.end_s) / 2, memory.end_s)
    return tag(
        "a",
        str(number),
        href="#peaks",
        class_=f"mark {peak.phase.partition(' ')[0]}",
        style=f"left:{where};bottom:{percent_of(peak.total_bytes, top_bytes)}",
        aria_label=f"{peak_in_words(peak)}: {gigabytes(peak.total_bytes)}",
    )


def _phases(memory: MemoryOverTime) -> Markup:
    bounds = [0.0, memory.backward_s, memory.optimizer_s, memory.end_s]
    names = ("forward", "backward", "optimizer")
    spans = []
    for name, start_s, end_s in zip(names, bounds[:-1], bounds[1:], strict=True):
        is_wide = end_s - start_s >= _NARROW * memory.end_s
        spans.append(
            tag(
                "span",
                name if is_wide else None,
                title=name,
                style=f"width:{percent_of(end_s - start_s, memory.end_s)}",
            )
        )
    return tag("div", *spans, class_="phases", aria_hidden="true")


def _in_words(memory: MemoryOverTime, budget_bytes: int) -> str:
    peaks = "; ".join(f"{peak_in_words(peak)} {gigabytes(peak.total_bytes)}" for peak in memory.peaks)
    return (
        f"Memory over {duration(memory.end_s)} of the step, stacked by kind: {peaks}; budget "
        f"{gigabytes(budget_bytes)}. The table below has the same figures."
    )


def _size(size_bytes: int) -> str:
    if 0 < size_bytes < _TINY_BYTES:
        return "< 0.01 GB"
    return gigabytes(size_bytes) if size_bytes else "–"


def _cursor(place: int) -> Markup:
    return tag("span", "–", data_cursor=place)
