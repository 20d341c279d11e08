"""The op graph of one training step: the record every later stage reads.

A graph is a `networkx.DiGraph`. Its nodes are step indices carrying an `op` attribute (`Op`), its edges carry
`values`, the indices of the values that flow along them. `graph.graph` holds the tables that nodes refer to:
`storages`, `values`, `saved_tensors`, `modules` (tuples of the records below) and `step` (`StepInfo`).

*Steps* number the events of one training step from 0: every dispatched op, and every unpack of a saved
tensor. A storage is live during step j exactly when `alloc_step <= j < free_step`. `free_step` is the
*natural* end of life: when the storage would die if autograd kept nothing. What autograd keeps is described
by `SavedTensor.uses`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx

from planner.errors import GraphError

if TYPE_CHECKING:
    OpGraph = nx.DiGraph[int]
else:
    OpGraph = nx.DiGraph


# Module path of what happens outside the model's forward, such as a loss function called on its output.
OUTSIDE = "(outside)"


# How the names of FSDP's buffers end, after the name of their unit; see planner/tracing/sharding.py.
GATHERED = " parameters"
ALL_GATHER = " all-gather"
REDUCE_SCATTER = " reduce-scatter"
ROOT_UNIT = "root"  # the unit of what lies in no block


class Phase(StrEnum):
    """The part of the step an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"


