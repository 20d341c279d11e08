"""A graph is checked where it enters, and survives a round trip through JSON."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.errors import GraphError
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
    check_graph,
    from_node_link,
    modules,
    ops,
    saved_tensors,
    step_info,
    storages,
    to_node_link,
    values,
    write_graph,
)


def op(step: int, reads: tuple[int, ...], writes: tuple[int, ...], phase: Phase = Phase.FORWARD) -> Op:
    return Op(
        step=step,
        name="aten.tanh.default",
        phase=phase,
        module_fqn="layers.0",
        module_call=0,
        reads=reads,
        writes=writes,
        read_bytes=16,
        write_bytes=16,
        flops=0,
        dtype="float32",
        shape=(2, 2),
        is_view=False,
        is_random=False,
        is_causal=False,
        mutates_state=False,
        is_opaque=False,
    )


def storage(index: int, kind: StorageKind, alloc_step: int, free_step: int) -> Storage:
    return Storage(index=index, size_bytes=16, kind=kind, name="", alloc_step=alloc_step, free_step=free_step)


def value(index: int, producer: int | None) -> Value:
    return Value(index=index, storage=index, version=0, producer=producer, boundary="")


# x -> tanh (step 0) -> tanh (step 1); the second result is saved, unpacked at 2 and used by backward at 3.
RECORDS: dict[str, Any] = {
    "ops": (op(0, (0,), (1,)), op(1, (1,), (2,)), op(3, (2,), (3,), Phase.BACKWARD)),
    "storages": (
        storage(0, StorageKind.INPUT, 0, 4),
        storage(1, StorageKind.ACTIVATION, 0, 2),
        storage(2, StorageKind.ACTIVATION, 1, 2),
        storage(3, StorageKind.GRADIENT, 3, 4),
    ),
    "values": (value(0, None), value(1, 0), value(2, 1), value(3, 3)),
    "saved_tensors": (
        SavedTensor(
            index=0,
            value=2,
            module_fqn="layers.0",
            module_call=0,
            ordinal=0,
            op="aten.tanh.default",
            shape=(2, 2),
            dtype="float32",
            pack_step=2,
            uses=((2, 4),),
        ),
    ),
    "modules": (ModuleInfo(fqn="", class_name="M", is_container=False, is_checkpoint_unit=False, parameters=4),),
    "step": StepInfo(
        model="M",
        torch_version="2.13.0",
        attention="flash",
        steps=4,
        backward_step=2,
        parameters=4,
        static=StaticMemory(
            parameters_bytes=16,
            gradients_bytes=16,
            optimizer_bytes=32,
            optimizer_transient_bytes=16,
            unsharded_bytes=0,
        ),
        tokens=2,
        notes=("sequences are assumed not packed",),
    ),
}


def damaged(table: str, position: int, **changes: Any) -> dict[str, Any]:
    rows = list(RECORDS[table])
    rows[position] = replace(rows[position], **changes)
    return {**RECORDS, table: tuple(rows)}


def test_an_edge_carries_the_values_that_flow_along_it() -> None:
    graph = build_graph(**RECORDS)

    assert [(0, 1, (1,)), (1, 3, (2,))] == [(u, v, data["values"]) for u, v, data in graph.edges(data=True)]


@pytest.mark.parametrize(
    ("records", "node", "message"),
    [
        (damaged("ops", 1, reads=(9,)), 1, "reads value 9, of which there are 4"),
        (damaged("ops", 1, writes=(9,)), 1, "refers to value 9 of 4"),
        (damaged("ops", 1, writes=(1,)), 1, "writes value 1, whose producer is 0"),
        (damaged("ops", 1, flops=-1), 1, "has a negative cost"),
        (damaged("ops", 0, read_bytes=-1), 0, "has a negative cost"),
        (damaged("values", 0, producer=2), 2, "has no op record"),
        (damaged("ops", 0, reads=(2,)), 1, "feeds step 0, which is not later"),
        (damaged("values", 2, storage=7), 1, "lies in unknown storage 7"),
        (damaged("storages", 1, free_step=-1), 0, "has a negative size or life"),
        (damaged("storages", 3, size_bytes=-16), 3, "has a negative size or life"),
        (damaged("saved_tensors", 0, uses=((2, 5),)), 1, "is used at 2..5"),
        (damaged("saved_tensors", 0, uses=((3, 3),)), 1, "is used at 3..3"),
        (damaged("saved_tensors", 0, uses=((1, 2),)), 1, "is used at 1..2"),
        (damaged("saved_tensors", 0, value=9), None, "saved tensor 0 of layers.0 refers to value 9 of 4"),
    ],
    ids=lambda item: item if isinstance(item, str) else None,
)
def test_damage_is_reported_with_the_node(records: dict[str, Any], node: int | None, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        build_graph(**records)

    assert node == caught.value.node
    assert message in caught.value.message


def _rename_step(graph: OpGraph) -> None:
    graph.nodes[1]["op"] = replace(graph.nodes[1]["op"], step=5)


def _remove_op(graph: OpGraph) -> None:
    del graph.nodes[3]["op"]


@pytest.mark.parametrize(
    ("damage", "node", "message"),
    [(_rename_step, 1, "carries the op of step 5"), (_remove_op, 3, "has no op record")],
)
def test_damage_to_the_nodes_themselves_is_reported(damage: Callable[[OpGraph], None], node: int, message: str) -> None:
    graph = build_graph(**RECORDS)
    damage(graph)

    with pytest.raises(GraphError) as caught:
        check_graph(graph)

    assert node == caught.value.node
    assert message in caught.value.message


def test_node_link_json_says_the_same(tmp_path: Path) -> None:
    graph = build_graph(**RECORDS)

    write_graph(graph, tmp_path / "graph.json")
    again = from_node_link(json.loads((tmp_path / "graph.json").read_text()))

    for table in (ops, storages, values, saved_tensors, modules, step_info):
        assert table(graph) == table(again)
    assert list(graph.edges(data=True)) == list(again.edges(data=True))
    assert to_node_link(graph) == to_node_link(again)


def test_static_memory_adds_up() -> None:
    static = step_info(build_graph(**RECORDS)).static

    assert (48, 64) == (static.resident_bytes, static.total_bytes)
