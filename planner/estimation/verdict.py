"""Whether a run fits a device: what is allocated, what the allocator reserves for it, and what lies outside of it.

Where a figure cannot be known beforehand it is an interval, and the verdict says FITS only if its upper end does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from planner.device import DeviceProfile
from planner.estimation.phases import Part, Phase, PhasePeak, phases_of
from planner.estimation.run import Run, Sharding

_KIB, _MIB = 2**10, 2**20

# cuBLAS's workspace, from the allocator, for each handle and stream; forward and backward run in a thread each, with
# a handle of its own. Source: aten/src/ATen/cuda/CublasHandlePool.cpp, `parseChosenWorkspaceSize` (torch 2.13):
# :4096:2:16:8 KiB by default, 32 MiB on Hopper and later.
CUBLAS_LOW_BYTES = (2 * 4096 + 8 * 16) * _KIB
CUBLAS_HIGH_BYTES = 32 * _MIB
CUBLAS_THREADS = 2
# The CUDA context with the kernels that were loaded. Reports differ by driver, GPU and libraries; none gives a
# figure by generation, so this is one interval. Sources: github.com/pytorch/pytorch/issues/107667 (about 300 MB with
# lazy loading), /issues/28113 (up to over 700 MB). Without lazy loading (before CUDA 11.7) it is more.
CONTEXT_LOW_BYTES = 300 * 10**6
CONTEXT_HIGH_BYTES = 800 * 10**6
# What each communicator of NCCL holds. Source: NCCL's documentation of NCCL_BUFFSIZE, 4 MiB for each channel. That
# there are from 2 to 32 channels, and up to 4 buffers in each (rings and trees, to and from), is an assumption.
NCCL_BUFFER_BYTES = 4 * _MIB
NCCL_FEWEST_BUFFERS = 2
NCCL_MOST_BUFFERS = 32 * 4
# Blocks that come and go in many sizes leave half as many holes as there are blocks, each half a block on average.
# Source: D. Knuth, The Art of Computer Programming, volume 1, section 2.5, the fifty-percent rule.
HOLES_SHARE = 1 / 4
# How far the closed form may be from a traced step (tests/estimation/test_agreement.py).
MODEL_ERROR = 0.03


class Verdict(StrEnum):
    """FITS: also at the upper end of every interval. OOM: not even at the lower end. AT RISK: in between."""

    FITS = "FITS"
    AT_RISK = "AT RISK"
    OOM = "OOM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """From low to high, in bytes."""

    low_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The memory of a run on a device.

    Attributes:
        run: what was asked.
        phases: the fullest moment of each.
        peak: the fullest of all.
        changing_bytes: the most that does not live throughout the step; see `reserved_interval`.
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
    changing_bytes: int
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
    changing_bytes = _changing_bytes(phases)
    reserved = reserved_interval(allocated_bytes=peak.size_bytes, changing_bytes=changing_bytes)
    context = Interval(low_bytes=CONTEXT_LOW_BYTES, high_bytes=CONTEXT_HIGH_BYTES)
    communication = _communication(run)
    outside = (context, communication)
    total = Interval(
        low_bytes=reserved.low_bytes + sum(one.low_bytes for one in outside),
        high_bytes=reserved.high_bytes + sum(one.high_bytes for one in outside),
    )
    usable_bytes = device.usable_memory_bytes or device.memory_bytes
    verdict, reason = _verdict(total, usable_bytes, peak.phase)
    return Estimate(
        run=run,
        phases=phases,
        peak=peak,
        changing_bytes=changing_bytes,
        reserved=reserved,
        context=context,
        communication=communication,
        total=total,
        usable_bytes=usable_bytes,
        verdict=verdict,
        reason=reason,
    )


def reserved_interval(*, allocated_bytes: int, changing_bytes: int) -> Interval:
    """What the caching allocator takes from the driver for that many bytes at the peak.

    The low end is memory without holes, and a cuBLAS workspace. The high end allows for `MODEL_ERROR`, and has holes
    among what comes and goes during a step: `HOLES_SHARE` of it.

    Args:
        allocated_bytes: the most that is allocated at a time.
        changing_bytes: of what is allocated at any peak of a step, the most that does not live throughout.
    """
    return Interval(
        low_bytes=allocated_bytes + CUBLAS_LOW_BYTES,
        high_bytes=round(allocated_bytes * (1 + MODEL_ERROR))
        + CUBLAS_THREADS * CUBLAS_HIGH_BYTES
        + round(changing_bytes * HOLES_SHARE),
    )


_LIVES_THROUGHOUT = frozenset({Part.PARAMETERS, Part.QUANTIZED, Part.ADAPTERS, Part.MASTER, Part.OPTIMIZER})


def _changing_bytes(phases: Sequence[PhasePeak]) -> int:
    return max(
        sum(size_bytes for part, size_bytes in one.parts.items() if part not in _LIVES_THROUGHOUT) for one in phases
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
