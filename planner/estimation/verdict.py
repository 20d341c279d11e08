"""Whether a run fits a device: what is allocated, what the allocator reserves for it, and what lies outside of it.

Where a figure cannot be known beforehand it is an interval, and the verdict says FITS only if its upper end does.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from planner.costs.reserved import HOLES_SHARE, MIB, Interval, reserved_interval
from planner.device import DeviceProfile
from planner.estimation.phases import Phase, PhasePeak, phases_of
from planner.estimation.run import Run, Sharding

# The CUDA context with the kernels that were loaded. Reports differ by driver, GPU and libraries; none gives a
# figure by generation, so this is one interval. Sources: github.com/pytorch/pytorch/issues/107667 (about 300 MB with
# lazy loading), /issues/28113 (up to over 700 MB). Without lazy loading (before CUDA 11.7) it is more.
CONTEXT_LOW_BYTES = 300 * 10**6
CONTEXT_HIGH_BYTES = 800 * 10**6
# What each communicator of NCCL holds. Source: NCCL's documentation of NCCL_BUFFSIZE, 4 MiB for each channel. That
# there are from 2 to 32 channels, and up to 4 buffers in each (rings and trees, to and from), is an assumption.
NCCL_BUFFER_BYTES = 4 * MIB
NCCL_FEWEST_BUFFERS = 2
NCCL_MOST_BUFFERS = 32 * 4


class Verdict(StrEnum):
    """FITS: also at the upper end of every interval, and whatever a router does. OOM: not even at the lower end.

    AT RISK: in between.
    """

    FITS = "FITS"
    AT_RISK = "AT RISK"
    OOM = "OOM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The memory of a run on a device.

    Attributes:
        run: what was asked.
        phases: the fullest moment of each.
        peak: the fullest of all.
        reserved: what PyTorch's allocator takes from the driver, cuBLAS's workspaces included.
        context, communication: outside of the allocator: the CUDA context, NCCL's buffers.
        total: all of it.
        usable_bytes: what a process can have of the device.
        verdict: whether it fits.
        reason: what decided it.
    """

    run: Run
    phases: tuple[PhasePeak, ...]
    peak: PhasePeak
    reserved: Interval
    context: Interval
    communication: Interval
    total: Interval
    usable_bytes: int
    verdict: Verdict
    reason: str


def estimate(run: Run, device: DeviceProfile) -> Estimate:
    """What the run needs of the device, and whether it is there."""
    phases = phases_of(run)
    peak = max(phases, key=lambda one: one.size_bytes)
    reserved = reserved_interval(allocated_bytes=peak.size_bytes)
    context = Interval(low_bytes=CONTEXT_LOW_BYTES, high_bytes=CONTEXT_HIGH_BYTES)
    communication = _communication(run)
    outside = (context, communication)
    total = Interval(
        low_bytes=reserved.low_bytes + sum(one.low_bytes for one in outside),
        high_bytes=reserved.high_bytes + sum(one.high_bytes for one in outside),
    )
    usable_bytes = device.usable_memory_bytes or device.memory_bytes
    verdict, reason = _verdict(total, usable_bytes, peak.phase)
    if verdict is Verdict.FITS and run.degrees.expert > 1:
        verdict, reason = _with_any_router(run, total, peak.size_bytes, usable_bytes) or (verdict, reason)
    return Estimate(
        run=run,
        phases=phases,
        peak=peak,
        reserved=reserved,
        context=context,
        communication=communication,
        total=total,
        usable_bytes=usable_bytes,
        verdict=verdict,
        reason=reason,
    )


def communicators(run: Run) -> int:
    """Groups of ranks that the run's collectives need: one for each way in which it is divided."""
    degrees = run.degrees
    divided = (degrees.data, degrees.tensor, degrees.context, degrees.pipeline, degrees.expert)
    is_data_divided = run.sharding is not Sharding.NONE
    return sum(degree > 1 for degree in divided[1:]) + int(is_data_divided and degrees.data > 1)


def _communication(run: Run) -> Interval:
    groups = communicators(run)
    return Interval(
        low_bytes=groups * NCCL_FEWEST_BUFFERS * NCCL_BUFFER_BYTES,
        high_bytes=groups * NCCL_MOST_BUFFERS * NCCL_BUFFER_BYTES,
    )


def _verdict(total: Interval, usable_bytes: int, phase: Phase) -> tuple[Verdict, str]:
    def gb(size_bytes: int) -> str:
        return f"{size_bytes / 1e9:,.2f} GB"

    if total.low_bytes > usable_bytes:
        over = gb(total.low_bytes - usable_bytes)
        return Verdict.OOM, f"the {phase} needs {over} more than there is, without any fragmentation"
    if total.high_bytes <= usable_bytes:
        return Verdict.FITS, f"{gb(usable_bytes - total.high_bytes)} are left even with fragmentation"
    room = gb(usable_bytes - total.low_bytes)
    return (
        Verdict.AT_RISK,
        f"it runs if fragmentation, the CUDA context and communication take at most {room} more than the least",
    )


def _with_any_router(run: Run, total: Interval, balanced_bytes: int, usable_bytes: int) -> tuple[Verdict, str] | None:
    """The verdict of a run that fits where experts get equal shares, if it does not fit whatever the router does."""
    a = run.architecture
    assert a.experts is not None
    # A token goes to each expert once: of those it has chosen, at most all that a rank has.
    here = min(a.experts.chosen, a.experts.count // run.degrees.expert)
    most = run.degrees.expert * here / a.experts.chosen
    worst_bytes = max(one.size_bytes for one in phases_of(replace(run, imbalance=most)))
    high_bytes = total.high_bytes + round((worst_bytes - balanced_bytes) * (1 + HOLES_SHARE))
    if high_bytes <= usable_bytes:
        return None
    return (
        Verdict.AT_RISK,
        f"it runs while the router is fair: with {most:g} times their share of tokens for one rank's experts it may "
        f"need {(high_bytes - usable_bytes) / 1e9:,.2f} GB more than there is",
    )
