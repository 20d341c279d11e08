"""What a step really takes: the allocator's peak and the clock, on a CPU or a CUDA device."""

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one step: the most that was allocated, and the most the caching allocator held (0 where
    there is none).
    """

    peak_bytes: int
    reserved_bytes: int


def measure_peak(run: Callable[[], object], *, resident: Iterable[torch.Tensor], device: torch.device) -> Memory:
    """The peak of a run, what was there before included.

    Args:
        run: one step; it must leave the resident tensors in place.
        resident: tensors alive before and throughout; on CUDA the allocator counts them itself.
        device: where the step runs.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return Memory(
            peak_bytes=torch.cuda.max_memory_allocated(device),
            reserved_bytes=torch.cuda.max_memory_reserved(device),
        )
    return Memory(peak_bytes=storage_bytes(resident) + max(0, *measure_curve(run)), reserved_bytes=0)


def measure_curve(run: Callable[[], object]) -> list[int]:
    """Bytes of a run on a CPU after each change, in order; what was there before is not counted."""
    gc.collect()  # else what has been garbage for long may be freed meanwhile
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return list(accumulate(event.nbytes() for event in events))


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the tensors' storages, shared ones once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Wall-clock time of a run, the device's work included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started
