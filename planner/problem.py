"""The retention problem of one step: what can be kept, what can be replayed, and the memory no plan changes.

`build_problem` reduces an op graph to the ops that a replay could need and the values they pass. Everything is an
integer: bytes and nanoseconds. The budget is not part of the problem, so one problem serves many budgets.

What to keep may lie on the device or on the host meanwhile; the problem says what may, and what the copies take.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

from planner.blocks import BlockIndex, block_levels
from planner.costs.roofline import op_seconds, optimizer_seconds
from planner.device import DeviceProfile
from planner.graph import (
    OUTSIDE,
    Op,
    OpGraph,
    Phase,
    StaticMemory,
    Storage,
    StorageKind,
    modules,
    ops,
    saved_tensors,
    step_in_words,
    step_info,
    storages,
    values,
)
from planner.link import HostLink

_NS_PER_S = 1_000_000_000
STATIC = frozenset({StorageKind.PARAMETER, StorageKind.BUFFER, StorageKind.INPUT, StorageKind.CONSTANT})
# Held through the whole step and counted in StaticMemory, not by their traced storages.
_COUNTED_ELSEWHERE = frozenset({StorageKind.PARAMETER, StorageKind.BUFFER})
# Batch norm writes its running statistics, but its output does not depend on them in training: replay passes none.
STATE_FREE_REPLAY = frozenset({"aten.native_batch_norm", "aten.cudnn_batch_norm", "aten.miopen_batch_norm"})


# Smaller tensors do not leave for the host. A megabyte takes about 20 microseconds on PCIe 5.0: with less, the launch
# of the copies and the runtime's own work weigh as much as the copy.
SMALLEST_OFFLOAD_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """When forward packs a tensor: from then on its copy to the host may run.

    Attributes:
        step: before which it is packed for the first time.
        first_rank, last_rank: of its first and last packing among all in the model's own forward.
    """

    step: int
    first_rank: int
    last_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """One packing of any tensor: the step before which it is, and that of its first unpack, if any."""

    step: int
    unpack_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One value the plan decides about. `index` is its position in `Problem.tensors`.

    Attributes:
        value: its index in the graph's value table.
        size_bytes: of its storage.
        producer: position in `Problem.ops` of the op that makes it, or None if that op cannot be replayed.
        may_keep: the runtime can hold on to it: it is saved, or enters or leaves a module, and is never overwritten.
        must_keep: it is needed and cannot be replayed, or is saved outside the model's forward, beyond our reach, or
            passes between the units of FSDP, which replays may not cross.
        free_step: when it dies in forward if it is not kept.
        uses: (unpack_step, release_step) of each unpack in backward; empty for what autograd does not save.
        consumers: positions in `Problem.ops` of the ops that read it.
        packing: of what may lie on the host until backward; None for what may not.
    """

    index: int
    value: int
    size_bytes: int
    producer: int | None
    may_keep: bool
    must_keep: bool
    free_step: int
    uses: tuple[tuple[int, int], ...]
    consumers: tuple[int, ...]
    packing: Packing | None = None

    @property
    def first_unpack(self) -> int:
        """Step of its first unpack."""
        return min(unpack for unpack, _ in self.uses)

    @property
    def last_release(self) -> int:
        """First step in which backward no longer holds it; 0 for what autograd does not save."""
        return max((release for _, release in self.uses), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOp:
    """One forward op that backward may run again. Reads and writes are positions in `Problem.tensors`."""

    index: int
    step: int
    name: str
    module_fqn: str
    cost_ns: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    scratch_bytes: int  # its workspace, and outputs that no one can ever need again: alive while it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What to keep and what to replay, before any budget.

    Attributes:
        tensors: the values decided about.
        ops: the replayable ops, in forward order.
        base_bytes: per step, the bytes alive whatever the plan: static memory, natural lives and workspaces, without
            what autograd saves. Kept tensors and replays come on top.
        backward_step: first step of backward.
        optimizer_peak_bytes: bytes alive during the optimizer step.
        step_ns: time of forward, backward and optimizer step without any replay.
        times_ns: of each step of forward and backward.
        link: to the host; None if nothing may go there.
        packs: all that the model's own forward packs, by rank.
        settle_step: before this step, all copies to the host are waited for: the model's own forward has ended.
    """

    tensors: tuple[Tensor, ...]
    ops: tuple[ReplayOp, ...]
    base_bytes: tuple[int, ...]
    backward_step: int
    optimizer_peak_bytes: int
    step_ns: int
    times_ns: tuple[int, ...] = ()
    link: HostLink | None = None
    packs: tuple[Pack, ...] = ()
    settle_step: int = 0

    @property
    def must_keep(self) -> frozenset[int]:
        """The tensors that every plan keeps."""
        return frozenset(tensor.index for tensor in self.tensors if tensor.must_keep)

    @property
    def may_offload(self) -> bool:
        """Whether any tensor may lie on the host."""
        return self.link is not None and any(tensor.packing is not None for tensor in self.tensors)

    @property
    def first_return_step(self) -> int:
        """Before the first unpack, nothing comes back from the host."""
        unpacks = [unpack for tensor in self.tensors for unpack, _ in tensor.uses]
        packed = [pack.unpack_step for pack in self.packs if pack.unpack_step is not None]
        return min([*unpacks, *packed], default=self.backward_step)

    @property
    def choices(self) -> tuple[Tensor, ...]:
        """The tensors a plan may keep or not."""
        return tuple(t for t in self.tensors if t.may_keep and not t.must_keep)


def moment_in_words(problem: Problem, graph: OpGraph, step: int, replay: int | None) -> str:
    """Where in the step a moment is, for a person: a step, or within it the replay of an op (by position)."""
    if replay is None:
        return step_in_words(graph, step)
    op = problem.ops[replay]
    return f"{Phase.BACKWARD}, replaying {op.name} of {op.module_fqn or 'the model'}"


def without_link(problem: Problem) -> Problem:
    """The same step where nothing may leave for the host."""
    return replace(problem, link=None, tensors=tuple(replace(tensor, packing=None) for tensor in problem.tensors))


def build_problem(
    graph: OpGraph,
    device: DeviceProfile,
    *,
    host_budget_bytes: int = 0,
    smallest_offload_bytes: int = SMALLEST_OFFLOAD_BYTES,
) -> Problem:
    """The retention problem of a traced step on a device.

    Args:
        graph: of the step.
        device: for the time of each op and copy.
        host_budget_bytes: what there is on the host for tensors that leave the device; 0 for none.
        smallest_offload_bytes: smaller tensors do not leave for the host.
    """
    forward = [op for op in ops(graph) if op.phase is Phase.FORWARD and not op.is_view]
    saved_uses = _uses_by_value(graph)
    keepable = _keepable_values(graph, saved_uses)
    replayable = _replayable_ops(graph, forward, keepable)
    needed = _needed_ops(graph, forward, replayable, saved_uses)
    value_table, storage_table = values(graph), storages(graph)

    # Step 1: the values in play, in order of appearance.
    op_position = {op.step: position for position, op in enumerate(needed)}
    active = {index for op in needed for index in (*op.reads, *op.writes)} | set(saved_uses)
    order = sorted(
        index
        for index in active
        if not _is_static(graph, index)
        and (index in saved_uses or index in keepable or value_table[index].producer in op_position)
    )
    position = {value: place for place, value in enumerate(order)}

    # Step 2: the tensors.
    consumers: dict[int, list[int]] = {}
    for op in needed:
        for index in op.reads:
            consumers.setdefault(index, []).append(op_position[op.step])
    outside = {saved.value for saved in saved_tensors(graph) if saved.module_fqn == OUTSIDE}
    packings = _packings(graph)
    crossing = _crossing_values(graph, forward) if step_info(graph).static.unsharded_bytes else frozenset()
    tensors = []
    for index in order:
        producer = value_table[index].producer
        replay = op_position.get(producer) if producer is not None else None
        size_bytes = storage_table[value_table[index].storage].size_bytes
        free_step = storage_table[value_table[index].storage].free_step
        may_offload = (
            host_budget_bytes > 0
            and index in keepable
            and index not in outside
            and size_bytes >= smallest_offload_bytes
            and free_step <= step_info(graph).backward_step  # otherwise it stays here in any case
        )
        tensors.append(
            Tensor(
                index=position[index],
                value=index,
                size_bytes=size_bytes,
                producer=replay,
                may_keep=index in keepable,
                must_keep=(index in saved_uses and (replay is None or index in outside))
                or (index in crossing and index in keepable),
                free_step=free_step,
                uses=saved_uses.get(index, ()),
                consumers=tuple(consumers.get(index, ())),
                packing=packings.get(index) if may_offload and index in saved_uses else None,
            )
        )

    # Step 3: the ops.
    replay_ops = tuple(
        ReplayOp(
            index=op_position[op.step],
            step=op.step,
            name=op.name,
            module_fqn=op.module_fqn,
            cost_ns=round(op_seconds(op, device) * _NS_PER_S),
            reads=tuple(position[index] for index in op.reads if index in position),
            writes=tuple(position[index] for index in op.writes if index in position),
            scratch_bytes=op.workspace_bytes
            + sum(
                storage_table[value_table[index].storage].size_bytes
                for index in op.writes
                if index not in position and not _is_static(graph, index)
            ),
        )
        for op in needed
    )
    static = step_info(graph).static
    times_ns = _times_ns(graph, device)
    optimizer_s = optimizer_seconds(
        static.parameters_bytes,
        static.optimizer_bytes,
        static.gradients_bytes,
        device,
        dtype=step_info(graph).parameter_dtype,
    )
    return Problem(
        tensors=tuple(tensors),
        ops=replay_ops,
        base_bytes=_base_bytes(graph),
        backward_step=step_info(graph).backward_step,
        optimizer_peak_bytes=static.optimizer_peak_bytes,
        step_ns=sum(times_ns) + round(optimizer_s * _NS_PER_S),
        times_ns=times_ns,
        link=HostLink(
            bytes_per_s=device.host_link_bytes_per_s,
            launch_ns=round(device.launch_s * _NS_PER_S),
            budget_bytes=host_budget_bytes,
        )
        if host_budget_bytes
        else None,
        packs=tuple(
            Pack(
                step=saved.pack_step,
                unpack_step=min((unpack for unpack, _ in saved.uses), default=saved.unpack_step),
            )
            for saved in saved_tensors(graph)
            if saved.module_fqn != OUTSIDE
        ),
        settle_step=_settle_step(graph),
    )


def _settle_step(graph: OpGraph) -> int:
    """Views count: what happens before one happens in forward."""
    inside = (op.step for op in ops(graph) if op.phase is Phase.FORWARD and op.module_fqn != OUTSIDE)
    return 1 + max(inside, default=-1)


def _times_ns(graph: OpGraph, device: DeviceProfile) -> tuple[int, ...]:
    times = [0] * step_info(graph).steps
    for op in ops(graph):
        times[op.step] = round(op_seconds(op, device) * _NS_PER_S)
    return tuple(times)


def _packings(graph: OpGraph) -> dict[int, Packing]:
    found: dict[int, Packing] = {}
    inside = (saved for saved in saved_tensors(graph) if saved.module_fqn != OUTSIDE)
    for rank, saved in enumerate(inside):
        first = found.get(saved.value)
        if first is None:
            found[saved.value] = Packing(step=saved.pack_step, first_rank=rank, last_rank=rank)
        else:
            found[saved.value] = replace(first, last_rank=rank)
    return found


def _is_static(graph: OpGraph, value: int) -> bool:
    return storages(graph)[values(graph)[value].storage].kind in STATIC


def _uses_by_value(graph: OpGraph) -> dict[int, tuple[tuple[int, int], ...]]:
    uses: dict[int, tuple[tuple[int, int], ...]] = {}
    for saved in saved_tensors(graph):
        if saved.uses and not _is_static(graph, saved.value):
            uses[saved.value] = (*uses.get(saved.value, ()), *saved.uses)
    return uses


def _keepable_values(graph: OpGraph, saved_uses: dict[int, tuple[tuple[int, int], ...]]) -> set[int]:
    """Values that a hook sees and that are the last version of their storage, so that holding on is enough."""
    table = values(graph)
    last_version: dict[int, int] = {}
    for value in table:
        if value.producer is None or value.producer < step_info(graph).backward_step:
            last_version[value.storage] = max(last_version.get(value.storage, 0), value.version)
    return {
        value.index
        for value in table
        if (value.index in saved_uses or value.boundary)
        and not _is_static(graph, value.index)
        and value.version == last_version.get(value.storage, 0)
    }


def _replayable_ops(graph: OpGraph, forward: list[Op], keepable: set[int]) -> set[int]:
    """Steps of the ops whose result a replay reproduces bit for bit from what can still be there."""
    table = values(graph)
    written = _written_static(graph)
    replayable: set[int] = set()
    for op in forward:
        if any(_is_unnamed(graph, index) for index in op.reads):
            continue  # the runtime has no name by which to find it again
        state_free = op.name.rpartition(".")[0] in STATE_FREE_REPLAY
        if op.is_random or op.is_opaque or (op.mutates_state and not state_free):
            continue
        if all(
            (_is_static(graph, index) and (state_free or index not in written))
            or index in keepable
            or table[index].producer in replayable
            for index in op.reads
        ):
            replayable.add(op.step)
    return replayable


def _is_unnamed(graph: OpGraph, value: int) -> bool:
    storage = storages(graph)[values(graph)[value].storage]
    return storage.kind is StorageKind.CONSTANT and not storage.name


def _written_static(graph: OpGraph) -> set[int]:
    """Values of parameters, buffers, inputs and constants that forward writes to.

    A replay cannot rely on them: forward may overwrite them later, and so may the next forward before this backward.
    """
    written = {value.storage for value in values(graph) if value.version}
    return {value.index for value in values(graph) if _is_static(graph, value.index) and value.storage in written}


def _crossing_values(graph: OpGraph, forward: list[Op]) -> frozenset[int]:
    """Values that one FSDP unit reads and another makes: the parameters to make them again are sharded by then."""
    levels = block_levels(modules(graph))
    block_of = BlockIndex(levels[0] if levels else ())
    made_in = {index: block_of(op.module_fqn) for op in forward for index in op.writes}
    return frozenset(
        index for op in forward for index in op.reads if made_in.get(index, unit := block_of(op.module_fqn)) != unit
    )


def _needed_ops(
    graph: OpGraph,
    forward: list[Op],
    replayable: set[int],
    saved_uses: dict[int, tuple[tuple[int, int], ...]],
) -> list[Op]:
    """The replayable ops that some saved tensor could need, in forward order."""
    wanted = set(saved_uses)
    needed = []
    for op in reversed(forward):
        if op.step in replayable and not wanted.isdisjoint(op.writes):
            needed.append(op)
            wanted.update(op.reads)
    return needed[::-1]


def _base_bytes(graph: OpGraph) -> tuple[int, ...]:
    """Bytes alive at each step whatever the plan."""
    info = step_info(graph)
    return alive_bytes(
        natural_lives(graph),
        ops(graph),
        static=info.static,
        sharded_gradient_ratio=info.sharded_gradient_ratio,
        steps=info.steps,
    )


def natural_lives(graph: OpGraph) -> tuple[Storage, ...]:
    """Every storage as it lives whatever the plan; what backward never asks for stays to the end in all of them."""
    held = _never_unpacked(graph)
    steps = step_info(graph).steps
    return tuple(replace(s, free_step=steps) if s.index in held else s for s in storages(graph))


def alive_bytes(
    lives: Iterable[Storage],
    ran: Iterable[Op],
    *,
    static: StaticMemory,
    sharded_gradient_ratio: float,
    steps: int,
) -> tuple[int, ...]:
    """Bytes alive at each step: the storages' lives, the workspaces of ops, and static memory.

    Of static memory, gradients come as they are made.

    The optimizer step comes after the last of these and is not among them; see `StaticMemory`.

    Args:
        lives: storages; parameters and buffers among them are counted by `static` instead, and inputs and constants
            live from the first step on.
        ran: the ops.
        static: what stays through the step, gradients apart.
        sharded_gradient_ratio: see `StepInfo`; that part of each gradient stays when it is freed.
        steps: of the step.
    """
    change = [0] * (steps + 1)
    change[0] += static.resident_bytes
    for storage in lives:
        if storage.kind in _COUNTED_ELSEWHERE:
            continue
        start = 0 if storage.kind in (StorageKind.INPUT, StorageKind.CONSTANT) else storage.alloc_step
        end = min(storage.free_step, steps)
        change[min(start, steps)] += storage.size_bytes
        if storage.kind is StorageKind.GRADIENT and sharded_gradient_ratio:
            change[end] += round(storage.size_bytes * sharded_gradient_ratio)
        change[end] -= storage.size_bytes
    for op in ran:
        change[op.step] += op.workspace_bytes
        change[op.step + 1] -= op.workspace_bytes
    return tuple(accumulate(change))[:steps]


def _never_unpacked(graph: OpGraph) -> set[int]:
    """Storages of saved tensors that backward never asks for: every plan keeps them, and nothing releases them."""
    uses = _uses_by_value(graph)
    return {values(graph)[saved.value].storage for saved in saved_tensors(graph) if saved.value not in uses}
