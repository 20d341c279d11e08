"""What a training step makes PyTorch's caching allocator reserve: its allocations replayed, step after step.

The figure is `torch.cuda.max_memory_reserved`. Outside of it, and so to be added for what `nvidia-smi` shows: the CUDA
context with its kernels, and NCCL's buffers. Inside, though no tensors: what cuBLAS is given to work in.

What no trace shows is left out: workspaces of other libraries (cuDNN) and of kernels that are not modelled, batches of
other shapes, evaluation, other loading orders. They make the default allocator reserve more, and expandable segments
hardly.

With less memory than that, the allocator gives back what is unused and asks again, which stalls the device; segments of
which a part is in use stay. So a step can run out of memory although its peak would fit.
"""

from dataclasses import dataclass

from planner.costs.reserved import CUBLAS_WORKSPACE_BYTES, HOPPER_CUBLAS_WORKSPACE_BYTES, Interval
from planner.errors import AllocatorMemoryError
from planner.simulation.allocations import StepAllocations
from planner.simulation.allocator import CachingAllocator

# The first step makes the optimizer's state, and the second meets what the first left; from then on, most steps find
# room where the one before found it. A step that still needs new memory is not the last; so many are enough.
_MAX_STEPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The steps of a run through the allocator, until one of them reserved nothing more.

    Attributes:
        reserved_bytes: at the end, which is the most.
        allocated_bytes: the most that was in use, with what rounding adds.
        steps: how many were replayed.
        is_settled: whether the last one reserved nothing more.
        retries: how often what was unused had to be given back, in that step after the first where it was most often.
    """

    reserved_bytes: int
    allocated_bytes: int
    steps: int
    is_settled: bool
    retries: int = 0

    @property
    def fragmentation_bytes(self) -> int:
        """What is reserved and was never in use at once."""
        return self.reserved_bytes - self.allocated_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """How a step runs in so much memory: how often a step gives back what is unused; None if it runs out of memory."""

    limit_bytes: int
    default_retries: int | None
    expandable_retries: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What the allocator reserves for a step.

    Attributes:
        default: as PyTorch is set up, with cuBLAS's workspaces as on Hopper and Blackwell.
        expandable: with `expandable_segments:True`, and cuBLAS's workspaces as on other devices.
        limited: the same in limited memory; None if no limit was given.
    """

    default: Replay
    expandable: Replay
    limited: Limited | None = None

    @property
    def interval(self) -> Interval:
        """From the less to the more of both."""
        both = self.default.reserved_bytes, self.expandable.reserved_bytes
        return Interval(low_bytes=min(both), high_bytes=max(both))


def reserved(step: StepAllocations, *, limit_bytes: int | None = None) -> Reserved:
    """What both kinds of segments come to for a step, and how it runs in limited memory."""
    default, expandable = (_replay(step, expandable=kind) for kind in (False, True))
    limited = None
    if limit_bytes is not None:
        limited = Limited(
            limit_bytes=limit_bytes,
            default_retries=_retries(step, default, limit_bytes, expandable=False),
            expandable_retries=_retries(step, expandable, limit_bytes, expandable=True),
        )
    return Reserved(default=default, expandable=expandable, limited=limited)


def _replay(step: StepAllocations, *, expandable: bool, limit_bytes: int | None = None) -> Replay:
    workspace_bytes = CUBLAS_WORKSPACE_BYTES if expandable else HOPPER_CUBLAS_WORKSPACE_BYTES
    return replay(step, expandable=expandable, workspace_bytes=workspace_bytes, limit_bytes=limit_bytes)


def _retries(step: StepAllocations, unlimited: Replay, limit_bytes: int, *, expandable: bool) -> int | None:
    if unlimited.reserved_bytes <= limit_bytes:
        return 0
    try:
        return _replay(step, expandable=expandable, limit_bytes=limit_bytes).retries
    except AllocatorMemoryError:
        return None


def replay(
    step: StepAllocations, *, expandable: bool, workspace_bytes: int = 0, limit_bytes: int | None = None
) -> Replay:
    """The step, repeated until it reserves nothing more.

    Args:
        step: its blocks.
        expandable: the kind of segments.
        workspace_bytes: what cuBLAS is given when forward begins for the first time, and when backward does.
        limit_bytes: what the device has; None for no limit.

    Raises:
        AllocatorMemoryError: the device has too little.
    """
    run = _Run(step, CachingAllocator(expandable=expandable, limit_bytes=limit_bytes), workspace_bytes)
    steps, retries, is_settled = 0, 0, False
    while not is_settled and steps < _MAX_STEPS:
        before_bytes, retries_before = run.allocator.reserved_bytes, run.allocator.retries
        run.step(is_first=steps == 0)
        # The first step is unlike all others, and cannot be the last: it begins without the optimizer's state.
        if steps > 0:
            retries = max(retries, run.allocator.retries - retries_before)
            is_settled = run.allocator.reserved_bytes == before_bytes
        steps += 1
    return Replay(
        reserved_bytes=run.allocator.peak_reserved_bytes,
        allocated_bytes=run.allocator.peak_allocated_bytes,
        steps=steps,
        is_settled=is_settled,
        retries=retries,
    )


class _Run:
    """A run on an allocator. Blocks of a step are named by their place, all others are negative."""

    def __init__(self, step: StepAllocations, allocator: CachingAllocator, workspace_bytes: int) -> None:
        self._step = step
        self._workspace_bytes = workspace_bytes
        self._next_key = -1
        self.allocator = allocator
        events = [
            # What is given back at a moment is given back before anything is taken.
            *((life.stop, 0, place) for place, life in enumerate(step.lives)),
            *((life.start, 1, place) for place, life in enumerate(step.lives)),
        ]
        events.sort()
        self._forward = [event for event in events if event[0] < step.backward]
        self._backward = [event for event in events if step.backward <= event[0] <= step.end]
        self._after = [event for event in events if event[0] > step.end]
        self._take(step.resident_bytes)

    def step(self, *, is_first: bool) -> None:
        if is_first:
            self._take([self._workspace_bytes])
        self._run(self._forward)
        if is_first:
            self._take([self._workspace_bytes])
        self._run(self._backward)
        if is_first:
            self._take(self._step.state_bytes)
        transients = self._take(self._step.transient_bytes)
        for key in transients:
            self.allocator.free(key)
        self._run(self._after)

    def _run(self, events: list[tuple[int, int, int]]) -> None:
        for _, is_start, place in events:
            if is_start:
                life = self._step.lives[place]
                self.allocator.allocate(place, life.size_bytes, life.stream)
            else:
                self.allocator.free(place)

    def _take(self, sizes: "tuple[int, ...] | list[int]") -> list[int]:
        keys = []
        for size_bytes in sizes:
            self.allocator.allocate(self._next_key, size_bytes)
            keys.append(self._next_key)
            self._next_key -= 1
        return keys
