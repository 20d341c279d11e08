"""Text layout for a terminal of 100 columns: quantities, aligned columns, shortened names."""

import math
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 100
_BYTES_PER_GB = 1_000_000_000
_GAP = "  "
_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))


def written(path: str) -> str:
    """The line that says where the plan is. Here, since clients of a service have no graph."""
    return f"Plan       {path}"


def gigabytes(size_bytes: int) -> str:
    """The size in GB (10⁹ bytes), never in another unit: two decimals, or two digits that count below 0.1."""
    size = size_bytes / _BYTES_PER_GB
    if size_bytes == 0 or abs(size) >= 0.1:
        return f"{size:,.2f} GB"
    return f"{size:.{min(9, 1 - math.floor(math.log10(abs(size))))}f} GB"


def duration(seconds: float) -> str:
    """The time in ms, or in s from one second on."""
    if abs(seconds) >= 0.9995:
        return f"{seconds:,.2f} s"
    value = seconds * 1e3
    decimals = 0 if value == 0 or abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{decimals}f} ms"


def count(number: float, unit: str) -> str:
    """A large number with the prefix that fits: "1.43 PFLOPs", or "870 FLOPs" below a million."""
    for scale, prefix in _PREFIXES:
        if number >= scale:
            return f"{number / scale:.3g} {prefix}{unit}"
    return f"{number:,.0f} {unit}"


def percent(fraction: float) -> str:
    """A fraction as a percentage: whole from 10% on, with two decimals below 1%."""
    value = fraction * 100
    decimals = 0 if value >= 10 or value == 0 else 1 if value >= 1 else 2
    return f"{value:.{decimals}f}%"


def shape(sizes: Iterable[int]) -> str:
    """Sizes as "1 × 8192 × 4096"; a scalar is "scalar"."""
    return " × ".join(str(size) for size in sizes) or "scalar"


def shortened(text: str, width: int) -> str:
    """The text with its middle left out when it is longer than the width."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Lines of aligned columns; the widest text column is shortened until the line fits.

    Args:
        header: one title per column.
        rows: cells, as many in each row as there are titles.
        left: how many of the first columns hold text and align to the left; the rest are numbers.
    """
    widths = [max(len(line[place]) for line in (header, *rows)) for place in range(len(header))]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - WIDTH
    if excess > 0:
        widest = max(range(left), key=lambda place: widths[place])
        widths[widest] = max(len(header[widest]), 8, widths[widest] - excess)
    return [
        _GAP.join(
            shortened(cell, width).ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (header, *rows)
    ]


def wrapped(text: str, *, indent: str = "") -> list[str]:
    """The text in lines that fit; all but the first are indented by four more columns."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "    ", break_on_hyphens=False)
