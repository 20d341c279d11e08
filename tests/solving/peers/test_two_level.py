"""Shares of blocks worked out by hand, and what rounding them to whole tensors loses."""

import pytest

pytest.importorskip("ortools")

from planner.solving.peers.two_level import block_shares, two_levels
from tests.simulation.test_liveness import chain
from tests.solving.peers.test_knapsack import costing

# Two blocks of two ops: 0 and 1, 2 and 3. Block 1 starts from tensor 1.
EVEN = costing(chain((4, 1, 4, 1)), (8, 1, 8, 1))
BLOCKS = ("blocks.0", "blocks.1")


def test_equal_blocks_get_equal_shares() -> None:
    members = {"a": [EVEN.tensors[0]], "b": [EVEN.tensors[2]]}

    assert ({"a": 2, "b": 2}, 8) == block_shares(EVEN, members, 4)
    assert ({"a": 4, "b": 4}, 16) == block_shares(EVEN, members, 100)
    assert ({"a": 0, "b": 0}, 0) == block_shares(EVEN, members, 0)


def test_the_dearer_block_is_filled_first() -> None:
    uneven = costing(chain((4, 1, 4, 1)), (9, 1, 8, 1))
    members = {"a": [uneven.tensors[0]], "b": [uneven.tensors[2]]}

    assert ({"a": 4, "b": 2}, 13) == block_shares(uneven, members, 6)


def test_a_share_smaller_than_a_tensor_is_lost_and_the_rule_does_not_know() -> None:
    found = two_levels(EVEN, BLOCKS, limit_bytes=1 + 4)

    # Block input 1 is kept; of the 4 bytes left each block gets 2, where no tensor of 4 fits, but 3 does.
    assert frozenset({1, 3}) == found.kept
    # It believes half of 0 and of 2 kept, and 3 replayed.
    assert 8 + 1 == found.believed_recompute_ns
    assert 16 == found.timeline.recompute_ns


def test_with_room_for_all_nothing_is_replayed() -> None:
    found = two_levels(EVEN, BLOCKS, limit_bytes=10)

    assert frozenset(range(4)) == found.kept
    assert 0 == found.believed_recompute_ns
    assert 10 == found.believed_peak_bytes
