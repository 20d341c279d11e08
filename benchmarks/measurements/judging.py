"""Rows held against the closed form: errors, intervals, verdicts, and figures that cannot be."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from benchmarks.measurements.row import Kind, Row
from planner.costs.reserved import reserved_interval
from planner.estimation.estimate import static_of
from planner.estimation.phases import Phase, phases_of_stage
from planner.estimation.run import Run
from planner.estimation.verdict import CONTEXT_HIGH_BYTES, CONTEXT_LOW_BYTES

_OPTIMIZER_STEPS = frozenset({Phase.FIRST_STEP, Phase.STEP})
_ROUNDED = 0.005  # figures have three digits or more
_FIGURES = (Kind.ALLOCATED, Kind.RESERVED, Kind.DEVICE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A row and what the closed form says of it.

    Attributes:
        row: the row.
        estimate_bytes: what is allocated at the peak; 0 if the row is refused.
        phase: of the peak.
        low_bytes, high_bytes: what the allocator reserves, or with the context what the device shows.
        impossible: why the figure cannot be, or None.
    """

    row: Row
    estimate_bytes: int = 0
    phase: str = ""
    low_bytes: int = 0
    high_bytes: int = 0
    impossible: str | None = None

    @property
    def is_expressed(self) -> bool:
        return self.row.run is not None

    @property
    def compared_bytes(self) -> int:
        """What the figure is held against: the peak, or the middle of the interval."""
        return self.estimate_bytes if self.row.kind is Kind.ALLOCATED else (self.low_bytes + self.high_bytes) // 2

    @property
    def error(self) -> float:
        """Of the estimate, as a share of the figure."""
        return self.compared_bytes / self.row.measured_bytes - 1

    @property
    def counts(self) -> bool:
        """It has an error that means something."""
        return self.is_expressed and self.impossible is None and self.row.kind in _FIGURES

    @property
    def says_oom(self) -> bool:
        """Not even without holes does it fit the device that the row names."""
        return bool(self.row.device_bytes) and self.low_bytes + CONTEXT_LOW_BYTES > self.row.device_bytes

    @property
    def says_fits(self) -> bool:
        """It fits with the most holes and the largest context."""
        return bool(self.row.device_bytes) and self.high_bytes + CONTEXT_HIGH_BYTES <= self.row.device_bytes


def judge(row: Row) -> Judged:
    """The row with its estimate."""
    if row.run is None:
        return Judged(row=row)
    peak = max(phases_of_stage(row.run), key=lambda phase: phase.size_bytes)
    interval = reserved_interval(allocated_bytes=peak.size_bytes - row.run.workspace_bytes)
    is_device = row.kind is Kind.DEVICE
    return Judged(
        row=row,
        estimate_bytes=peak.size_bytes,
        phase=peak.phase,
        low_bytes=interval.low_bytes + (CONTEXT_LOW_BYTES if is_device else 0),
        high_bytes=interval.high_bytes + (CONTEXT_HIGH_BYTES if is_device else 0),
        impossible=_impossible(row, row.run),
    )


def _impossible(row: Row, run: Run) -> str | None:
    static = static_of(run)
    floor_bytes = static.parameters + static.master + static.reduced_gradients + static.optimizer
    if row.kind not in _FIGURES or row.measured_bytes * (1 + _ROUNDED) >= floor_bytes:
        return None
    figure, floor = f"{row.measured_bytes / 1e9:.2f} GB", f"{floor_bytes / 1e9:.1f} GB"
    return f"{figure} is below the {floor} that parameters, gradients and {run.optimizer} state alone take"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of some rows, as shares."""

    count: int
    median: float
    p90: float
    lowest: float
    highest: float


def summary(errors: Iterable[float]) -> Summary | None:
    """The errors' median and 90th percentile without their signs, and the extremes; None without any."""
    signed = sorted(errors)
    if not signed:
        return None
    sizes = sorted(abs(error) for error in signed)
    return Summary(
        count=len(sizes),
        median=median(sizes),
        p90=sizes[ceil(0.9 * len(sizes)) - 1],  # the smallest that nine in ten do not exceed
        lowest=signed[0],
        highest=signed[-1],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """One line of what is demanded: found is None where no row bears on it."""

    demand: str
    found: str | None
    holds: bool


_DENSE = 10**9  # parameters
_STEP_WITHIN, _MOST_WIDE, _LEAST_HELD, _MOST_FALSE_OOM = 0.005, 0.25, 0.9, 0.1
_MEDIAN, _P90, _UNDER = 0.05, 0.12, 0.08


def acceptance(rows: Sequence[Judged]) -> list[Acceptance]:
    """Each demand, and whether the rows meet it."""
    allocated = [one for one in rows if one.counts and one.row.kind is Kind.ALLOCATED]
    dense = summary(one.error for one in allocated if one.row.is_dense and one.row.parameters >= _DENSE)
    steps = summary(one.error for one in allocated if one.phase in _OPTIMIZER_STEPS)
    found = [
        _demand("dense, at least 1B, allocated: median error at most 5%", dense and dense.median, most=_MEDIAN),
        _demand("dense, at least 1B, allocated: 90th percentile at most 12%", dense and dense.p90, most=_P90),
        _demand(
            "dense, at least 1B, allocated: underestimates at most 8%",
            dense and max(0.0, -dense.lowest),
            most=_UNDER,
        ),
        _demand(
            "peak in the optimizer step: within 0.5%",
            steps and max(steps.highest, -steps.lowest),
            most=_STEP_WITHIN,
        ),
    ]
    reserved = [one for one in rows if one.counts and one.row.kind is Kind.RESERVED]
    held = [one.low_bytes <= one.row.measured_bytes <= one.high_bytes for one in reserved]
    widths = [one.high_bytes / one.low_bytes - 1 for one in reserved]
    found.append(_demand("reserved: at least 90% of rows in the interval", _share(held), least=_LEAST_HELD))
    found.append(_demand("reserved: intervals at most 25% wide", max(widths, default=None), most=_MOST_WIDE + 1e-9))
    failed = [one.says_fits for one in rows if one.is_expressed and one.row.kind is Kind.OOM]
    ran = [
        one.says_oom
        for one in rows
        if one.is_expressed and one.impossible is None and one.row.kind is not Kind.OOM and one.row.device_bytes
    ]
    found.append(_demand("rows out of memory: none is said to fit", _share(failed), most=0.0))
    found.append(_demand("rows that ran: at most 10% are said not to", _share(ran), most=_MOST_FALSE_OOM))
    return found


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def _demand(demand: str, found: float | None, *, most: float | None = None, least: float | None = None) -> Acceptance:
    if found is None:
        return Acceptance(demand=demand, found=None, holds=False)
    holds = (most is None or found <= most) and (least is None or found >= least)
    return Acceptance(demand=demand, found=f"{found:.2%}", holds=holds)
