"""Rows of Megatron-LM's golden values: the memory of the last rank in its functional tests, exact to the byte.

None of them can be expressed yet: the closed form is of one rank without tensor and pipeline parallelism. Each is
refused with that reason, so that coverage counts it.
"""

import csv
from pathlib import Path

from benchmarks.measurements.row import Kind, Row

COLUMNS = ("name", "plat", "layers", "tp", "mem_max")
_REFUSAL = "Megatron-LM's modules, buffers and parallel degrees are not described"


def read(path: Path) -> list[Row]:
    """The rows of a file of this form."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return [_row(cells) for cells in csv.DictReader(file)]


def _row(cells: dict[str, str | None]) -> Row:
    name, platform = cells.get("name") or "?", cells.get("plat") or "?"
    try:
        measured_bytes = round(float(cells.get("mem_max") or ""))
    except (ValueError, OverflowError):
        measured_bytes, refusal = 0, f"mem_max is not a number of bytes ({cells.get('mem_max')!r})"
    else:
        refusal = _REFUSAL
    return Row(
        id=f"{name}@{platform}",
        source="NVIDIA/Megatron-LM:golden values",
        kind=Kind.ALLOCATED,
        measured_bytes=measured_bytes,
        run=None,
        refusal=refusal,
        parameters=0,
        is_dense=not cells.get("experts"),
        label=f"{name} on {platform}",
    )
