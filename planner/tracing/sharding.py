"""What FSDP2 holds for a while: gathered parameters, and the buffers of its all-gathers and reduce-scatters.

A *unit* is a module that `fully_shard` was called on: each repeated block, and the root, which has what is in no
block and stays gathered from forward to the end of backward. The other units are gathered when their forward
begins, dropped when it ends, and gathered again for backward, where the next one is fetched ahead. These buffers
are storages like others, with the steps between which they are alive, so that every stage sees them.

Source: torch/distributed/fsdp/_fully_shard, torch 2.13, with its defaults: `FSDPParamGroup.unshard` and
`wait_for_unshard` (an all-gather's output is kept in forward until the next unit's is there, and in backward until
it has been copied), `FSDPState._root_pre_forward` and `_post_forward`, `pre_backward` (which prefetches one unit),
`post_backward` and `foreach_reduce` (the input of a reduce-scatter is kept until the next one). Not described:
other values of `reshard_after_forward`, explicit prefetching, and a second dimension of replicas.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.costs.optimizers import padded_elements
from planner.costs.static import ParameterInfo
from planner.graph import (
    ALL_GATHER,
    GATHERED,
    OUTSIDE,
    REDUCE_SCATTER,
    ROOT_UNIT,
    Op,
    Phase,
    SavedTensor,
    Storage,
    StorageKind,
)

ROOT = None  # the unit of what lies in no block

BlockOf = Callable[[str], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """The steps of a block's forward and of its backward: first, and one past the last."""

    name: str
    forward: tuple[int, int]
    backward: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How parameters are sharded.

    Attributes:
        devices: shards of each parameter.
        block_of: the block of a module or parameter; None in the root.
        element_bytes: of the dtype that is gathered and reduced in.
    """

    devices: int
    block_of: BlockOf
    element_bytes: int


def shard_storages(
    storages: Sequence[Storage],
    parameters: Sequence[ParameterInfo],
    ops: Sequence[Op],
    saved: Sequence[SavedTensor],
    sharding: Sharding,
    *,
    backward_step: int,
    steps: int,
) -> tuple[Storage, ...]:
    """The storages of an unsharded step as FSDP2 has them, its own buffers added at the end.

    A gradient dies when its unit has reduced it. The shard that remains is counted by the timeline from that step on.
    """
    block_of = sharding.block_of
    units = _units(ops, saved, block_of, backward_step)
    ends: dict[str | None, int] = {unit.name: unit.backward[1] for unit in units}
    gathered = _bytes_by_unit(parameters, sharding, trainable_only=False)
    reduced = _bytes_by_unit(parameters, sharding, trainable_only=True)
    forward_end = max((op.step + 1 for op in ops if op.phase is Phase.FORWARD and op.module_fqn != OUTSIDE), default=0)
    buffers = [
        *_forward_buffers(units, gathered, forward_end, steps),
        *_backward_buffers(units, gathered, reduced, backward_step, steps),
    ]
    kept = [
        replace(storage, free_step=max(storage.alloc_step + 1, ends.get(block_of(storage.name), steps)))
        if storage.kind is StorageKind.GRADIENT
        else storage
        for storage in storages
    ]
    return (
        *kept,
        *(
            Storage(
                index=len(kept) + place,
                size_bytes=size_bytes,
                kind=StorageKind.COMMUNICATION,
                name=name,
                alloc_step=start,
                free_step=end,
            )
            for place, (name, size_bytes, start, end) in enumerate(buffers)
        ),
    )


_Buffer = tuple[str, int, int, int]  # name, bytes, first step, one past the last


def _forward_buffers(
    units: Sequence[_Unit], gathered: Mapping[str | None, int], forward_end: int, steps: int
) -> list[_Buffer]:
    """Parameters of each unit while it runs, and the outputs of the all-gathers until the next one's is there."""
    order = sorted(units, key=lambda unit: unit.forward)
    starts = [unit.forward[0] for unit in order]
    buffers: list[_Buffer] = [
        (f"{ROOT_UNIT}{GATHERED}", gathered[ROOT], 0, steps),
        (f"{ROOT_UNIT}{ALL_GATHER}", gathered[ROOT], 0, starts[0] if starts else forward_end),
    ]
    for unit, following in zip(order, [*starts[1:], forward_end], strict=True):
        start, end = unit.forward
        buffers.append((f"{unit.name}{GATHERED}", gathered[unit.name], start, end))
        buffers.append((f"{unit.name}{ALL_GATHER}", gathered[unit.name], start, max(following, start)))
    return buffers


def _backward_buffers(
    units: Sequence[_Unit],
    gathered: Mapping[str | None, int],
    reduced: Mapping[str | None, int],
    backward_step: int,
    steps: int,
) -> list[_Buffer]:
    """The same in backward, where all-gathers run one unit ahead; inputs of reduce-scatters until the next one."""
    order = sorted(units, key=lambda unit: unit.backward)
    # The source frees a unit's gathered copy before it fetches the next; with gloo both were measured at that moment,
    # perhaps its staging of the all-gather. Counting both is the careful side: at most one unit, for one moment.
    fetched = [backward_step, *(unit.backward[0] for unit in order)]
    ends = [unit.backward[1] for unit in order]
    buffers: list[_Buffer] = []
    for unit, fetch, next_reduce in zip(order, fetched, [*ends[1:], steps], strict=False):
        start, end = unit.backward
        buffers.append((f"{unit.name}{ALL_GATHER}", gathered[unit.name], fetch, max(start + 1, fetch)))
        buffers.append((f"{unit.name}{GATHERED}", gathered[unit.name], start, end))
        buffers.append((f"{unit.name}{REDUCE_SCATTER}", reduced[unit.name], end, max(next_reduce, end)))
    return buffers


def _units(ops: Sequence[Op], saved: Sequence[SavedTensor], block_of: BlockOf, backward_step: int) -> tuple[_Unit, ...]:
    """The blocks that run in both directions. A block's backward begins with the first tensor it unpacks."""
    at: defaultdict[str, list[int]] = defaultdict(list)
    for op in ops:
        block = None if op.module_fqn == OUTSIDE else block_of(op.module_fqn)
        if block is not None:
            at[block].append(op.step)
    for tensor in saved:
        block = None if tensor.module_fqn == OUTSIDE else block_of(tensor.module_fqn)
        if block is not None:
            at[block] += [unpack for unpack, _ in tensor.uses]
    units = []
    for name, unsorted in at.items():
        steps = sorted(unsorted)
        split = bisect_left(steps, backward_step)
        if 0 < split < len(steps):
            units.append(
                _Unit(name=name, forward=(steps[0], steps[split - 1] + 1), backward=(steps[split], steps[-1] + 1))
            )
    return tuple(units)


def _bytes_by_unit(
    parameters: Sequence[ParameterInfo], sharding: Sharding, *, trainable_only: bool
) -> Mapping[str | None, int]:
    sizes: defaultdict[str | None, int] = defaultdict(int)
    for item in parameters:
        if item.is_trainable or not trainable_only:
            sizes[item.block] += padded_elements(item.shape, sharding.devices) * sharding.element_bytes
    return sizes