class StorageKind(StrEnum):
    """Why a storage exists. Only activations can be saved, recomputed or offloaded."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    CONSTANT = "constant"  # made before the step and referred to by the model, such as a cached table
    ACTIVATION = "activation"
    GRADIENT = "gradient"  # ends up as the .grad of a parameter
    COMMUNICATION = "communication"  # gathered parameters, and buffers of the collectives of sharded training


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The memory behind one or more tensors."""

    index: int
    size_bytes: int
    kind: StorageKind
    name: str  # parameter, buffer or input name; empty for activations
    alloc_step: int
    free_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The content of a storage between two writes: version 0 is what its first op wrote."""

    index: int
    storage: int
    version: int
    producer: int | None  # step of the op that wrote it; None for parameters, buffers, inputs, constants
    boundary: str  # "layers.3:input:0" when it is a module's input or output, else empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One dispatched operator call. `reads` and `writes` are indices into the value table."""

    step: int
    name: str
    phase: Phase
    module_fqn: str
    module_call: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    read_bytes: int
    write_bytes: int
    flops: int
    dtype: str
    shape: tuple[int, ...]  # of the first output
    is_view: bool
    is_random: bool
    is_causal: bool  # attention that skips the masked half: does half of the FLOPs torch's formula states
    mutates_state: bool  # writes to a parameter, buffer, input or constant
    is_opaque: bool  # its output is filled by something dispatch does not see
    workspace_bytes: int = 0  # what its kernel holds for itself while it runs, beside what it reads and writes


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """One tensor autograd packed in forward. Identity: module_fqn, module_call, ordinal (stable across
    runs).
    """

    index: int
    value: int
    module_fqn: str
    module_call: int
    ordinal: int  # among all tensors packed during that call of that module, submodules apart
    op: str  # name of the op that produced the value; empty for parameters, buffers, inputs, constants
    shape: tuple[int, ...]
    dtype: str
    pack_step: int  # packed before this step runs, after the one before it has
    uses: tuple[tuple[int, int], ...]  # (unpack_step, release_step): held for unpack_step <= step < release_step
    unpack_step: int | None = None  # unpacked first before this step runs, or in it; also of a parameter, without uses


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInfo:
    """One module of the model: enough to find repeated blocks without the model."""

    fqn: str
    class_name: str
    is_container: bool  # ModuleList or Sequential
    is_checkpoint_unit: bool  # the library itself checkpoints at this module
    parameters: int  # elements, own and below


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticMemory:
    """Bytes per device that do not depend on the plan, by part.

    Gradients grow through backward; `gradients_bytes` is their sum at its end. `unsharded_bytes` is what FSDP
    gathers at once, the root unit and two blocks: a part of the total, while the timeline follows each buffer.
    `buckets_bytes` is what DDP copies gradients into to reduce them.
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    optimizer_transient_bytes: int  # temporaries of the optimizer step itself
    unsharded_bytes: int
    buckets_bytes: int = 0

    @property
    def resident_bytes(self) -> int:
        """Bytes held through the whole step: parameters, optimizer state, buckets."""
        return self.parameters_bytes + self.optimizer_bytes + self.buckets_bytes

    @property
    def total_bytes(self) -> int:
        """Resident bytes, all gradients, and gathered parameters."""
        return self.resident_bytes + self.gradients_bytes + self.unsharded_bytes

    @property
    def optimizer_peak_bytes(self) -> int:
        """Bytes alive during the optimizer step: activations are gone, and nothing is gathered."""
        return self.resident_bytes + self.gradients_bytes + self.optimizer_transient_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    """Facts about the whole step."""

    model: str
    torch_version: str
    attention: str
    steps: int
    backward_step: int  # first step of backward
    parameters: int  # elements
    static: StaticMemory
    tokens: int  # samples × sequence length, or samples
    notes: tuple[str, ...] = ()  # assumptions made while tracing, for the reader
    # With FSDP, bytes of the sharded gradient that remains per byte of the traced one, which is freed once
    # reduced.
    sharded_gradient_ratio: float = 0.0
    micro_batch: int | None = None  # samples per device; None for a live module, whose arguments do not say
    parameter_dtype: str = ""  # of most of the optimizer's work


def op_in_words(op: Op) -> str:
    """The op and the module it belongs to, for a person."""
    return f"{op.name} of {op.module_fqn or 'the model'}"


def step_in_words(graph: OpGraph, step: int) -> str:
    """Where in the model a step is, for a person."""
    # An unpack step has no op; what follows it is the backward op that asked for the tensor.
    record = next(graph.nodes[later]["op"] for later in range(step, step_info(graph).steps) if later in graph.nodes)
    return f"{record.phase}, {op_in_words(record)}"


def ops(graph: OpGraph) -> tuple[Op, ...]:
    """All ops in step order."""
    return tuple(graph.nodes[n]["op"] for n in sorted(graph.nodes))


def storages(graph: OpGraph) -> tuple[Storage, ...]:
    """The storage table, by index."""
    return graph.graph["storages"]  # type: ignore[no-any-return]


def values(graph: OpGraph) -> tuple[Value, ...]:
    """The value table, by index."""
    return graph.graph["values"]  # type: ignore[no-any-return]


def saved_tensors(graph: OpGraph) -> tuple[SavedTensor, ...]:
    """The saved tensors in the order autograd packed them."""
    return graph.graph["saved_tensors"]  # type: ignore[no-any-return]


def modules(graph: OpGraph) -> tuple[ModuleInfo, ...]:
    """The modules in registration order, the root first."""
    return graph.graph["modules"]  # type: ignore[no-any-return]


def step_info(graph: OpGraph) -> StepInfo:
    """Facts about the whole step."""
    return graph.graph["step"]  # type: ignore[no-any-return]


def build_graph(
    *,
    ops: Iterable[Op],
    storages: Iterable[Storage],
    values: Iterable[Value],
    saved_tensors: Iterable[SavedTensor],
    modules: Iterable[ModuleInfo],
    step: StepInfo,
) -> OpGraph:
    """The checked graph of the given records, with an edge from each op to every op that reads what it wrote.

    Raises:
        GraphError: a record refers to something that does not exist or comes later; names the op.
    """
    graph: OpGraph = nx.DiGraph(
        storages=tuple(storages),
        values=tuple(values),
        saved_tensors=tuple(saved_tensors),
        modules=tuple(modules),
        step=step,
    )
    table: tuple[Value, ...] = graph.graph["values"]
    ordered = tuple(ops)
    graph.add_nodes_from((op.step, {"op": op}) for op in ordered)
    for op in ordered:
        flows: dict[int, list[int]] = {}
        for index in op.reads:
            if not 0 <= index < len(table):
                raise GraphError(op.step, f"reads value {index}, of which there are {len(table)}")
            producer = table[index].producer
            if producer is not None and producer != op.step:
                flows.setdefault(producer, []).append(index)
        for producer, carried in flows.items():
            graph.add_edge(producer, op.step, values=tuple(carried))
    check_graph(graph)
    return graph


def check_graph(graph: OpGraph) -> None:
    """Check what later stages rely on.

    Raises:
        GraphError: names the first offending node and what is wrong with it.
    """
    for node, data in graph.nodes(data=True):
        if "op" not in data:
            raise GraphError(node, "has no op record: an edge refers to a step that was never recorded")
        _check_op(node, data["op"], values(graph))
    for source, target in graph.edges:
        if source >= target:
            raise GraphError(source, f"feeds step {target}, which is not later")
    for value in values(graph):
        if not 0 <= value.storage < len(storages(graph)):
            raise GraphError(value.producer, f"value {value.index} lies in unknown storage {value.storage}")
    for storage in storages(graph):
        if storage.size_bytes < 0 or storage.free_step < storage.alloc_step:
            raise GraphError(storage.alloc_step, f"storage {storage.index} has a negative size or life")
    for saved in saved_tensors(graph):
        _check_saved(saved, values(graph), step_info(graph).steps)


def _check_op(node: int, op: Op, table: tuple[Value, ...]) -> None:
    if op.step != node:
        raise GraphError(node, f"carries the op of step {op.step}")
    if min(op.read_bytes, op.write_bytes, op.flops) < 0:
        raise GraphError(node, f"{op.name} has a negative cost")
    for index in (*op.reads, *op.writes):
        if not 0 <= index < len(table):
            raise GraphError(node, f"{op.name} refers to value {index} of {len(table)}")
    for index in op.writes:
        if table[index].producer != node:
            raise GraphError(node, f"{op.name} writes value {index}, whose producer is {table[index].producer}")


def _check_saved(saved: SavedTensor, table: tuple[Value, ...], steps: int) -> None:
    what = f"saved tensor {saved.index} of {saved.module_fqn}"
    if not 0 <= saved.value < len(table):
        raise GraphError(None, f"{what} refers to value {saved.value} of {len(table)}")
    producer = table[saved.value].producer
    for unpack, release in saved.uses:
        if not unpack < release <= steps or (producer is not None and unpack <= producer):
            raise GraphError(producer, f"{what} is used at {unpack}..{release}")


_TABLES: Mapping[str, Any] = {
    "storages": Storage,
    "values": Value,
    "saved_tensors": SavedTensor,
    "modules": ModuleInfo,
}


def to_node_link(graph: OpGraph) -> dict[str, Any]:
    """The graph as networkx node-link data made of plain JSON types."""
    plain: OpGraph = nx.DiGraph()
    plain.graph.update({name: [asdict(row) for row in graph.graph[name]] for name in _TABLES})
    plain.graph["step"] = asdict(step_info(graph))
    plain.add_nodes_from((node, asdict(data["op"])) for node, data in graph.nodes(data=True))
    plain.add_edges_from((u, v, {"values": list(data["values"])}) for u, v, data in graph.edges(data=True))
    return nx.node_link_data(plain, edges="edges")


def from_node_link(data: Mapping[str, Any]) -> OpGraph:
    """The checked graph that `to_node_link` wrote, possibly after a round trip through JSON."""
    attributes = data["graph"]
    step = dict(attributes["step"])
    step["static"] = StaticMemory(**step["static"])
    step["notes"] = tuple(step["notes"])
    return build_graph(
        ops=(_record(Op, {k: v for k, v in node.items() if k != "id"}) for node in data["nodes"]),
        step=StepInfo(**step),
        **{name: [_record(cls, row) for row in attributes[name]] for name, cls in _TABLES.items()},
    )


def write_graph(graph: OpGraph, path: Path) -> None:
    """Write the graph as node-link JSON."""
    path.write_text(json.dumps(to_node_link(graph), separators=(",", ":")))


def _record(cls: Any, row: Mapping[str, Any]) -> Any:
    enums = {"phase": Phase, "kind": StorageKind}
    converted = {
        name: enums[name](value) if name in enums else _tuple(value)
        for name, value in row.items()
        if name in {field.name for field in fields(cls)}
    }
    return cls(**converted)


def _tuple(value: Any) -> Any:
    return tuple(_tuple(item) for item in value) if isinstance(value, list | tuple) else value
