"""PyTorch's CUDA caching allocator, as a model that counts bytes: what a sequence of allocations makes it reserve.

The rules are those of c10/cuda/CUDACachingAllocator.cpp as of torch 2.13 where nothing is set in
`PYTORCH_CUDA_ALLOC_CONF`, or `expandable_segments:True`. Read for it: `malloc`, `get_free_block`, `should_split`,
`alloc_block`, `try_allocate_expandable_block`, `map_block`, `free_block`, `release_cached_blocks`. Sizes are in
`planner.costs.reserved`.

A request is rounded to 512 bytes and looked for among the free blocks of its pool (small or large) and its stream: the
smallest that holds it, of equal ones that at the lowest address. What is left of the block is split off, in the large
pool only if it is more than 1 MiB. If there is none, the driver is asked for a *segment*. A block that is freed is
joined with free neighbours of its segment, and kept. Segments go back to the driver when it has no more, or by
`empty_cache`.

With expandable segments, a pool and stream has one long range of addresses instead, in which memory is mapped in pages
of 2 MiB (small) or 20 MiB (large) from the lowest address on, and any rest is split off.

Left out: max_split_size, roundup_power2_divisions and garbage collection, which are off unless set; graphs' private
pools; `record_stream`, whose late frees are a matter of where a free stands in the sequence. The driver is taken to
hand out ever higher addresses; they decide between blocks of equal size only.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from planner.costs.reserved import (
    BLOCK_GRANULE_BYTES,
    LARGE_SEGMENT_BYTES,
    LARGEST_SMALL_BYTES,
    LARGEST_UNSPLIT_BYTES,
    SMALL_SEGMENT_BYTES,
    rounded_bytes,
    segment_bytes,
)
from planner.errors import AllocatorError, AllocatorMemoryError

# Addresses are those of a 64-bit process: segments lie so far apart that no expandable one reaches the next.
_ADDRESS_RANGE_BYTES = 2**60


class _Block:
    """A range of a segment: free, allocated, or, in an expandable one, not mapped. Neighbours are linked."""

    __slots__ = ("address", "is_allocated", "is_mapped", "next", "pool", "previous", "size_bytes")

    def __init__(self, pool: "_Pool", address: int, size_bytes: int, *, is_mapped: bool = True) -> None:
        self.pool = pool
        self.address = address
        self.size_bytes = size_bytes
        self.is_allocated = False
        self.is_mapped = is_mapped
        self.previous: _Block | None = None
        self.next: _Block | None = None

    def split(self, size_bytes: int) -> "_Block":
        """Cut the block after so many bytes; the rest is returned."""
        rest = _Block(self.pool, self.address + size_bytes, self.size_bytes - size_bytes, is_mapped=self.is_mapped)
        rest.previous, rest.next = self, self.next
        if self.next is not None:
            self.next.previous = rest
        self.next = rest
        self.size_bytes = size_bytes
        return rest

    def absorb_next(self) -> None:
        """Join the block with the one behind it."""
        behind = self.next
        assert behind is not None
        self.size_bytes += behind.size_bytes
        self.next = behind.next
        if behind.next is not None:
            behind.next.previous = self


class _Pool:
    """The free blocks of one stream, small or large."""

    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        self.page_bytes = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        self._order: list[tuple[int, int]] = []  # (size, address) of the free blocks
        self._blocks: dict[int, _Block] = {}  # by address
        self.unmapped: list[_Block] = []  # by address

    def __iter__(self) -> Iterator[_Block]:
        return iter([self._blocks[address] for _, address in self._order])

    def add(self, block: _Block) -> None:
        insort(self._order, (block.size_bytes, block.address))
        self._blocks[block.address] = block

    def remove(self, block: _Block) -> None:
        del self._order[bisect_left(self._order, (block.size_bytes, block.address))]
        del self._blocks[block.address]

    def best(self, size_bytes: int) -> _Block | None:
        """The smallest free block that holds so much, of equal ones that at the lowest address."""
        place = bisect_left(self._order, (size_bytes, 0))
        return self._blocks[self._order[place][1]] if place < len(self._order) else None

    def best_expandable(self, size_bytes: int) -> _Block | None:
        """The same where a block counts as large as it can grow, if what follows it is not mapped."""
        place = bisect_left(self._order, (size_bytes, 0))
        if place == len(self._order):
            return None
        block = self._blocks[self._order[place][1]]
        for behind in range(place + 1, len(self._order)):
            following = self._blocks[self._order[behind][1]]
            if _reach_bytes(following) >= _reach_bytes(block):
                break
            block = following
        return block


def _reach_bytes(block: _Block) -> int:
    behind = block.next
    return block.size_bytes + (0 if behind is None or behind.is_mapped else behind.size_bytes)


class CachingAllocator:
    """The state of the allocator of one device.

    Args:
        expandable: whether `expandable_segments:True` is set.
        limit_bytes: what the driver has in all; None for no limit.

    Attributes:
        reserved_bytes: what the driver has given, as `torch.cuda.memory_reserved` says.
        allocated_bytes: what blocks in use take, as `torch.cuda.memory_allocated` says: with what rounding adds, and
            rests too small to be split off.
        peak_reserved_bytes, peak_allocated_bytes: the most of each so far.
        retries: how often the driver had no more, and all that was unused was given back to it.
    """

    def __init__(self, *, expandable: bool = False, limit_bytes: int | None = None) -> None:
        self._is_expandable = expandable
        self._limit_bytes = limit_bytes
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._held: dict[int, _Block | None] = {}  # None for no bytes
        self._segments = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.retries = 0

    def allocate(self, key: int, size_bytes: int, stream: int = 0) -> None:
        """Take memory under a name; none for no bytes.

        Raises:
            AllocatorError: the name is taken, or the size is negative.
            AllocatorMemoryError: the driver's limit is reached, also after all that is unused was given back.
        """
        if key in self._held:
            raise AllocatorError(f"allocation {key} is made twice; free it before")
        if size_bytes < 0:
            raise AllocatorError(f"allocation {key} has {size_bytes} bytes; expected 0 or more")
        if size_bytes == 0:
            self._held[key] = None
            return
        needed = rounded_bytes(size_bytes)
        pool = self._pool(stream, needed)
        block = pool.best_expandable(needed) if self._is_expandable else pool.best(needed)
        if block is None:
            block = self._new_block(pool, needed)
            if block is None:
                self.retries += 1
                self.empty_cache()
                block = self._new_block(pool, needed)
            if block is None:
                raise AllocatorMemoryError(
                    requested_bytes=size_bytes, reserved_bytes=self.reserved_bytes, limit_bytes=self._limit_bytes or 0
                )
        else:
            pool.remove(block)
        if self._should_split(block, needed):
            pool.add(block.split(needed))
        block.is_allocated = True
        self._held[key] = block
        self.allocated_bytes += block.size_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)

    def free(self, key: int) -> None:
        """Give back what was taken under a name.

        Raises:
            AllocatorError: nothing is held under it.
        """
        if key not in self._held:
            raise AllocatorError(f"allocation {key} is freed, but not held")
        block = self._held.pop(key)
        if block is None:
            return
        self.allocated_bytes -= block.size_bytes
        block.is_allocated = False
        self._join_and_add(block)

    def empty_cache(self) -> None:
        """Give back to the driver every segment, or page of an expandable one, of which nothing is in use."""
        for pool in self._pools.values():
            for block in pool:
                if self._is_expandable:
                    self._unmap(block)
                elif block.previous is None and block.next is None:
                    pool.remove(block)
                    self.reserved_bytes -= block.size_bytes

    def free_blocks(self) -> tuple[int, ...]:
        """The sizes of the blocks that are reserved and not in use, ascending."""
        return tuple(sorted(block.size_bytes for pool in self._pools.values() for block in pool))

    def _pool(self, stream: int, block_bytes: int) -> _Pool:
        is_small = block_bytes <= LARGEST_SMALL_BYTES
        found = self._pools.get((stream, is_small))
        if found is None:
            found = self._pools[stream, is_small] = _Pool(is_small=is_small)
        return found

    def _should_split(self, block: _Block, needed_bytes: int) -> bool:
        rest_bytes = block.size_bytes - needed_bytes
        if block.pool.is_small or self._is_expandable:
            return rest_bytes >= BLOCK_GRANULE_BYTES
        return rest_bytes > LARGEST_UNSPLIT_BYTES

    def _join_and_add(self, block: _Block) -> _Block:
        """Put a free block into its pool as one with its free neighbours."""
        pool = block.pool
        behind = block.next
        if behind is not None and not behind.is_allocated and behind.is_mapped:
            pool.remove(behind)
            block.absorb_next()
        before = block.previous
        if before is not None and not before.is_allocated and before.is_mapped:
            pool.remove(before)
            before.absorb_next()
            block = before
        pool.add(block)
        return block

    # -- what the driver gives -------------------------------------------------------------------------------

    def _new_block(self, pool: _Pool, needed_bytes: int) -> _Block | None:
        """A block in no pool that holds so much; None if the driver has no more."""
        if self._is_expandable:
            return self._grown_block(pool, needed_bytes)
        size_bytes = segment_bytes(needed_bytes)
        return _Block(pool, self._next_address(), size_bytes) if self._take(size_bytes) else None

    def _take(self, size_bytes: int) -> bool:
        if self._limit_bytes is not None and self.reserved_bytes + size_bytes > self._limit_bytes:
            return False
        self.reserved_bytes += size_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def _next_address(self) -> int:
        self._segments += 1
        return self._segments * _ADDRESS_RANGE_BYTES

    def _grown_block(self, pool: _Pool, needed_bytes: int) -> _Block | None:
        """A block at the lowest address where free and unmapped memory can hold so much, mapped as far as needed."""
        block: _Block | None = self._room(pool, needed_bytes)
        assert block is not None
        if not block.is_mapped:
            block = self._map(block, min(block.size_bytes, needed_bytes))
        while block is not None and block.size_bytes < needed_bytes:
            behind = block.next
            assert behind is not None, "there was room"
            block = self._map(behind, min(behind.size_bytes, needed_bytes - block.size_bytes))
        if block is not None:
            pool.remove(block)
        return block

    def _room(self, pool: _Pool, needed_bytes: int) -> _Block:
        """The first block of a run of free and unmapped ones that is long enough; a new range if there is none."""
        for unmapped in pool.unmapped:
            before = unmapped.previous
            first = unmapped if before is None or before.is_allocated else before
            if _run_bytes(first, needed_bytes) >= needed_bytes:
                return first
        block = _Block(pool, self._next_address(), _ADDRESS_RANGE_BYTES, is_mapped=False)
        pool.unmapped.append(block)
        return block

    def _map(self, block: _Block, size_bytes: int) -> _Block | None:
        """Map the first pages of an unmapped block; the free block they are a part of, or None without memory."""
        pool = block.pool
        mapped_bytes = -(-size_bytes // pool.page_bytes) * pool.page_bytes
        if not self._take(mapped_bytes):
            return None
        pool.unmapped.remove(block)
        if mapped_bytes < block.size_bytes:
            insort(pool.unmapped, block.split(mapped_bytes), key=_address)
        block.is_mapped = True
        return self._join_and_add(block)

    def _unmap(self, block: _Block) -> None:
        """Give the whole pages inside a free block back to the driver."""
        pool = block.pool
        offset = block.address % _ADDRESS_RANGE_BYTES
        start = -(-offset // pool.page_bytes) * pool.page_bytes
        end = (offset + block.size_bytes) // pool.page_bytes * pool.page_bytes
        if start >= end:
            return
        pool.remove(block)
        if start > offset:
            kept, block = block, block.split(start - offset)
            pool.add(kept)
        if block.size_bytes > end - start:
            pool.add(block.split(end - start))
        block.is_mapped = False
        self.reserved_bytes -= block.size_bytes
        if block.next is not None and not block.next.is_mapped:
            pool.unmapped.remove(block.next)
            block.absorb_next()
        if block.previous is not None and not block.previous.is_mapped:
            block = block.previous
            pool.unmapped.remove(block)
            block.absorb_next()
        insort(pool.unmapped, block, key=_address)


def _address(block: _Block) -> int:
    return block.address


def _run_bytes(block: _Block | None, enough_bytes: int) -> int:
    """How long the run of blocks not in use is that begins here; counted no further than needed."""
    found = 0
    while block is not None and not block.is_allocated and found < enough_bytes:
        found += block.size_bytes
        block = block.next
    return found
