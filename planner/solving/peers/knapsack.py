"""Knapsacks over saved tensors: each has bytes and the time of the op that makes it, and none depends on another.

Source: torch.compile's activation memory budget (`torch/_functorch/partitioners.py` and
`_activation_checkpointing/knapsack.py`): `greedy_knapsack` takes by time per byte, `dp_knapsack` solves the 0/1 problem
on bytes rounded up to a grid. What it compiles runs op by op, each at most once, so these run on demand.

Left out: that torch.compile asks the knapsack only about what its min-cut may not replay (see `cut`).
"""

from collections.abc import Iterable, Sequence
from math import ceil

import numpy as np

from planner.problem import Problem, Tensor
from planner.solving.peers.records import Peer, on_demand, saveable, size_of
from planner.units import format_bytes

GREEDY = "greedy knapsack"
ZERO_ONE = "0/1 knapsack"
# Bytes are rounded up to this part of the room; torch.compile rounds to the nearest, and may exceed it.
_GRID = 10_000


def greedy_knapsack(problem: Problem, *, limit_bytes: int, start: frozenset[int]) -> Peer:
    """Saved by time per byte, the dearest first, as long as all that is kept stays within the limit.

    Args:
        problem: the step.
        limit_bytes: on the bytes of all kept tensors together.
        start: what is kept in any case.
    """
    kept = start | take_greedily(problem, _items(problem, start), limit_bytes - size_of(problem, start))
    return on_demand(problem, kept, rule=GREEDY, setting=f"keep {format_bytes(limit_bytes)}")


def zero_one_knapsack(problem: Problem, *, limit_bytes: int, start: frozenset[int]) -> Peer:
    """Saved so that the time of the ops that made it is the most possible within the limit; arguments as above."""
    items = _items(problem, start)
    costs_ns = [replay_ns(problem, item) for item in items]
    chosen = best_subset([item.size_bytes for item in items], costs_ns, limit_bytes - size_of(problem, start))
    kept = start | {items[place].index for place in chosen}
    return on_demand(problem, kept, rule=ZERO_ONE, setting=f"keep {format_bytes(limit_bytes)}")


def take_greedily(problem: Problem, items: Iterable[Tensor], room_bytes: int) -> frozenset[int]:
    """The items that fit into the room, offered by time per byte; one that does not fit is passed over."""
    taken = set()
    for item in sorted(items, key=lambda item: (-density(problem, item), item.index)):
        if item.size_bytes <= room_bytes:
            taken.add(item.index)
            room_bytes -= item.size_bytes
    return frozenset(taken)


def replay_ns(problem: Problem, item: Tensor) -> int:
    """Time of the op that makes the tensor."""
    return 0 if item.producer is None else problem.ops[item.producer].cost_ns


def density(problem: Problem, item: Tensor) -> float:
    """Time of its op per byte of the tensor."""
    return replay_ns(problem, item) / item.size_bytes if item.size_bytes else float("inf")


def best_subset(sizes: Sequence[int], gains: Sequence[int], room: int) -> frozenset[int]:
    """Positions of the items with the largest total gain whose sizes fit; exact up to rounding sizes to a grid.

    What is smaller than a step of the grid is taken beforehand: rounded up, thousands of small items would fill the
    room. Never takes more than fits.
    """
    step = max(1, ceil(room / _GRID))
    taken = {place for place, size in enumerate(sizes) if size < step}
    room -= sum(sizes[place] for place in taken)
    if room < 0:
        return frozenset()
    cells = room // step + 1
    best = np.zeros(cells, dtype=np.int64)  # by room used at most
    rest = [place for place in range(len(sizes)) if place not in taken and ceil(sizes[place] / step) < cells]
    is_better = np.zeros((len(rest), cells), dtype=bool)
    for row, place in enumerate(rest):
        width = ceil(sizes[place] / step)
        with_item = best[: cells - width] + gains[place]
        is_better[row, width:] = with_item > best[width:]
        best[width:] = np.maximum(best[width:], with_item)
    cell = cells - 1
    for row in reversed(range(len(rest))):
        if is_better[row, cell]:
            taken.add(rest[row])
            cell -= ceil(sizes[rest[row]] / step)
    return frozenset(taken)


def _items(problem: Problem, start: frozenset[int]) -> list[Tensor]:
    return [tensor for tensor in saveable(problem) if tensor.index not in start]
