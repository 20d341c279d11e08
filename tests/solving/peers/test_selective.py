"""Rules that name ops, on blocks small enough to list what stays."""

import pytest

pytest.importorskip("networkx")

from planner.problem import build_problem
from planner.solving.peers.records import Peer
from planner.solving.peers.selective import core_attention, every_second_matmul
from tests.steps import UNIT_DEVICE, Forward, step


def names(peer: Peer | None, index: dict[str, int], problem_values: list[int]) -> set[str]:
    assert peer is not None
    by_value = {value: name for name, value in index.items()}
    return {by_value[problem_values[tensor]] for tensor in peer.kept}


def block(number: int, reads: str) -> list[Forward]:
    """mm → gelu → mm → gelu → mm, everything saved."""
    module, found = f"layers.{number}", []
    for place, name in enumerate(("aten.mm.default", "aten.gelu.default") * 2 + ("aten.mm.default",)):
        result = f"{number}.{place}"
        found.append(
            Forward(
                name=name, module=module, sizes={result: 10}, reads=(reads,) if reads else (), ns=7, saved=(result,)
            )
        )
        reads = result
    return found


def test_every_second_product_of_a_block_is_replayed() -> None:
    graph, index = step([*block(0, ""), *block(1, "0.4")], blocks=("layers.0", "layers.1"))
    problem = build_problem(graph, UNIT_DEVICE)

    found = every_second_matmul(problem, graph)

    # The first and third products stay, counted anew in each block; the third of block 0 is also the next one's input.
    assert {"0.0", "0.4", "1.0", "1.4"} == names(found, index, [t.value for t in problem.tensors])
    assert found is not None
    assert 2 * 3 * 7 == found.timeline.recompute_ns
    assert 0 == found.timeline.stall_ns


def test_attention_is_saved_and_does_not_count_as_a_product() -> None:
    attention = Forward(
        name="aten._scaled_dot_product_flash_attention.default",
        module="layers.0.attention",
        sizes={"out": 10, "sums": 1},
        reads=("q",),
        saved=("out", "sums"),
    )
    graph, index = step(
        [
            Forward(name="aten.mm.default", module="layers.0.q", sizes={"q": 10}, saved=("q",)),
            attention,
            Forward(name="aten.mm.default", module="layers.0.o", sizes={"o": 10}, reads=("out",), saved=("o",)),
            Forward(name="aten.gelu.default", module="layers.1", sizes={"end": 10}, reads=("o",), saved=("end",)),
        ],
        blocks=("layers.0", "layers.1"),
    )
    problem = build_problem(graph, UNIT_DEVICE)

    found = every_second_matmul(problem, graph)

    # o is the second product, but the input of the next block.
    assert {"q", "out", "sums", "o"} == names(found, index, [t.value for t in problem.tensors])


def test_with_a_fused_kernel_core_attention_drops_only_what_the_kernel_alone_saves() -> None:
    graph, index = step(
        [
            Forward(name="aten.mm.default", module="layers.0.q", sizes={"q": 10}, ns=5, saved=("q",)),
            Forward(
                name="aten._scaled_dot_product_flash_attention.default",
                module="layers.0",
                sizes={"out": 10, "sums": 1},
                reads=("q",),
                ns=9,
                saved=("out", "sums"),
            ),
            Forward(name="aten.mm.default", module="layers.0.o", sizes={"o": 10}, reads=("out",), saved=("o",)),
        ],
        also_saved=[("out", "layers.0.o")],
    )
    problem = build_problem(graph, UNIT_DEVICE)

    found = core_attention(problem, graph)

    assert {"q", "out", "o"} == names(found, index, [t.value for t in problem.tensors])
    assert found is not None
    assert 9 == found.timeline.recompute_ns


def test_unfused_core_attention_runs_from_product_to_product() -> None:
    parts = [("aten.bmm.default", "scores"), ("aten.mul.Tensor", "scaled"), ("aten._softmax.default", "weights")]
    reads, ops = "q", [Forward(name="aten.mm.default", module="layers.0.q", sizes={"q": 10}, saved=("q",))]
    for name, result in [*parts, ("aten.bmm.default", "context"), ("aten.clone.default", "flat")]:
        ops.append(Forward(name=name, module="layers.0", sizes={result: 10}, reads=(reads,), ns=3, saved=(result,)))
        reads = result
    graph, index = step(ops)
    problem = build_problem(graph, UNIT_DEVICE)

    found = core_attention(problem, graph)

    assert {"q", "flat"} == names(found, index, [t.value for t in problem.tensors])
    assert found is not None
    assert 4 * 3 == found.timeline.recompute_ns


def test_without_blocks_or_attention_these_rules_have_nothing_to_say() -> None:
    graph, _ = step([Forward(name="aten.mm.default", module="", sizes={"a": 10}, saved=("a",))])
    problem = build_problem(graph, UNIT_DEVICE)

    assert every_second_matmul(problem, graph) is None
    assert core_attention(problem, graph) is None


def test_what_cannot_be_replayed_stays() -> None:
    graph, index = step(
        [
            Forward(name="aten.mm.default", module="layers.0", sizes={"a": 10}, saved=("a",)),
            Forward(
                name="aten.native_dropout.default",
                module="layers.0",
                sizes={"b": 10},
                reads=("a",),
                is_random=True,
            ),
            Forward(name="aten.gelu.default", module="layers.0", sizes={"c": 10}, reads=("b",), saved=("c",)),
            Forward(name="aten.gelu.default", module="layers.1", sizes={"d": 10}, reads=("c",), saved=("d",)),
        ],
        blocks=("layers.0", "layers.1"),
    )
    problem = build_problem(graph, UNIT_DEVICE)

    assert {"a", "b", "c"} == names(every_second_matmul(problem, graph), index, [t.value for t in problem.tensors])
