"""Saved tensors on their way: the copies out in forward and back in backward.

The same engine runs on a GPU and on a CPU. On a GPU, host memory is pinned, copies run on two streams of their
own, and what a copy reads or writes is not reused before it is done. On a CPU there are no streams: a copy is
done when it returns, and the host memory stands beside the allocator, which does not count it.

When memory of the device is taken and given back depends on the order of the program alone: not on how fast a copy
is, nor on whether there are streams. So the peak of a step is the same number everywhere, and can be predicted:
`planner.simulation.transfers` says how.

What it leaves out: choosing what to offload, and moving a value to the host again once it has come back.
"""

import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from planner.errors import HostMemoryError
from planner.link import Staging
from planner.link import host_bytes as aligned_bytes
from planner.runtime.host import Block, HostArena

# Less than a value without bytes.
_NOTHING = -1


class Streams:
    """The copy streams of each GPU: one out, one back, since the host link carries both at once."""

    def __init__(self) -> None:
        self._by_device: dict[torch.device, tuple[Any, Any]] = {}

    def of(self, device: torch.device) -> tuple[Any, Any]:
        """The streams out of a device and back to it."""
        if device not in self._by_device:
            self._by_device[device] = torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._by_device[device]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """A value on the host.

    Attributes:
        source: the storage it was copied from, while that lives.
        version: of the source when it was copied.
        copied: when the copy out is done; None if it is.
    """

    source: "weakref.ref[torch.UntypedStorage]"
    version: int
    host: torch.Tensor
    device: torch.device
    is_pinned: bool
    copied: Any

    @property
    def size_bytes(self) -> int:
        return self.host.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaving:
    """A value whose copy out may still run, which its source has to outlive.

    Attributes:
        version: of the source when it was copied.
        stream: that computes, and is taken to own the source's memory; None on a CPU.
        copied: when the copy out is done; None if it is.
    """

    value: int
    rank: int
    source: torch.Tensor
    version: int
    stream: Any
    copied: Any
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arriving:
    """A value on its way back.

    Attributes:
        stream: that its memory belongs to; None on a CPU.
        arrived: when it is there; None if it is.
    """

    storage: torch.UntypedStorage
    stream: Any
    arrived: Any


