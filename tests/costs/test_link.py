"""The link on timelines small enough to draw on paper: one byte takes one nanosecond."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.link import Transfer, copy_ns, link_timeline

BYTE_PER_NS = 1e9


def transfer(size_bytes: int, ready_step: int, need_step: int | None) -> Transfer:
    return Transfer(size_bytes=size_bytes, ready_step=ready_step, need_step=need_step)


def test_a_copy_takes_its_bytes_over_the_rate() -> None:
    assert 20_000_000 == copy_ns(10**9, 5e10)


def test_what_fits_beside_the_computation_costs_nothing() -> None:
    # Forward 0..20, backward 20..40. Out 10..18; back from 20 on, needed at 30.
    found = link_timeline([10, 10, 10, 10], [transfer(8, 0, 3)], bytes_per_s=BYTE_PER_NS, backward_step=2)

    assert (0, (10,), (18,), (20,), (28,)) == (
        found.stall_ns,
        found.out_start_ns,
        found.out_finish_ns,
        found.back_start_ns,
        found.back_finish_ns,
    )
    assert (0, 10, 20, 30, 40) == found.step_start_ns


def test_the_device_waits_for_what_is_not_back_in_time() -> None:
    # Out 10..25 and back 25..40, but needed at 30: 10 late, and everything after moves by as much.
    found = link_timeline([10, 10, 10, 10], [transfer(15, 0, 3)], bytes_per_s=BYTE_PER_NS, backward_step=2)

    assert 10 == found.stall_ns
    assert (0, 10, 20, 40, 50) == found.step_start_ns


def test_copies_out_queue_in_order_and_run_on_into_backward() -> None:
    # Out 10..22 and 22..34; the second comes back only then, 34..46, needed at 30. The first comes back last.
    transfers = [transfer(12, 0, 4), transfer(12, 1, 3)]
    found = link_timeline([10, 10, 10, 10, 10], transfers, bytes_per_s=BYTE_PER_NS, backward_step=2)

    assert (22, 34) == found.out_finish_ns
    assert (58, 46) == found.back_finish_ns
    # Step 3 waits from 30 to 46 and ends at 56; step 4 waits until 58.
    assert (0, 10, 20, 46, 58, 68) == found.step_start_ns
    assert 18 == found.stall_ns


def test_a_limit_on_what_waits_holds_the_computation_back() -> None:
    # 12 bytes may wait: when the second is made, at 20, the first (10..22) must be gone first.
    transfers = [transfer(12, 0, None), transfer(12, 1, None)]
    free = link_timeline([10] * 4, transfers, bytes_per_s=BYTE_PER_NS, backward_step=2)
    held = link_timeline([10] * 4, transfers, bytes_per_s=BYTE_PER_NS, backward_step=2, waiting_bytes=12)

    assert (0, 2) == (free.stall_ns, held.stall_ns)
    assert (0, 10, 22, 32, 42) == held.step_start_ns
    assert (None, None) == held.back_start_ns


def test_a_limit_on_what_is_ahead_delays_copies_back() -> None:
    # Both would be back by 20; with room for one, the second starts when step 4, which needs the first, starts.
    transfers = [transfer(5, 0, 4), transfer(5, 1, 5)]
    free = link_timeline([5] * 6, transfers, bytes_per_s=BYTE_PER_NS, backward_step=2)
    held = link_timeline([5] * 6, transfers, bytes_per_s=BYTE_PER_NS, backward_step=2, ahead_bytes=5)

    assert (10, 15) == free.back_start_ns
    assert (10, 20) == held.back_start_ns
    assert (0, 0) == (free.stall_ns, held.stall_ns)


def test_a_transfer_larger_than_the_limits_goes_alone() -> None:
    found = link_timeline(
        [10] * 4, [transfer(30, 0, 3)], bytes_per_s=BYTE_PER_NS, backward_step=2, waiting_bytes=1, ahead_bytes=1
    )

    # Out 10..40, back 40..70, needed at 30.
    assert 40 == found.stall_ns


@pytest.mark.parametrize(("ready", "need"), [(2, 3), (0, 1), (-1, 3), (0, 9)])
def test_a_transfer_must_leave_in_forward_and_return_in_backward(ready: int, need: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        link_timeline([1, 1, 1, 1], [transfer(1, ready, need)], bytes_per_s=BYTE_PER_NS, backward_step=2)


@given(
    st.lists(st.integers(0, 9), min_size=6, max_size=6),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(3, 6)), max_size=6),
    st.none() | st.integers(0, 20),
    st.none() | st.integers(0, 20),
)
def test_no_copy_breaks_its_bounds(
    step_ns: list[int], rows: list[tuple[int, int, int]], waiting: int | None, ahead: int | None
) -> None:
    transfers = [transfer(*row) for row in rows]
    found = link_timeline(
        step_ns, transfers, bytes_per_s=BYTE_PER_NS, backward_step=3, waiting_bytes=waiting, ahead_bytes=ahead
    )

    starts = found.step_start_ns
    assert sum(step_ns) + found.stall_ns == starts[-1]
    assert all(later - start >= took for start, later, took in zip(starts, starts[1:], step_ns, strict=False))
    for place, moved in enumerate(transfers):
        back_start, back_finish = found.back_start_ns[place], found.back_finish_ns[place]
        assert back_start is not None
        assert back_finish is not None
        assert moved.need_step is not None
        # Made, then out, then back, then needed. A wait before the next step is after the bytes are made.
        assert starts[moved.ready_step] + step_ns[moved.ready_step] <= found.out_start_ns[place]
        assert found.out_finish_ns[place] <= back_start
        assert starts[2] + step_ns[2] <= back_start
        assert back_finish <= starts[moved.need_step]
    for times in (
        zip(found.out_start_ns, found.out_finish_ns, strict=True),
        zip(found.back_start_ns, found.back_finish_ns, strict=True),
    ):
        spans = sorted((begin, end) for begin, end in times if begin is not None and end is not None)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
