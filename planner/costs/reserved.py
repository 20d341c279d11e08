"""The sizes by which PyTorch's caching allocator cuts memory, and bounds of what it reserves, in closed form. No torch.

`planner.simulation.allocator` replays the allocations of a traced step; the bounds here are for who has no trace.

Sizes are those of torch 2.13 where nothing is set in `PYTORCH_CUDA_ALLOC_CONF`.
"""

from dataclasses import dataclass

KIB = 2**10
MIB = 2**20

# Source: c10/core/AllocatorConfig.h, torch 2.13: kMinBlockSize, "all sizes are rounded to at least 512 bytes".
BLOCK_GRANULE_BYTES = 512
# kSmallSize: the largest request that is served from the pool of small blocks.
LARGEST_SMALL_BYTES = MIB
# kSmallBuffer: what that pool asks of the driver at a time.
SMALL_SEGMENT_BYTES = 2 * MIB
# large_segment_size_ (kLargeBuffer before 2.10): what the pool of large blocks asks for when a request is below ...
LARGE_SEGMENT_BYTES = 20 * MIB
# ... kMinLargeAlloc; from there on it asks for the request, rounded up to ...
SMALLEST_OWN_SEGMENT_BYTES = 10 * MIB
# ... kRoundLarge.
OWN_SEGMENT_GRANULE_BYTES = 2 * MIB
# `should_split` in c10/cuda/CUDACachingAllocator.cpp: a large block is split only if more than kSmallSize remains.
LARGEST_UNSPLIT_BYTES = LARGEST_SMALL_BYTES

# What cuBLAS is given for itself, through the allocator, on first use: one for each thread that multiplies matrices
# (its handle) and stream. Source: aten/src/ATen/cuda/CublasHandlePool.cpp, `parseChosenWorkspaceSize`, torch 2.13:
# :4096:2:16:8 in KiB, and 32 MiB on compute capability 9.0 and Blackwell.
CUBLAS_WORKSPACE_BYTES = (2 * 4096 + 8 * 16) * KIB
HOPPER_CUBLAS_WORKSPACE_BYTES = 32 * MIB
# The thread that runs forward, and autograd's thread of the device, which runs backward.
CUBLAS_THREADS = 2

# Of all memory, what may lie in holes: half as many holes as blocks, each half a block on average. See
# `reserved_interval`.
HOLES_SHARE = 1 / 2 * 1 / 2


def rounded_bytes(size_bytes: int) -> int:
    """The block that a request takes: a multiple of 512 bytes, at least one."""
    return max(1, -(-size_bytes // BLOCK_GRANULE_BYTES)) * BLOCK_GRANULE_BYTES


def segment_bytes(block_bytes: int) -> int:
    """What the allocator asks of the driver for a block that no cached one can hold."""
    if block_bytes <= LARGEST_SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < SMALLEST_OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-block_bytes // OWN_SEGMENT_GRANULE_BYTES) * OWN_SEGMENT_GRANULE_BYTES


def own_block_bytes(size_bytes: int) -> int:
    """What `max_memory_allocated` counts for a request that has a segment of its own.

    Its block, and the rest of the segment where that is too small to be split off.
    """
    needed_bytes = rounded_bytes(size_bytes)
    whole_bytes = segment_bytes(needed_bytes)
    is_split = needed_bytes <= LARGEST_SMALL_BYTES or whole_bytes - needed_bytes > LARGEST_UNSPLIT_BYTES
    return needed_bytes if is_split else whole_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """From low to high, in bytes."""

    low_bytes: int
    high_bytes: int


def reserved_interval(*, allocated_bytes: int, idle_bytes: int = 0) -> Interval:
    """What the allocator reserves, as far as it can be said without the order of the allocations.

    The low end is memory without holes: what each stream holds at its own peak, and cuBLAS's workspaces. Expandable
    segments come close to it. The high end has holes for a quarter of that on top. Blocks of many sizes that come and
    go leave half as many holes as there are blocks (the fifty-percent rule), and a hole is anything from nothing to a
    block in size, half a block on average. The rule speaks of all memory: also parameters and optimizer state lie
    among what loading and the first step have left.

    Args:
        allocated_bytes: the most that is allocated at a time.
        idle_bytes: what streams other than that which computes hold at most, beyond what they hold at that moment: no
            other stream can use it. With FSDP2, the parameters of its largest unit as they are gathered, the root
            included, and the sharded gradients if the peak comes before them.

    Source: D. Knuth, The Art of Computer Programming, volume 1, section 2.5.
    """
    low_bytes = allocated_bytes + idle_bytes + CUBLAS_THREADS * CUBLAS_WORKSPACE_BYTES
    return Interval(low_bytes=low_bytes, high_bytes=round(low_bytes * (1 + HOLES_SHARE)))
