"""What one training step allocates and frees, in order: the input of the model of PyTorch's allocator.

A step's *moments* are its steps and, before an unpack, the ops that the plan replays there; the optimizer step comes
after the last. The lives are those that `planner.simulation.liveness` counts, as blocks instead of a sum: a storage
that the plan keeps is one block from its op to its release; one that is replayed, or comes back from the host, is
another block then.

Parameters, gradients and optimizer state are counted as sums elsewhere. Here every parameter has its share of them, by
the bytes of its traced storage: what rows that are padded to equal shards add is spread over all.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from planner.costs.reserved import MIB
from planner.graph import (
    ALL_GATHER,
    GATHERED,
    ROOT_UNIT,
    OpGraph,
    StaticMemory,
    Storage,
    StorageKind,
    ops,
    saved_tensors,
    step_info,
    storages,
    values,
)
from planner.problem import Problem, natural_lives

if TYPE_CHECKING:
    from planner.simulation.liveness import Timeline

# Source: torch/csrc/distributed/c10d/reducer.hpp, torch 2.13: kDefaultBucketBytesCap, and kDefaultFirstBucketBytes for
# the gradients that are ready first.
_BUCKET_BYTES = 25 * MIB
_FIRST_BUCKET_BYTES = MIB
_RESIDENT = frozenset({StorageKind.PARAMETER, StorageKind.BUFFER})
_HELD_BEFORE = frozenset({StorageKind.INPUT, StorageKind.CONSTANT})


class Stream(IntEnum):
    """The CUDA stream that memory is allocated on; what is freed serves its own stream only.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, torch 2.13: `foreach_all_gather` allocates on the
    copy-in stream, `foreach_reduce` its result on the reduce-scatter stream and its input on the current one.
    Copies to and from the host use memory of the stream that computes (`planner.runtime.offload`).
    """

    COMPUTE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A block that is held from the moment `start` on until the moment `stop`."""

    size_bytes: int
    start: int
    stop: int
    stream: Stream = Stream.COMPUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAllocations:
    """The blocks of a training run, every step of which is alike.

    Attributes:
        resident_bytes: made before the first step and kept.
        lives: of each step, in the order in which blocks made at one moment are made.
        backward: the first moment of backward.
        end: the moment of the optimizer step; what stops later is freed when that is done.
        state_bytes: made by the first optimizer step and kept.
        transient_bytes: held by every optimizer step, all at once.
    """

    resident_bytes: tuple[int, ...]
    lives: tuple[Life, ...]
    backward: int
    end: int
    state_bytes: tuple[int, ...]
    transient_bytes: tuple[int, ...]


def saving_step(graph: OpGraph) -> StepAllocations:
    """The blocks of a traced step in which autograd keeps all that it saves."""
    moments = range(step_info(graph).steps + 1)
    held: dict[int, int] = {}
    for saved in saved_tensors(graph):
        storage = values(graph)[saved.value].storage
        held[storage] = max([held.get(storage, 0), *(release for _, release in saved.uses)])
    return _step(graph, moments, held, ())


def planned_step(graph: OpGraph, problem: Problem, kept: Set[int], timeline: "Timeline") -> StepAllocations:
    """The blocks of a traced step under a plan.

    Args:
        graph: of the step.
        problem: that was built from it.
        kept: positions of the tensors held from forward, here or on the host.
        timeline: of the plan.
    """
    first: dict[int, int] = {}
    replayed: dict[int, int] = {}
    for moment, point in enumerate(timeline.points):
        first.setdefault(point.step, moment)
        if point.replay is not None:
            replayed[point.replay] = moment
    moments = [*(first[step] for step in range(len(first))), len(timeline.points)]
    ends = _ends(problem, moments, replayed)
    copies = {copy.tensor: copy for copy in timeline.traffic.copies}
    held: dict[int, int] = {}
    for index in kept:
        stop = moments[copies[index].gone_step] if index in copies else ends[index]
        storage = values(graph)[problem.tensors[index].value].storage
        held[storage] = max(held.get(storage, 0), stop)
    more = [*_replays(problem, kept, ends, replayed)]
    for copy in timeline.traffic.copies:
        back = moments[copy.back_step + 1] - 1 if copy.back_replay is None else replayed[copy.back_replay]
        more.append(
            Life(size_bytes=problem.tensors[copy.tensor].size_bytes, start=back, stop=max(ends[copy.tensor], back))
        )
    return _step(graph, moments, held, more)


def _ends(problem: Problem, moments: Sequence[int], replayed: Mapping[int, int]) -> list[int]:
    """The moment at which each tensor of the problem is let go: past its last use and the last replay that reads it."""
    ends = [moments[tensor.last_release] if tensor.uses else 0 for tensor in problem.tensors]
    for op, moment in replayed.items():
        for index in problem.ops[op].reads:
            ends[index] = max(ends[index], moment + 1)
    return ends


def _replays(problem: Problem, kept: Set[int], ends: Sequence[int], replayed: Mapping[int, int]) -> Iterator[Life]:
    for op, moment in replayed.items():
        for index in problem.ops[op].writes:
            stop = moment + 1 if index in kept else max(ends[index], moment + 1)
            yield Life(size_bytes=problem.tensors[index].size_bytes, start=moment, stop=stop)
        yield Life(size_bytes=problem.ops[op].scratch_bytes, start=moment, stop=moment + 1)


