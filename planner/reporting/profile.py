"""What `planner profile` prints."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from planner.device import ARITHMETIC, Kind, RateCurve
from planner.reporting.catalogue import device_document
from planner.reporting.tables import gigabytes, percent, table

if TYPE_CHECKING:
    from planner.runtime.profiling.run import Written

_GIGA, _MICROS = 1e9, 1e6


def profile_text(written: "Written") -> str:
    """The measured rates for a person: of each kind and dtype the lowest and the highest."""
    profile = written.profile
    lines = [
        f"Measured on {written.machine}",
        "",
        *table(["Rates", "dtype", "lowest", "highest", ""], _rows(profile.rates), left=2),
        "",
        f"Memory     {gigabytes(profile.memory_bytes)}",
        f"Dispatch   {profile.launch_s * _MICROS:.1f} µs an op",
        f"Spread     {percent(written.spread)} between the quartiles of a typical call; the machine was typically "
        f"{percent(max(0.0, written.slowdown - 1))} slower than at its best",
        "",
        f"Profile    {written.path}: name it as device in a spec, or with --device",
    ]
    return "\n".join(lines)


def _rows(rates: Mapping[Kind, Mapping[str, RateCurve]]) -> list[list[str]]:
    return [
        [
            str(kind).replace("_", " "),
            dtype,
            f"{min(curve.rates_per_s) / _GIGA:,.1f}",
            f"{max(curve.rates_per_s) / _GIGA:,.1f}",
            "GFLOP/s" if kind in ARITHMETIC else "GB/s",
        ]
        for kind, curves in rates.items()
        for dtype, curve in curves.items()
    ]


def profile_document(written: "Written") -> dict[str, Any]:
    """The profile for a program, with how it came about; times in seconds, `spread` and `slowdown` as factors."""
    return {
        "path": str(written.path),
        "machine": written.machine,
        "spread": written.spread,
        "slowdown": written.slowdown,
        "skipped": list(written.skipped),
        "profile": device_document(written.profile),
    }