class HostCopies:
    """What one forward has on the host.

    A value comes with `store`, and goes with `fetch` or `drop`, whichever is first.

    Args:
        arena: where it goes.
        streams: for the copies.
        staging: what may be on its way; for the largest value, what `Staging.of` says if None.
        host_bytes: what `wanted_bytes` was when this forward was recorded; None while it is.
        largest_bytes: what it was then; while a forward is recorded, it is that of the values so far.

    Attributes:
        wanted_bytes: what the values come to in a block, those that found no place included.
        largest_bytes: the size of the largest of them.
        reason: why a value found no place; None if all did.
    """

    def __init__(
        self,
        arena: HostArena,
        streams: Streams,
        *,
        staging: Staging | None,
        host_bytes: int | None,
        largest_bytes: int = 0,
    ) -> None:
        self.wanted_bytes = 0
        self.largest_bytes = largest_bytes
        self.reason: HostMemoryError | None = None
        self._arena = arena
        self._streams = streams
        self._given_staging = staging
        self._host_bytes = host_bytes
        self._block: Block | None = None
        self._is_settled = False
        self._slots: dict[int, _Slot] = {}  # in the order in which they were last packed
        self._queue: list[int] | None = None  # what to fetch ahead, the next one last
        self._leaving: deque[_Leaving] = deque()
        self._leaving_bytes = 0
        self._rank = 0  # of the packing at hand
        self._arriving: dict[int, _Arriving] = {}
        self._arriving_bytes = 0
        self._spoiled: set[int] = set()

    def __contains__(self, value: int) -> bool:
        return value in self._slots

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._slots))

    def __del__(self) -> None:
        # Forward may have failed with copies out under way.
        self._let_go_until(_NOTHING)
        self._is_settled = True
        for value in self:
            self.drop(value)
        self._give_back()

    # -- forward ---------------------------------------------------------------------------------------------

    def come_to(self, rank: int) -> None:
        """Forward has come to the packing of that rank: sources that left long before it go."""
        self._rank = rank
        while self._leaving and self._leaving[0].rank < rank - self._staging.lead:
            self._let_oldest_go()

    def store(self, value: int, tensor: torch.Tensor) -> bool:
        """Copy the whole storage behind a tensor to the host, once per value; whether it is there now."""
        storage = tensor.untyped_storage()
        if value in self._slots:
            self._slots[value] = slot = self._slots.pop(value)
            # Otherwise this forward differs from the recorded one: there this was the same value.
            return slot.source() is storage and slot.version == _version(tensor)
        size_bytes = storage.nbytes()
        place = self._place(size_bytes)
        if place is None:
            return False
        host, is_pinned = place
        copied = self._copy_out(value, tensor, host, is_pinned=is_pinned)
        self._slots[value] = _Slot(
            source=weakref.ref(storage),
            version=_version(tensor),
            host=host,
            device=storage.device,
            is_pinned=is_pinned,
            copied=copied,
        )
        self._arena.enter(size_bytes)
        self._let_go_until(self._staging.out_bytes)
        return True

    def _place(self, size_bytes: int) -> tuple[torch.Tensor, bool] | None:
        """Host memory for a value, and whether it is pinned; None if there is none, for which `reason` says why."""
        start = self.wanted_bytes
        self.largest_bytes = max(self.largest_bytes, size_bytes)
        self.wanted_bytes += aligned_bytes(size_bytes)
        try:
            if self._host_bytes is None:
                if self.wanted_bytes > self._arena.limit_bytes:
                    raise HostMemoryError(
                        f"offloaded tensors need {self.wanted_bytes:,} bytes of host memory and more, over the limit "
                        f"of {self._arena.limit_bytes:,}; raise host_limit_bytes, or make a plan that offloads less",
                        needed_bytes=self.wanted_bytes,
                        limit_bytes=self._arena.limit_bytes,
                    )
                return self._arena.apart(size_bytes), False
            if self.wanted_bytes > self._host_bytes:
                raise HostMemoryError("forward offloads more than when it was recorded", needed_bytes=self.wanted_bytes)
            if self.reason is not None:
                return None
            if self._block is None:
                self._block = self._arena.take(self._host_bytes)
            return self._block.bytes[start : start + size_bytes], self._block.is_pinned
        except HostMemoryError as error:
            self.reason = error
            return None

    def _copy_out(self, value: int, tensor: torch.Tensor, host: torch.Tensor, *, is_pinned: bool) -> Any:
        """Begin to copy a tensor's storage; returns the event after it, None if it is done already."""
        storage = tensor.untyped_storage()
        stream = copied = None
        if not has_streams(storage.device):
            copy_bytes(host, _bytes_of(storage))
        else:
            out, _ = self._streams.of(storage.device)
            stream = torch.cuda.current_stream(storage.device)
            out.wait_stream(stream)
            with torch.cuda.stream(out):
                copy_bytes(host, _bytes_of(storage), non_blocking=is_pinned)
                copied = out.record_event()
        source = tensor.detach()  # shares the storage and its version, not the graph
        leaving = _Leaving(
            value=value,
            rank=self._rank,
            source=source,
            version=_version(source),
            stream=stream,
            copied=copied,
            size_bytes=storage.nbytes(),
        )
        self._leaving.append(leaving)
        self._leaving_bytes += leaving.size_bytes
        return copied

    def settle(self) -> None:
        """Forward has ended: whatever the model computes next comes after the copies out."""
        self._let_go_until(_NOTHING)
        self._is_settled = True
        self._give_back()

    def _let_go_until(self, allowed_bytes: int) -> None:
        """Let go of sources, the oldest first, until so few bytes are under way.

        None goes earlier, even if its copy is done: when it goes must not depend on how fast the link is. And none
        stays longer: a stream waits for the copy, so that what is put in the source's place is written after it.
        """
        while self._leaving and self._leaving_bytes > allowed_bytes:
            self._let_oldest_go()

    def _let_oldest_go(self) -> None:
        first = self._leaving.popleft()
        self._leaving_bytes -= first.size_bytes
        if first.copied is not None:
            first.stream.wait_event(first.copied)
            if _version(first.source) != first.version:
                self._spoiled.add(first.value)

    # -- backward --------------------------------------------------------------------------------------------

    def is_spoiled(self, value: int) -> bool:
        """Whether the value was written to while it was copied."""
        return value in self._spoiled

    def fetch(self, value: int) -> torch.UntypedStorage:
        """The value in a storage of its own; it is no longer on the host. Those packed before it follow."""
        if value not in self._arriving:
            self._start(value)
        arriving = self._arriving.pop(value)
        self._arriving_bytes -= arriving.storage.nbytes()
        if arriving.arrived is not None:
            current = torch.cuda.current_stream(arriving.storage.device)
            current.wait_event(arriving.arrived)
            if current != arriving.stream:
                _bytes_of(arriving.storage).record_stream(current)
        self._remove(value)
        self.begin_ahead()
        return arriving.storage

    def drop(self, value: int) -> None:
        """The value is not needed any more."""
        if value not in self._slots:
            return
        arriving = self._arriving.pop(value, None)
        if arriving is not None:
            self._arriving_bytes -= arriving.storage.nbytes()
            if arriving.arrived is not None:
                # Nobody has waited for the copy that writes to it.
                _, back = self._streams.of(arriving.storage.device)
                _bytes_of(arriving.storage).record_stream(back)
        self._remove(value)

    def _start(self, value: int) -> None:
        """Begin the copy back."""
        slot = self._slots[value]
        storage = torch.empty(slot.size_bytes, dtype=torch.uint8, device=slot.device).untyped_storage()
        stream = arrived = None
        if not has_streams(slot.device):
            copy_bytes(_bytes_of(storage), slot.host)
        else:
            _, back = self._streams.of(slot.device)
            stream = torch.cuda.current_stream(slot.device)
            # The memory may be in use until here by what the stream has still to do.
            back.wait_stream(stream)
            back.wait_event(slot.copied)
            with torch.cuda.stream(back):
                copy_bytes(_bytes_of(storage), slot.host, non_blocking=slot.is_pinned)
                arrived = back.record_event()
        self._arriving[value] = _Arriving(storage=storage, stream=stream, arrived=arrived)
        self._arriving_bytes += slot.size_bytes

    def begin_ahead(self) -> None:
        """Begin to fetch what backward will ask for next, as much as staging holds."""
        if not self._is_settled:
            return
        if self._queue is None:
            self._queue = list(self._slots)
        while self._queue:
            slot = self._slots.get(self._queue[-1])
            if slot is not None and self._queue[-1] not in self._arriving:
                if self._arriving_bytes + slot.size_bytes > self._staging.back_bytes:
                    return
                try:
                    self._start(self._queue[-1])
                except torch.OutOfMemoryError:  # by the time it is asked for, there may be room again
                    return
            self._queue.pop()

    @property
    def _staging(self) -> Staging:
        return self._given_staging or Staging.of((self.largest_bytes,))

    def _remove(self, value: int) -> None:
        self._arena.enter(-self._slots.pop(value).size_bytes)
        self._give_back()

    def _give_back(self) -> None:
        if self._block is not None and self._is_settled and not self._slots:
            block, self._block = self._block, None
            self._arena.give_back(block)


def has_streams(device: torch.device) -> bool:
    """Whether copies run beside computation there."""
    return device.type == "cuda"


def copy_bytes(target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool = False) -> None:
    """Copy on the current stream; tensors without data have nothing to copy."""
    if not target.is_meta:
        target.copy_(source, non_blocking=non_blocking)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    result: torch.Tensor = empty.set_(storage)
    return result


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
