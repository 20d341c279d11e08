"""A published measurement: what was run, what was measured, or why we cannot say."""

from dataclasses import dataclass
from enum import StrEnum

from planner.estimation.run import Run


class Kind(StrEnum):
    """What a figure counts."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DEVICE = "device total"
    FITS = "fits"
    OOM = "out of memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a measurement file.

    Attributes:
        id: of the row.
        source: of the figure, without the page.
        kind: what it counts.
        measured_bytes: the figure; for FITS and OOM the device's memory.
        run: what was run, or None.
        refusal: why it cannot be expressed, or None.
        parameters: of the model.
        is_dense: no mixture of experts.
        label: for the reader: model and settings.
        suspect: the file itself marks the figure as impossible.
        device_bytes: the memory of the device it ran on, or 0 if that is not stated.
    """

    id: str
    source: str
    kind: Kind
    measured_bytes: int
    run: Run | None
    refusal: str | None
    parameters: int
    is_dense: bool
    label: str
    suspect: bool = False
    device_bytes: int = 0
