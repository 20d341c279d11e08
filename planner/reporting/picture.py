"""The frontier as a picture. Needs the "plot" extra; draws without a display."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from io import BytesIO
from itertools import cycle
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from planner.tradeoff import Frontier, Rival

# Colours that people with any kind of colour vision tell apart (Okabe and Ito 2008); shapes differ as well.
_OURS = "#000000"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "p", "*")
_SETTINGS = {
    "svg.hashsalt": "planner",  # the same frontier gives the same bytes
    "svg.fonttype": "none",  # text stays text: it can be searched, and read aloud
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
BYTES_PER_GB = 1e9
# Rules that cost far more than the rest go to the upper edge, with their value, or nothing else could be read.
_TALLEST = 1.25
# Where a label may go, in points from its mark: to its right or left, level, above or below.
_LABEL_OFFSETS = ((8, -3), (8, 8), (8, -14), (-8, -3), (-8, 8), (-8, -14), (8, 20), (-8, 20))
_LABEL_POINTS = 8
_POINTS_PER_INCH = 72


def picture(found: "Frontier", file_format: str) -> bytes:
    """The picture as the bytes of a file: "png" or "svg"."""
    with drawing():
        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.subplots()
        draw_frontier(axes, found)
        axes.set_title(f"{found.model} on {found.device}", loc="left")
        figure.legend(frameon=False, fontsize=9, loc="outside right upper")
        return file_of(figure, file_format)


def drawing() -> AbstractContextManager[None]:
    """Our settings, around everything that draws."""
    return rc_context(_SETTINGS)


def file_of(figure: Figure, file_format: str) -> bytes:
    """The figure as the bytes of a file: "png" or "svg"."""
    out = BytesIO()
    figure.savefig(out, format=file_format, dpi=150, metadata={"Date": None} if file_format == "svg" else None)
    return out.getvalue()


def draw_frontier(axes: Any, found: "Frontier") -> None:
    """Budgets against what they cost, beside the rules of others."""
    top = _height(found)
    _draw_memory(axes, found)
    _draw_peers(axes, found, top)
    axes.plot(
        [point.budget_bytes / BYTES_PER_GB for point in found.points],
        [100 * point.overhead for point in found.points],
        color=_OURS,
        linewidth=2,
        marker="o",
        markersize=5,
        label="planner",
        zorder=5,
    )
    axes.set_ylim(bottom=0, top=top)
    _draw_baselines(axes, found.baselines, top)
    axes.set_xlabel("Memory budget, or peak of a rule (GB = 10⁹ bytes)")
    axes.set_ylabel("Recompute and stall time (% of the step)")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _height(found: "Frontier") -> float:
    """The upper end of the axis in percent."""
    usual = [point.overhead for point in found.points] + [rival.overhead for rival in found.baselines]
    return max(100 * _TALLEST * max(usual, default=0.0), 1.0)


def _draw_memory(axes: Any, found: "Frontier") -> None:
    memory_bytes = found.device_memory_bytes
    peaks = [*found.budgets_bytes, *(rival.peak_bytes for rival in found.baselines)]
    if min(peaks) <= memory_bytes <= max(peaks):
        axes.axvline(memory_bytes / BYTES_PER_GB, color="#888888", linestyle=":", label=f"memory of {found.device}")


def _draw_peers(axes: Any, found: "Frontier", top: float) -> None:
    """A line for each rule with a setting, its fastest plan at each budget; a labelled point for each rule without."""
    by_hand = {rival.name for rival in found.baselines}
    plans: dict[str, list[Rival]] = {}
    for row in found.peers:
        for rival in row.fastest:
            if rival.name not in by_hand and rival not in plans.setdefault(rival.name, []):
                plans[rival.name].append(rival)
    styles = zip(cycle(_COLOURS), cycle(reversed(_MARKERS)), strict=False)
    for (name, rivals), (colour, marker) in zip(plans.items(), styles, strict=False):
        axes.plot(
            [rival.peak_bytes / BYTES_PER_GB for rival in rivals],
            [min(100 * rival.overhead, top) for rival in rivals],
            color=colour,
            linewidth=1 if len(rivals) > 1 else 0,
            linestyle="--",
            marker=marker,
            markersize=5,
            clip_on=False,
            label=_label(name, min(rival.overhead for rival in rivals), top),
        )


def _draw_baselines(axes: Any, rivals: Iterable["Rival"], top: float) -> None:
    places = []
    for rival, colour, marker in zip(rivals, cycle(_COLOURS), cycle(_MARKERS), strict=False):
        place = rival.peak_bytes / BYTES_PER_GB, min(100 * rival.overhead, top)
        axes.plot(*place, color=colour, marker=marker, markersize=8, linestyle="", label=rival.name, zorder=6)
        places.append((rival.name, place))
    taken: list[_Box] = []
    for name, place in places:
        offset, box = _free_place(axes, name, place, taken)
        taken.append(box)
        axes.annotate(
            name,
            place,
            xytext=offset,
            textcoords="offset points",
            ha="left" if offset[0] > 0 else "right",
            fontsize=_LABEL_POINTS,
            color="#333333",
        )


_Box = tuple[float, float, float, float]  # left, bottom, right, top, in points


def _free_place(
    axes: Any, name: str, place: tuple[float, float], taken: Iterable[_Box]
) -> tuple[tuple[int, int], _Box]:
    """The first offset at which a label lies within the axes and on no other label; the first of all if there is none.

    Its size is estimated from its letters: close enough, and it needs no drawing.
    """
    scale = _POINTS_PER_INCH / axes.figure.dpi
    x, y = axes.transData.transform(place) * scale
    frame = axes.bbox
    width, height = 0.55 * _LABEL_POINTS * len(name), 1.2 * _LABEL_POINTS
    boxes = []
    for right, up in _LABEL_OFFSETS:
        left = x + right if right > 0 else x + right - width
        boxes.append((left, y + up, left + width, y + up + height))
    for offset, box in zip(_LABEL_OFFSETS, boxes, strict=True):
        inside = box[0] >= frame.x0 * scale and box[2] <= frame.x1 * scale and box[1] >= frame.y0 * scale
        if inside and not any(_overlap(box, other) for other in taken):
            return offset, box
    return _LABEL_OFFSETS[0], boxes[0]


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _label(name: str, overhead: float, top: float) -> str:
    return name if 100 * overhead <= top else f"{name} (from {100 * overhead:.0f}%)"