def _step(graph: OpGraph, moments: Sequence[int], held: Mapping[int, int], more: Iterable[Life]) -> StepAllocations:
    """The blocks of a step.

    Args:
        graph: of the step.
        moments: the first moment of each step, and that of the optimizer step.
        held: until when storages are held that outlive what they live in every plan.
        more: blocks that the plan adds.
    """
    info, end = step_info(graph), moments[-1]
    shares = _Shares(graph)
    lives = [*more]
    for storage in natural_lives(graph):
        if storage.kind not in _RESIDENT:
            lives += _of_storage(storage, moments, held.get(storage.index, 0), shares)
    lives += _sharded_gradients(graph, moments)
    for op in ops(graph):
        if op.workspace_bytes:
            now = moments[op.step + 1] - 1
            lives.append(Life(size_bytes=op.workspace_bytes, start=now, stop=now + 1))
    return StepAllocations(
        resident_bytes=shares.resident,
        lives=tuple(life for life in lives if life.size_bytes and life.start < life.stop),
        backward=moments[info.backward_step],
        end=end,
        state_bytes=shares.states,
        transient_bytes=shares.transients,
    )


def _of_storage(storage: Storage, moments: Sequence[int], held_until: int, shares: "_Shares") -> Iterator[Life]:
    end = moments[-1]
    start = 0 if storage.kind in _HELD_BEFORE else moments[storage.alloc_step]
    stop = max(moments[storage.free_step], held_until)
    stream = Stream.COMPUTE
    sizes: tuple[int, ...] = (storage.size_bytes,)
    if storage.kind is StorageKind.GRADIENT and stop == end:
        stop = end + 1  # the optimizer reads it
    if storage.kind is StorageKind.COMMUNICATION:
        if storage.name.endswith(ALL_GATHER):
            stream = Stream.ALL_GATHER
        elif storage.name.endswith(GATHERED):
            sizes = shares.gathered(storage)
    for size_bytes in sizes:
        yield Life(size_bytes=size_bytes, start=start, stop=stop, stream=stream)


def _sharded_gradients(graph: OpGraph, moments: Sequence[int]) -> Iterator[Life]:
    """With FSDP, what is left of gradients once they are reduced: one block for each unit, which reduces them at once.

    Source: `foreach_reduce`, see `Stream`: gradients are views of the result.
    """
    ratio = step_info(graph).sharded_gradient_ratio
    units: defaultdict[int, int] = defaultdict(int)
    for storage in storages(graph):
        if storage.kind is StorageKind.GRADIENT and ratio:
            units[moments[storage.free_step]] += round(storage.size_bytes * ratio)
    for reduced, size_bytes in units.items():
        yield Life(size_bytes=size_bytes, start=reduced, stop=moments[-1] + 1, stream=Stream.REDUCE_SCATTER)


class _Shares:
    """Sums of static memory as the blocks that they consist of.

    Attributes:
        resident: parameters, buffers, and the buckets of DDP.
        states, transients: of the optimizer, parameter by parameter.
    """

    def __init__(self, graph: OpGraph) -> None:
        static, table = step_info(graph).static, storages(graph)
        graded = {storage.name for storage in table if storage.kind is StorageKind.GRADIENT}
        parameters = [storage for storage in table if storage.kind is StorageKind.PARAMETER]
        units = {
            storage.name.removesuffix(GATHERED)
            for storage in table
            if storage.kind is StorageKind.COMMUNICATION and storage.name.endswith(GATHERED)
        }
        self._in_unit: defaultdict[str, list[int]] = defaultdict(list)
        for storage in parameters:
            self._in_unit[_unit_of(storage.name, units)].append(storage.size_bytes)
        trained = [storage.size_bytes for storage in parameters if storage.name in graded]
        buffers = [storage.size_bytes for storage in table if storage.kind is StorageKind.BUFFER]
        owned = apportioned(static.parameters_bytes - sum(buffers), [storage.size_bytes for storage in parameters])
        self.resident = (
            *owned,
            *buffers,
            *_buckets(apportioned(static.buckets_bytes, trained)[::-1]),
        )
        copies = _state_copies(static)
        self.states = tuple(
            part for share in apportioned(static.optimizer_bytes, trained) for part in apportioned(share, [1] * copies)
        )
        self.transients = apportioned(static.optimizer_transient_bytes, trained)

    def gathered(self, storage: Storage) -> tuple[int, ...]:
        """The parameters that a unit of FSDP gathers, each of which has its own memory."""
        return apportioned(storage.size_bytes, self._in_unit[storage.name.removesuffix(GATHERED)])


def _unit_of(parameter: str, units: Set[str]) -> str:
    path = parameter
    while path := path.rpartition(".")[0]:
        if path in units:
            return path
    return ROOT_UNIT


def apportioned(total_bytes: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Whole parts of a sum in proportion to the weights; the sum itself if they are all zero."""
    weight = sum(weights)
    if not weight:
        return (total_bytes,) if total_bytes else ()
    parts, before, reached = [], 0, 0
    for one in weights:
        reached += one
        upto = total_bytes * reached // weight
        parts.append(upto - before)
        before = upto
    return tuple(parts)


def _state_copies(static: StaticMemory) -> int:
    """In how many tensors the optimizer keeps what it knows of a parameter: as many as copies of it that comes to."""
    if not static.gradients_bytes:
        return 1
    return max(1, -(-static.optimizer_bytes // static.gradients_bytes))


def _buckets(gradients: Sequence[int]) -> Iterator[int]:
    """Buckets of DDP for gradients in the order in which they are ready; one is full as soon as it reaches the cap."""
    filled, cap_bytes = 0, _FIRST_BUCKET_BYTES
    for size_bytes in gradients:
        filled += size_bytes
        if filled >= cap_bytes:
            yield filled
            filled, cap_bytes = 0, _BUCKET_BYTES
    if filled:
        yield filled
