"""Op graphs of small steps from a short description, and a device where a FLOP or a copied byte takes a nanosecond."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.device import DeviceProfile
from planner.graph import (
    ModuleInfo,
    Op,
    OpGraph,
    Phase,
    SavedTensor,
    StaticMemory,
    StepInfo,
    Storage,
    StorageKind,
    Value,
    build_graph,
)

NOTHING = StaticMemory(
    parameters_bytes=0, gradients_bytes=0, optimizer_bytes=0, optimizer_transient_bytes=0, unsharded_bytes=0
)
UNIT_DEVICE = DeviceProfile(
    name="unit",
    memory_bytes=10**9,
    peak_flops_per_s={"float32": 1e9},
    memory_bytes_per_s=1e30,
    host_link_bytes_per_s=1e9,
    host_memory_bytes=10**9,
    matmul_efficiency=1.0,
    attention_efficiency=1.0,
    bandwidth_efficiency=1.0,
    launch_s=0.0,
    sources={},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """One forward op: its results are named, and read by name; every result in `saved` is packed once."""

    name: str
    module: str
    sizes: dict[str, int]
    reads: tuple[str, ...] = ()
    ns: int = 1
    saved: tuple[str, ...] = ()
    is_random: bool = False


def step(
    ops: Sequence[Forward],
    *,
    blocks: Sequence[str] = (),
    backward_ns: int = 1,
    also_saved: Sequence[tuple[str, str]] = (),
) -> tuple[OpGraph, dict[str, int]]:
    """The graph, and the index of each named value.

    Everything dies in forward after its last read, unless it is saved. Backward unpacks the saved values in the reverse
    order of their packing; each unpack is a step, and so is the op after it, which takes `backward_ns` and releases it.
    Every result is a module's output, so that it may be kept. `also_saved` lists (value, module) packed at the end.
    """
    index: dict[str, int] = {}
    storages: list[Storage] = []
    values: list[Value] = []
    records: list[Op] = []
    start = len(ops)
    packs = [(name, op.module, place + 1) for place, op in enumerate(ops) for name in op.saved]
    packs += [(name, module, start) for name, module in also_saved]
    order = list(dict.fromkeys(name for name, _, _ in reversed(packs)))
    last_read = {name: place for place, op in enumerate(ops) for name in op.reads}
    for place, op in enumerate(ops):
        for name, size_bytes in op.sizes.items():
            index[name] = len(values)
            storages.append(
                Storage(
                    index=len(values),
                    size_bytes=size_bytes,
                    kind=StorageKind.ACTIVATION,
                    name="",
                    alloc_step=place,
                    free_step=last_read.get(name, place) + 1,
                )
            )
            values.append(
                Value(
                    index=len(values),
                    storage=len(values),
                    version=0,
                    producer=place,
                    boundary=f"{op.module}:output:{len(values)}",
                )
            )
        records.append(_op(place, op.name, op.module, Phase.FORWARD, op.ns, op.is_random, index, op.reads, op.sizes))
    for place, name in enumerate(order):
        now = start + 2 * place + 1
        records.append(_op(now, "aten.backward.default", "", Phase.BACKWARD, backward_ns, False, index, (name,), ()))
    saved = [
        SavedTensor(
            index=place,
            value=index[name],
            module_fqn=module,
            module_call=0,
            ordinal=place,
            op=ops[0].name,
            shape=(1,),
            dtype="float32",
            pack_step=pack_step,
            uses=((start + 2 * order.index(name), start + 2 * order.index(name) + 2),),
        )
        for place, (name, module, pack_step) in enumerate(packs)
    ]
    containers = {fqn.rpartition(".")[0] for fqn in blocks}
    graph = build_graph(
        ops=records,
        storages=storages,
        values=values,
        saved_tensors=saved,
        modules=[
            *(_module(fqn, "ModuleList", is_container=True) for fqn in sorted(containers)),
            *(_module(fqn, "Block", is_container=False) for fqn in blocks),
        ],
        step=StepInfo(
            model="small",
            torch_version="2.13.0",
            attention="flash",
            steps=start + 2 * len(order) + 1,
            backward_step=start,
            parameters=1,
            static=NOTHING,
            tokens=1,
        ),
    )
    return graph, index


def _module(fqn: str, class_name: str, *, is_container: bool) -> ModuleInfo:
    return ModuleInfo(fqn=fqn, class_name=class_name, is_container=is_container, is_checkpoint_unit=False, parameters=1)


def _op(
    place: int,
    name: str,
    module: str,
    phase: Phase,
    ns: int,
    is_random: bool,
    index: dict[str, int],
    reads: Sequence[str],
    writes: Iterable[str],
) -> Op:
    return Op(
        step=place,
        name=name,
        phase=phase,
        module_fqn=module,
        module_call=0,
        reads=tuple(index[read] for read in reads),
        writes=tuple(index[name] for name in writes),
        read_bytes=0,
        write_bytes=0,
        flops=ns,
        dtype="float32",
        shape=(1,),
        is_view=False,
        is_random=is_random,
        is_causal=False,
        mutates_state=False,
        is_opaque=False,
    )
