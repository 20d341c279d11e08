"""How calls are timed: by processor time or the clock on a CPU, by events on CUDA."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

_MS_PER_S = 1e3


class Stopwatch(Protocol):
    """Times a run; says in words how."""

    @property
    def how(self) -> str: ...

    def seconds(self, run: Callable[[], object]) -> float: ...


class CpuStopwatch:
    """Processor time when one thread computes, which other processes disturb least, else the wall clock."""

    def __init__(self, threads: int) -> None:
        self._clock = time.process_time if threads == 1 else time.perf_counter
        self.how = "processor time" if threads == 1 else "wall clock"

    def seconds(self, run: Callable[[], object]) -> float:
        started = self._clock()
        run()
        return self._clock() - started


class CudaStopwatch:
    """From the start of the first kernel to the end of the last, by events on the current stream."""

    how = "CUDA events"

    def seconds(self, run: Callable[[], object]) -> float:
        event: Any = torch.cuda.Event
        start, end = event(enable_timing=True), event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / _MS_PER_S
