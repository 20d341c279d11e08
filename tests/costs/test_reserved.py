"""The allocator's sizes, and the bounds in closed form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.reserved import (
    CUBLAS_WORKSPACE_BYTES,
    own_block_bytes,
    reserved_interval,
    rounded_bytes,
    segment_bytes,
)
from planner.simulation.allocator import CachingAllocator

MIB = 2**20


@pytest.mark.parametrize(("size_bytes", "block_bytes"), [(0, 512), (1, 512), (512, 512), (513, 1024), (MIB, MIB)])
def test_blocks_are_multiples_of_512_bytes(size_bytes: int, block_bytes: int) -> None:
    assert block_bytes == rounded_bytes(size_bytes)


@pytest.mark.parametrize(
    ("block_bytes", "expected"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
    ],
)
def test_segments_depend_on_the_size_of_the_first_block(block_bytes: int, expected: int) -> None:
    assert expected == segment_bytes(block_bytes)


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (1, 512),
        (2**20, 2**20),
        (3 * 2**20, 3 * 2**20),  # of a segment of 20 MiB, which others share
        (81 * 2**20, 82 * 2**20),  # 1 MiB remains, and is not split off
        (81 * 2**20 - 1, 82 * 2**20),  # rounded up to the same
        (81 * 2**20 - 512, 81 * 2**20 - 512),  # 512 bytes more are
        (82 * 2**20, 82 * 2**20),
    ],
)
def test_a_rest_of_up_to_1_mib_counts_as_allocated(size_bytes: int, expected: int) -> None:
    assert expected == own_block_bytes(size_bytes)


@given(st.integers(1, 2**31))
def test_a_block_of_its_own_is_what_the_allocator_counts_for_it(size_bytes: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(0, size_bytes)

    assert allocator.allocated_bytes == own_block_bytes(size_bytes)


def test_the_interval_is_from_no_holes_to_a_quarter_more() -> None:
    found = reserved_interval(allocated_bytes=30 * MIB, idle_bytes=10 * MIB)

    # Workspaces of two threads, 8 MiB + 128 KiB each.
    assert 40 * MIB + 2 * (8 * MIB + 128 * 2**10) == found.low_bytes
    assert found.low_bytes * 5 // 4 == found.high_bytes


@given(st.integers(0, 2**50), st.integers(0, 2**50))
def test_the_interval_is_at_most_a_quarter_wide_and_holds_what_is_allocated(allocated: int, idle: int) -> None:
    found = reserved_interval(allocated_bytes=allocated, idle_bytes=idle)

    assert allocated + idle + 2 * CUBLAS_WORKSPACE_BYTES == found.low_bytes <= found.high_bytes
    assert 4 * (found.high_bytes - found.low_bytes) <= found.low_bytes + 2  # to the nearest byte


def test_the_upper_end_is_rounded_as_its_formula_is() -> None:
    found = reserved_interval(allocated_bytes=3)
    assert 17_039_363 == found.low_bytes  # two workspaces of 8,320 KiB besides; a quarter more is 21,299,203.75
    assert 21_299_204 == found.high_bytes
