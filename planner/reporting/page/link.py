"""The timeline of the host link: when copies run each way, when the device waits, and the stretches in a table."""

from collections.abc import Iterable

from planner.reporting.link import LinkUse
from planner.reporting.page.html import Markup, tag
from planner.reporting.page.memory import time_axis
from planner.reporting.page.parts import module_path, table
from planner.reporting.tables import duration, gigabytes, percent

# The chart's own units across. Gaps narrower than one are closed: no screen would show them.
WIDTH = 2000

Span = tuple[float, float]


def link_chart(link: LinkUse, end_s: float) -> Markup:
    """Three lanes over the time of the step: copies out, copies back, and the device waiting."""
    lanes = (
        ("out", "sky", [copy.out_s for copy in link.copies]),
        ("back", "blue", [copy.back_s for copy in link.copies]),
        ("waits", "red", link.waits_s),
    )
    rows = [
        tag("div", tag("span", name, class_="lane-name"), _lane(spans, colour, end_s), class_="lane")
        for name, colour, spans in lanes
    ]
    return tag(
        "div",
        tag("div", *rows, class_="lanes", role="img", aria_label=link_in_words(link)),
        time_axis(end_s),
        class_="chart",
    )


def link_in_words(link: LinkUse) -> str:
    """What goes over the link, in a sentence."""
    tensors = "tensor" if link.tensors == 1 else "tensors"
    return (
        f"{link.tensors:,} {tensors} of {gigabytes(link.size_bytes)} go to the host and come back, in "
        f"{gigabytes(link.host_bytes)} of host memory. The link is busy for {percent(link.forward_busy)} of forward "
        f"and {percent(link.backward_busy)} of backward; the device waits {duration(link.stall_s)} in all."
    )


def stretches_table(link: LinkUse) -> Markup:
    """The link in stretches of the step."""
    return table(
        "The link in stretches of the step",
        ("Phase", "During", "From", "To", "Out", "Back", "Busy", "Waiting"),
        [
            (
                str(stretch.phase),
                module_path(stretch.modules),
                duration(stretch.start_s),
                duration(stretch.end_s),
                gigabytes(stretch.out_bytes) if stretch.out_bytes else "–",
                gigabytes(stretch.back_bytes) if stretch.back_bytes else "–",
                percent(stretch.busy),
                duration(stretch.stall_s),
            )
            for stretch in link.stretches
        ],
        left=2,
    )


def merged(spans: Iterable[Span], end_s: float) -> list[tuple[int, int]]:
    """The spans in units of the chart, each at least one wide, those that touch as one."""
    found: list[tuple[int, int]] = []
    for start_s, stop_s in sorted(spans):
        start = min(int(WIDTH * start_s / end_s), WIDTH - 1)
        stop = max(start + 1, round(WIDTH * stop_s / end_s))
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def _lane(spans: Iterable[Span], colour: str, end_s: float) -> Markup:
    areas = "".join(f"M{start},0H{stop}V1H{start}Z" for start, stop in merged(spans, end_s))
    return tag(
        "svg",
        tag("path", d=areas, class_=colour) if areas else None,
        viewBox=f"0 0 {WIDTH} 1",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
