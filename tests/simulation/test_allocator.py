"""The model of PyTorch's allocator: rules on paper, what PyTorch's own tests expect, and a slow allocator beside it."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import AllocatorError, AllocatorMemoryError
from planner.simulation.allocator import CachingAllocator

KIB = 2**10
MIB = 2**20


def after(*sizes: int, expandable: bool = False) -> CachingAllocator:
    """An allocator that holds blocks of these sizes, named 0, 1, 2 …"""
    allocator = CachingAllocator(expandable=expandable)
    for key, size_bytes in enumerate(sizes):
        allocator.allocate(key, size_bytes)
    return allocator


# -- rules, on paper ---


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB - 1, MIB, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 1, 10 * MIB, 10 * MIB),  # rounded first, so that it has a segment of its own
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),  # the rest of 2 MiB less 512 bytes is split off
        (21 * MIB, 22 * MIB, 22 * MIB),  # the rest of 1 MiB is not
        (22 * MIB, 22 * MIB, 22 * MIB),
    ],
)
def test_a_request_is_rounded_and_its_size_says_what_the_driver_is_asked_for(
    requested: int, allocated: int, reserved: int
) -> None:
    allocator = after(requested)

    assert (allocated, reserved) == (allocator.allocated_bytes, allocator.reserved_bytes)


def test_no_bytes_take_nothing() -> None:
    allocator = after(0)
    allocator.free(0)

    assert (0, 0) == (allocator.allocated_bytes, allocator.reserved_bytes)


def test_small_blocks_are_cut_from_segments_of_2_mib() -> None:
    assert 2 * MIB == after(MIB, MIB).reserved_bytes
    assert 4 * MIB == after(MIB, MIB, 1).reserved_bytes
    assert 2 * MIB == after(*[512] * 4096).reserved_bytes


def test_a_small_block_leaves_a_rest_of_512_bytes() -> None:
    allocator = after(MIB, MIB - 512, 1)

    assert 2 * MIB == allocator.reserved_bytes
    assert () == allocator.free_blocks()


def test_blocks_of_1_to_10_mib_share_segments_of_20_mib() -> None:
    assert 20 * MIB == after(2 * MIB, 8 * MIB, 9 * MIB).reserved_bytes
    assert 40 * MIB == after(8 * MIB, 8 * MIB, 8 * MIB).reserved_bytes


def test_a_large_block_keeps_a_rest_of_1_mib_and_gives_up_one_of_512_bytes_more() -> None:
    allocator = after(20 * MIB)
    allocator.free(0)
    allocator.allocate(1, 19 * MIB)
    assert (20 * MIB, ()) == (allocator.allocated_bytes, allocator.free_blocks())
    allocator.free(1)
    allocator.allocate(2, 19 * MIB - 512)
    assert (19 * MIB - 512, (MIB + 512,)) == (allocator.allocated_bytes, allocator.free_blocks())


def test_the_smallest_block_that_holds_a_request_is_taken() -> None:
    allocator = after(30 * MIB, 24 * MIB, 40 * MIB)
    for key in range(3):
        allocator.free(key)

    allocator.allocate(3, 23 * MIB + 512)

    assert (30 * MIB, 40 * MIB) == allocator.free_blocks()
    assert 94 * MIB == allocator.reserved_bytes


@pytest.mark.parametrize("expandable", [False, True])
def test_of_equal_blocks_the_one_at_the_lowest_address_is_taken(expandable: bool) -> None:
    allocator = after(6 * MIB, 6 * MIB, 6 * MIB, 2 * MIB, expandable=expandable)
    allocator.free(0)
    allocator.free(2)
    assert (6 * MIB, 6 * MIB) == allocator.free_blocks()

    allocator.allocate(4, 6 * MIB)
    allocator.free(3)

    # The last block borders on the one that is still free: it was the higher.
    assert (8 * MIB,) == allocator.free_blocks()
    assert 20 * MIB == allocator.reserved_bytes


def test_a_free_block_joins_its_neighbours_on_both_sides() -> None:
    allocator = after(6 * MIB, 6 * MIB, 6 * MIB)
    allocator.free(0)
    allocator.free(2)
    assert (6 * MIB, 8 * MIB) == allocator.free_blocks()

    allocator.free(1)

    assert (20 * MIB,) == allocator.free_blocks()


def test_blocks_of_different_segments_never_join() -> None:
    allocator = after(20 * MIB, 20 * MIB)
    allocator.free(0)
    allocator.free(1)

    allocator.allocate(2, 40 * MIB)

    assert 80 * MIB == allocator.reserved_bytes
    assert (20 * MIB, 20 * MIB) == allocator.free_blocks()


def test_what_a_small_request_leaves_of_a_large_segment_does_not_serve_the_large_request_again() -> None:
    allocator = after(100 * MIB)
    allocator.free(0)
    allocator.allocate(1, 12 * MIB)
    allocator.allocate(2, 100 * MIB)

    assert 200 * MIB == allocator.reserved_bytes


def test_small_requests_never_take_from_large_segments() -> None:
    allocator = after(100 * MIB)
    allocator.free(0)
    allocator.allocate(1, MIB)

    assert 102 * MIB == allocator.reserved_bytes


@pytest.mark.parametrize(("expandable", "reserved"), [(False, 100 * MIB), (True, 120 * MIB)])
def test_what_one_stream_frees_does_not_serve_another(expandable: bool, reserved: int) -> None:
    allocator = CachingAllocator(expandable=expandable)
    allocator.allocate(0, 50 * MIB, 0)
    allocator.free(0)
    allocator.allocate(1, 50 * MIB, 1)
    allocator.free(1)
    allocator.allocate(2, 50 * MIB, 0)

    assert reserved == allocator.reserved_bytes
    assert 50 * MIB == allocator.allocated_bytes


def test_unused_segments_are_given_back_when_asked_to_and_others_are_kept() -> None:
    allocator = after(30 * MIB, 6 * MIB, 6 * MIB, MIB)
    allocator.free(0)
    allocator.free(1)
    allocator.empty_cache()
    assert 22 * MIB == allocator.reserved_bytes
    assert 52 * MIB == allocator.peak_reserved_bytes

    allocator.free(2)
    allocator.free(3)
    allocator.empty_cache()
    assert 0 == allocator.reserved_bytes


@pytest.mark.parametrize("expandable", [False, True])
def test_what_is_unused_is_given_back_before_memory_is_said_to_be_out(expandable: bool) -> None:
    allocator = CachingAllocator(expandable=expandable, limit_bytes=100 * MIB)
    allocator.allocate(0, 40 * MIB, 0)
    allocator.allocate(1, 40 * MIB, 0)
    allocator.free(0)

    allocator.allocate(2, 60 * MIB, 1)

    assert (100 * MIB, 1) == (allocator.reserved_bytes, allocator.retries)
    with pytest.raises(AllocatorMemoryError) as caught:
        allocator.allocate(3, 1, 1)
    assert (1, 100 * MIB, 100 * MIB) == (
        caught.value.requested_bytes,
        caught.value.reserved_bytes,
        caught.value.limit_bytes,
    )
    allocator.free(2)
    allocator.allocate(3, 1, 1)
    assert 42 * MIB == allocator.reserved_bytes


@pytest.mark.parametrize("expandable", [False, True])
def test_sequences_that_no_program_makes_are_refused(expandable: bool) -> None:
    allocator = after(5, expandable=expandable)
    with pytest.raises(AllocatorError, match="allocation 0 is made twice"):
        allocator.allocate(0, 5)
    with pytest.raises(AllocatorError, match="allocation 1 has -1 bytes"):
        allocator.allocate(1, -1)
    with pytest.raises(AllocatorError, match="allocation 1 is freed, but not held"):
        allocator.free(1)
    allocator.free(0)
    with pytest.raises(AllocatorError, match="allocation 0 is freed, but not held"):
        allocator.free(0)


# -- expandable segments, on paper ---


def test_an_expandable_segment_grows_by_pages_and_rests_are_used() -> None:
    assert 20 * MIB == after(12 * MIB, 8 * MIB, expandable=True).reserved_bytes
    assert 40 * MIB == after(12 * MIB, 12 * MIB, 12 * MIB, expandable=True).reserved_bytes
    assert 4 * MIB == after(MIB, MIB, 512, expandable=True).reserved_bytes


def test_a_rest_of_512_bytes_is_split_off_an_expandable_block() -> None:
    allocator = after(20 * MIB, expandable=True)
    allocator.free(0)
    allocator.allocate(1, 20 * MIB - 512)

    assert (20 * MIB - 512, (512,)) == (allocator.allocated_bytes, allocator.free_blocks())


def test_the_end_of_an_expandable_segment_grows_where_an_ordinary_one_is_made_anew() -> None:
    allocator = after(100 * MIB, expandable=True)
    allocator.free(0)
    allocator.allocate(1, 110 * MIB)

    assert 120 * MIB == allocator.reserved_bytes


def test_a_hole_that_fits_is_preferred_to_the_end_that_can_grow() -> None:
    # [40][40][40] with the first free: a hole. At the end a smaller free block of 20 MiB, which can grow.
    allocator = after(40 * MIB, 40 * MIB, 40 * MIB, 20 * MIB, expandable=True)
    allocator.free(0)
    allocator.free(3)
    assert (20 * MIB, 40 * MIB) == allocator.free_blocks()

    allocator.allocate(4, 10 * MIB)

    assert (20 * MIB, 30 * MIB) == allocator.free_blocks()


def test_whole_pages_inside_a_free_block_are_given_back_and_mapped_again_first() -> None:
    allocator = after(30 * MIB, 50 * MIB, 20 * MIB, expandable=True)  # at 0, 30 and 80 MiB
    allocator.free(1)
    allocator.empty_cache()
    # Of 30 to 80 MiB, the pages at 40 and 60 MiB lie inside; 10 MiB before them stay.
    assert (60 * MIB, (10 * MIB,)) == (allocator.reserved_bytes, allocator.free_blocks())

    allocator.allocate(3, 25 * MIB)

    # 10 MiB that are mapped and 20 MiB anew, from where 5 MiB are left.
    assert (80 * MIB, (5 * MIB,)) == (allocator.reserved_bytes, allocator.free_blocks())


def test_a_request_that_fits_no_hole_goes_behind_the_end() -> None:
    allocator = after(30 * MIB, 50 * MIB, 20 * MIB, expandable=True)
    allocator.free(1)
    allocator.empty_cache()

    allocator.allocate(3, 60 * MIB)

    assert (120 * MIB, (10 * MIB,)) == (allocator.reserved_bytes, allocator.free_blocks())


# -- PyTorch's own expectations ---

# Source: test/test_cuda.py of PyTorch, `test_graph_memory_stats_and_use_result_after_destroy_graph`, which runs on
# GPUs. Bytes of a tensor; what is reserved when `b = b.clone() + 1` has run five times, and when what is unused was
# given back; both with expandable segments.
PYTORCHS = [
    (512, 2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB),
    (MIB, 4 * MIB, 2 * MIB, 4 * MIB, 2 * MIB),
    (MIB + 512, 20 * MIB, 20 * MIB, 20 * MIB, 20 * MIB),
    (10 * MIB - 512, 40 * MIB, 20 * MIB, 40 * MIB, 40 * MIB),
    (10 * MIB + 512, 36 * MIB, 12 * MIB, 40 * MIB, 20 * MIB),
]


@pytest.mark.parametrize(("size_bytes", "reserved", "left", "expandable_reserved", "expandable_left"), PYTORCHS)
def test_the_model_reserves_what_pytorchs_tests_expect_of_a_gpu(
    size_bytes: int, reserved: int, left: int, expandable_reserved: int, expandable_left: int
) -> None:
    def run(*, expandable: bool) -> tuple[int, int]:
        allocator = after(size_bytes, expandable=expandable)
        for place in range(5):
            held, copy, result = 2 * place, 2 * place + 1, 2 * place + 2
            allocator.allocate(copy, size_bytes)
            allocator.allocate(result, size_bytes)
            allocator.free(copy)
            allocator.free(held)
        before_bytes = allocator.reserved_bytes
        allocator.empty_cache()
        return before_bytes, allocator.reserved_bytes

    assert (reserved, left) == run(expandable=False)
    assert (expandable_reserved, expandable_left) == run(expandable=True)


# -- against a slow allocator ---


@dataclass
class Slow:
    """The same rules on lists of (size, owner) that are searched from end to end; nothing is given back."""

    expandable: bool
    segments: dict[tuple[int, bool], list[list[tuple[int, int | None]]]] = field(default_factory=dict)

    def allocate(self, key: int, size_bytes: int, stream: int) -> None:
        size = max(512, (size_bytes + 511) // 512 * 512)
        small = size <= MIB
        segments = self.segments.setdefault((stream, small), [])
        fits = [
            (found, number, place)
            for number, segment in enumerate(segments)
            for place, (found, owner) in enumerate(segment)
            if owner is None and found >= size
        ]
        if self.expandable:
            # The last block of the only segment can grow without end, so it is taken last.
            inner = [fit for fit in fits if fit[2] + 1 < len(segments[fit[1]])]
            if not (fits := inner or fits):
                self._grow(segments, size, small)
                fits = [(segments[0][-1][0], 0, len(segments[0]) - 1)]
        elif not fits:
            new = 2 * MIB if small else 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            segments.append([(new, None)])
            fits = [(new, len(segments) - 1, 0)]
        found, number, place = min(fits)
        rest = found - size
        if rest >= 512 and (small or self.expandable or rest > MIB):
            segments[number][place : place + 1] = [(size, key), (rest, None)]
        else:
            segments[number][place] = (found, key)

    def _grow(self, segments: list[list[tuple[int, int | None]]], size: int, small: bool) -> None:
        page = 2 * MIB if small else 20 * MIB
        if not segments:
            segments.append([])
        tail = segments[0].pop()[0] if segments[0] and segments[0][-1][1] is None else 0
        segments[0].append((tail + (size - tail + page - 1) // page * page, None))

    def free(self, key: int) -> None:
        for segments in self.segments.values():
            for number, segment in enumerate(segments):
                if any(owner == key for _, owner in segment):
                    joined: list[tuple[int, int | None]] = []
                    for size, owner in segment:
                        now = None if owner == key else owner
                        if now is None and joined and joined[-1][1] is None:
                            joined[-1] = (joined[-1][0] + size, None)
                        else:
                            joined.append((size, now))
                    segments[number] = joined
                    return

    def blocks(self, *, free: bool) -> list[int]:
        everything = (block for segments in self.segments.values() for segment in segments for block in segment)
        return sorted(size for size, owner in everything if (owner is None) == free)


SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 2 * MIB),
    st.integers(MIB, 64 * MIB),
    # Few sizes that come again and again, as in training, and those at which the rules change.
    st.sampled_from([512, 513, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 19 * MIB - 512, 19 * MIB, 20 * MIB, 33 * MIB]),
)
# To allocate (bytes, stream), or to free the n-th of what is held.
ACTIONS = st.lists(st.one_of(st.tuples(SIZES, st.integers(0, 2)), st.integers(0, 10**6)), max_size=60)
Actions = list[tuple[int, int] | int]


def events(actions: Actions) -> list[tuple[int, tuple[int, int] | None]]:
    """(name, what to allocate or None to free it) of sequences that a program can make."""
    held: list[int] = []
    found: list[tuple[int, tuple[int, int] | None]] = []
    for name, action in enumerate(actions):
        if isinstance(action, tuple):
            held.append(name)
            found.append((name, action))
        elif held:
            found.append((held.pop(action % len(held)), None))
    return found


@pytest.mark.parametrize("expandable", [False, True])
@given(actions=ACTIONS)
def test_the_model_does_what_a_slow_allocator_does(expandable: bool, actions: Actions) -> None:
    allocator, slow = CachingAllocator(expandable=expandable), Slow(expandable)
    for key, request in events(actions):
        if request is None:
            allocator.free(key)
            slow.free(key)
        else:
            allocator.allocate(key, *request)
            slow.allocate(key, *request)
        assert slow.blocks(free=True) == list(allocator.free_blocks())
        assert sum(slow.blocks(free=False)) == allocator.allocated_bytes
        assert allocator.allocated_bytes + sum(allocator.free_blocks()) == allocator.reserved_bytes


@pytest.mark.parametrize("expandable", [False, True])
@given(actions=ACTIONS)
def test_reserved_memory_never_falls_and_holds_what_is_allocated(expandable: bool, actions: Actions) -> None:
    allocator = CachingAllocator(expandable=expandable)
    history = []
    requested: dict[int, int] = {}
    for key, request in events(actions):
        if request is None:
            allocator.free(key)
            del requested[key]
        else:
            allocator.allocate(key, *request)
            requested[key] = request[0]
        assert allocator.reserved_bytes >= allocator.allocated_bytes >= sum(requested.values())
        history.append(allocator.reserved_bytes)
    assert all(earlier <= later for earlier, later in pairwise(history))
    assert max(history, default=0) == allocator.peak_reserved_bytes


@pytest.mark.parametrize("expandable", [False, True])
@given(actions=ACTIONS)
def test_when_all_is_freed_one_block_is_left_of_each_segment(expandable: bool, actions: Actions) -> None:
    allocator, slow = CachingAllocator(expandable=expandable), Slow(expandable)
    done = events(actions)
    for key, request in done:
        if request is None:
            allocator.free(key)
        else:
            allocator.allocate(key, *request)
            slow.allocate(key, *request)
    freed = {key for key, request in done if request is None}
    for key in (key for key, request in done if request is not None and key not in freed):
        allocator.free(key)

    assert 0 == allocator.allocated_bytes
    assert sum(allocator.free_blocks()) == allocator.reserved_bytes
    if expandable:
        assert len({(stream, size <= MIB) for _, (size, stream) in _requests(done)}) == len(allocator.free_blocks())
    allocator.empty_cache()
    assert (0, ()) == (allocator.reserved_bytes, allocator.free_blocks())


def _requests(done: list[tuple[int, tuple[int, int] | None]]) -> list[tuple[int, tuple[int, int]]]:
    return [(key, request) for key, request in done if request is not None]


@pytest.mark.parametrize("expandable", [False, True])
@given(actions=ACTIONS, emptied=st.sets(st.integers(0, 60)))
def test_giving_back_what_is_unused_changes_nothing_of_what_is_used(
    expandable: bool, actions: Actions, emptied: set[int]
) -> None:
    allocator = CachingAllocator(expandable=expandable)
    held: dict[int, int] = {}
    for place, (key, request) in enumerate(events(actions)):
        if request is None:
            allocator.free(key)
            del held[key]
        else:
            allocator.allocate(key, *request)
            held[key] = request[0]
        if place in emptied:
            before_bytes = allocator.allocated_bytes
            allocator.empty_cache()
            assert before_bytes == allocator.allocated_bytes
        assert allocator.allocated_bytes + sum(allocator.free_blocks()) == allocator.reserved_bytes
    for key in held:
        allocator.free(key)
    allocator.empty_cache()
    assert 0 == allocator.reserved_bytes


@pytest.mark.parametrize("expandable", [False, True])
@given(actions=ACTIONS)
def test_a_limit_that_suffices_is_met_whatever_is_unused(expandable: bool, actions: Actions) -> None:
    unlimited = CachingAllocator(expandable=expandable)
    for key, request in events(actions):
        unlimited.free(key) if request is None else unlimited.allocate(key, *request)

    limited = CachingAllocator(expandable=expandable, limit_bytes=unlimited.peak_reserved_bytes)
    for key, request in events(actions):
        limited.free(key) if request is None else limited.allocate(key, *request)

    assert 0 == limited.retries
    assert unlimited.free_blocks() == limited.free_blocks()
