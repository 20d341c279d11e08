"""The memory on the host that offloaded tensors lie in, and its ledger.

What it leaves out: what lies where in it, and when it comes and goes.
"""

import mmap
import os
import weakref
from contextlib import suppress
from threading import RLock
from typing import Any

import torch

from planner.errors import HostMemoryError


class Block:
    """A piece of host memory of its own.

    Args:
        size_bytes: exactly so many, up to the end of the page.
        is_pinned: lock it in memory, for copies that run beside computation.
        is_fake: it is for tensors without data, and takes no memory.

    Raises:
        HostMemoryError: it cannot be had.
    """

    def __init__(self, size_bytes: int, *, is_pinned: bool, is_fake: bool = False) -> None:
        self.size_bytes = size_bytes
        self.is_pinned = is_pinned
        if is_fake:
            self.bytes = torch.empty(size_bytes, dtype=torch.uint8, device="meta")
            return
        try:
            # Shared, so that a fork does not leave the pinned pages to the child. PyTorch's own pinned memory is
            # rounded up to a power of two: https://github.com/pytorch/pytorch/issues/150517
            self.bytes = torch.frombuffer(mmap.mmap(-1, max(size_bytes, 1)), dtype=torch.uint8)
        except (OSError, OverflowError, ValueError) as error:
            raise HostMemoryError(
                f"{size_bytes:,} bytes of host memory for offloaded tensors cannot be had: {error}; offload less",
                needed_bytes=size_bytes,
            ) from error
        if is_pinned:
            self._pin()

    def _pin(self) -> None:
        address, size_bytes = self.bytes.data_ptr(), self.bytes.nbytes
        status = int(_cudart().cudaHostRegister(address, size_bytes, 0))
        if status:
            _forget_error()
            raise HostMemoryError(
                f"{size_bytes:,} bytes of host memory for offloaded tensors cannot be pinned (CUDA error {status}); "
                "raise the limit of locked memory (ulimit -l), or offload less",
                needed_bytes=size_bytes,
            )
        # The finalizer refers to the bytes, so that they are unpinned before they are unmapped.
        weakref.finalize(self, _unpin, self.bytes).atexit = False


def _unpin(pinned: torch.Tensor) -> None:
    torch.cuda.synchronize()
    _cudart().cudaHostUnregister(pinned.data_ptr())


def _forget_error() -> None:
    """PyTorch asks for the last error after each kernel it launches, and would find this one after the next."""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda")


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class HostArena:
    """Host memory for offloaded tensors, and its ledger.

    Each forward in flight has one block. Blocks go from forward to forward and are given up when a forward
    needs a larger one. Recorded forwards use ordinary memory instead, value by value, which the limit holds
    for too, forward by forward.

    Args:
        limit_bytes: the most that the blocks may have together.
        is_pinned: lock them in memory.
        is_fake: the model has no data, as in a rehearsal: what would be taken is counted, nothing is.

    Attributes:
        capacity_bytes: of the blocks there are.
        held_bytes: of the values on the host now.
        peak_bytes: the most that there were at a time.
    """

    def __init__(self, limit_bytes: int, *, is_pinned: bool, is_fake: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.is_pinned = is_pinned
        self.is_fake = is_fake
        self.capacity_bytes = 0
        self.held_bytes = 0
        self.peak_bytes = 0
        self._free: list[Block] = []
        self._is_closed = False
        # Entered again when a forward dies in here, as garbage collection may make it.
        self._lock = RLock()

    def take(self, size_bytes: int) -> Block:
        """A block of at least this size, for one forward.

        Raises:
            HostMemoryError: it would go over the limit, or cannot be had.
        """
        with self._lock:
            fitting = [block for block in self._free if block.size_bytes >= size_bytes]
            if fitting:
                block = min(fitting, key=lambda block: block.size_bytes)
                self._free.remove(block)
                return block
            while self._free:
                self.capacity_bytes -= self._free.pop().size_bytes
            if self.capacity_bytes + size_bytes > self.limit_bytes:
                raise HostMemoryError(
                    f"offloaded tensors need {size_bytes:,} bytes of host memory for a forward, "
                    f"{self.limit_bytes - self.capacity_bytes:,} are left of the limit of {self.limit_bytes:,}; raise "
                    "host_limit_bytes, or make a plan that offloads less",
                    needed_bytes=size_bytes,
                    limit_bytes=self.limit_bytes,
                )
            block = Block(size_bytes, is_pinned=self.is_pinned, is_fake=self.is_fake)
            self.capacity_bytes += size_bytes
            return block

    def apart(self, size_bytes: int) -> torch.Tensor:
        """Ordinary memory for one value of a recorded forward.

        Raises:
            HostMemoryError: it cannot be had.
        """
        return Block(size_bytes, is_pinned=False, is_fake=self.is_fake).bytes[:size_bytes]

    def give_back(self, block: Block) -> None:
        """The forward that took the block needs it no more."""
        with self._lock:
            if self._is_closed:
                self.capacity_bytes -= block.size_bytes
            else:
                self._free.append(block)

    def close(self) -> None:
        """Give up the blocks, those in use when their forward gives them back."""
        with self._lock:
            self._is_closed = True
            while self._free:
                self.capacity_bytes -= self._free.pop().size_bytes

    def enter(self, change_bytes: int) -> None:
        """A value has come to the host, or has left it."""
        with self._lock:
            self.held_bytes += change_bytes
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)


def default_limit_bytes() -> int:
    """Half of the memory of this machine, or of what the system says of it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return 2**63 - 1
