"""The memory timeline of a plan by kind: how much of it are parameters, kept tensors, replays, and so on.

A pure function of what the timeline is made from. At every moment the kinds add up to the timeline's bytes.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planner.graph import OpGraph, StaticMemory, Storage, StorageKind, ops, step_info, values
from planner.problem import Problem, alive_bytes, natural_lives
from planner.simulation.kinds import MemoryKind
from planner.simulation.liveness import Lives, Timeline, demand_schedule
from planner.simulation.planned import Held

_NOTHING = StaticMemory(
    parameters_bytes=0, gradients_bytes=0, optimizer_bytes=0, optimizer_transient_bytes=0, unsharded_bytes=0
)
_BY_STORAGE = {
    StorageKind.PARAMETER: MemoryKind.PARAMETERS,
    StorageKind.BUFFER: MemoryKind.PARAMETERS,
    StorageKind.INPUT: MemoryKind.INPUTS,
    StorageKind.CONSTANT: MemoryKind.INPUTS,
    StorageKind.GRADIENT: MemoryKind.GRADIENTS,
    StorageKind.COMMUNICATION: MemoryKind.SHARDING,
}

ByKind = Mapping[MemoryKind, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Bytes by kind; kinds that never have any are left out.

    Attributes:
        by_kind: for each kind, its bytes at every moment of the timeline.
        optimizer: its bytes during the optimizer step, which comes after all of these moments.
    """

    by_kind: Mapping[MemoryKind, tuple[int, ...]]
    optimizer: ByKind

    def at(self, place: int) -> ByKind:
        """The bytes of each kind at one moment."""
        return {kind: sizes[place] for kind, sizes in self.by_kind.items()}


def breakdown(graph: OpGraph, problem: Problem, held: Held, timeline: Timeline) -> Breakdown:
    """The timeline by kind.

    Args:
        graph: of the step.
        problem: made from the graph.
        held: the plan's decisions.
        timeline: of these decisions, as `simulate` has it with the runtime's own schedule.
    """
    parts = Lives(problem, held.kept, demand_schedule(problem, held.kept), held.offloaded).parts(timeline.traffic)
    moments = len(timeline.points)
    found: dict[MemoryKind, list[int]] = {kind: [0] * moments for kind in MemoryKind}
    base = _base(graph, problem, held)
    for kind, by_step in base.items():
        found[kind] = [by_step[point.step] for point in timeline.points]
    for kind, added in (
        (MemoryKind.KEPT, parts.kept_bytes),
        (MemoryKind.REPLAYED, parts.replayed_bytes),
        (MemoryKind.WORKSPACE, parts.scratch_bytes),
        (MemoryKind.OFFLOADED, parts.moved_bytes),
    ):
        found[kind] = [size + more for size, more in zip(found[kind], added, strict=True)]
    static = step_info(graph).static
    optimizer = {
        MemoryKind.PARAMETERS: static.parameters_bytes,
        MemoryKind.OPTIMIZER_STATE: static.optimizer_bytes,
        MemoryKind.BUCKETS: static.buckets_bytes,
        MemoryKind.GRADIENTS: static.gradients_bytes,
        MemoryKind.OPTIMIZER_STEP: static.optimizer_transient_bytes,
    }
    present = [kind for kind in MemoryKind if any(found[kind]) or optimizer.get(kind)]
    return Breakdown(
        by_kind={kind: tuple(found[kind]) for kind in present},
        optimizer={kind: optimizer.get(kind, 0) for kind in present},
    )


def _base(graph: OpGraph, problem: Problem, held: Held) -> Mapping[MemoryKind, tuple[int, ...]]:
    """By step, what is alive whatever the plan, as `Problem.base_bytes` adds it up."""
    info = step_info(graph)

    def over_steps(lives: Iterable[Storage]) -> tuple[int, ...]:
        return alive_bytes(
            lives, (), static=_NOTHING, sharded_gradient_ratio=info.sharded_gradient_ratio, steps=info.steps
        )

    groups: defaultdict[MemoryKind, list[Storage]] = defaultdict(list)
    holding = _holding(graph, problem, held)
    for storage in natural_lives(graph):
        groups[_kind(storage, holding, info.backward_step, info.steps)].append(storage)
    found = {kind: over_steps(lives) for kind, lives in groups.items()}
    found[MemoryKind.WORKSPACE] = alive_bytes(
        (), ops(graph), static=_NOTHING, sharded_gradient_ratio=0.0, steps=info.steps
    )
    for kind, size_bytes in (
        (MemoryKind.PARAMETERS, info.static.parameters_bytes),
        (MemoryKind.OPTIMIZER_STATE, info.static.optimizer_bytes),
        (MemoryKind.BUCKETS, info.static.buckets_bytes),
    ):
        found[kind] = tuple(size_bytes + more for more in found.get(kind, (0,) * info.steps))
    return found


def _holding(graph: OpGraph, problem: Problem, held: Held) -> Mapping[int, MemoryKind]:
    """The storages that the plan holds: on the device from forward to backward, or on the host meanwhile."""
    found: dict[int, MemoryKind] = {}
    for index in sorted(held.kept):
        storage = values(graph)[problem.tensors[index].value].storage
        if index not in held.offloaded:
            found[storage] = MemoryKind.KEPT
        else:
            found.setdefault(storage, MemoryKind.OFFLOADED)
    return found


def _kind(storage: Storage, holding: Mapping[int, MemoryKind], backward_step: int, steps: int) -> MemoryKind:
    if storage.kind is not StorageKind.ACTIVATION:
        return _BY_STORAGE[storage.kind]
    if storage.index in holding:
        return holding[storage.index]
    if storage.alloc_step >= backward_step:
        return MemoryKind.BACKWARD
    # What is saved and never asked for stays to the end.
    return MemoryKind.KEPT if storage.free_step >= steps else MemoryKind.FORWARD
