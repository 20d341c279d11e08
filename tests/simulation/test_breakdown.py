"""The timeline by kind: its sum against the timeline, and a step small enough to work out on paper."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("networkx")

from planner.graph import Op, OpGraph, StaticMemory, StorageKind, step_info
from planner.link import Staging
from planner.problem import Problem, build_problem
from planner.simulation.breakdown import Breakdown, breakdown
from planner.simulation.kinds import MemoryKind
from planner.simulation.liveness import Timeline, simulate
from planner.simulation.planned import Held
from tests.steps import UNIT_DEVICE, Forward, step

STATIC = StaticMemory(
    parameters_bytes=1000,
    gradients_bytes=200,
    optimizer_bytes=2000,
    optimizer_transient_bytes=5000,
    unsharded_bytes=0,
    buckets_bytes=300,
)


def chain(sizes: tuple[int, ...], *, saved: tuple[bool, ...] | None = None) -> OpGraph:
    """h0 → h1 → …, of these sizes, all of them saved unless said otherwise; with static memory."""
    graph, _ = step(
        [
            Forward(
                name="aten.mm.default",
                module=f"layers.{place}",
                sizes={f"h{place}": size},
                reads=(f"h{place - 1}",) if place else (),
                saved=(f"h{place}",) if saved is None or saved[place] else (),
            )
            for place, size in enumerate(sizes)
        ]
    )
    graph.graph["step"] = replace(step_info(graph), static=STATIC)
    return graph


def problem_of(graph: OpGraph) -> Problem:
    return build_problem(graph, UNIT_DEVICE, host_budget_bytes=10**6, smallest_offload_bytes=1)


def by_kind(
    graph: OpGraph, kept: set[int], offloaded: set[int], staging: Staging | None = None
) -> tuple[Timeline, Breakdown]:
    problem = problem_of(graph)
    timeline = simulate(problem, kept, offloaded=offloaded, staging=staging)
    held = Held(kept=frozenset(kept), offloaded=frozenset(offloaded))
    return timeline, breakdown(graph, problem, held, timeline)


def sums(found: Breakdown, timeline: Timeline) -> list[int]:
    return [sum(found.at(place).values()) for place in range(len(timeline.points))]


def test_every_byte_of_a_small_step_has_its_kind() -> None:
    # h0 and h2 are kept, h1 is dropped; backward unpacks h2 at step 3, h1 at 5, h0 at 7.
    timeline, found = by_kind(chain((10, 20, 40)), {0, 2}, set())

    at = [(point.step, point.replay) for point in timeline.points]
    assert [(0, None), (1, None), (2, None), (3, None), (4, None), (5, 1), (5, None)] == at[:7]
    assert (1000, 2000, 300) == tuple(
        found.by_kind[kind][0] for kind in (MemoryKind.PARAMETERS, MemoryKind.OPTIMIZER_STATE, MemoryKind.BUCKETS)
    )
    assert [10, 10, 50, 50, 50, 10, 10] == list(found.by_kind[MemoryKind.KEPT][:7])
    assert [0, 20, 20, 0, 0, 0, 0] == list(found.by_kind[MemoryKind.FORWARD][:7])
    assert [0, 0, 0, 0, 0, 20, 20] == list(found.by_kind[MemoryKind.REPLAYED][:7])
    assert MemoryKind.OFFLOADED not in found.by_kind
    assert MemoryKind.WORKSPACE not in found.by_kind
    assert sums(found, timeline) == list(timeline.live_bytes)


def test_what_leaves_counts_as_offloaded_from_the_moment_it_is_made() -> None:
    staging = Staging(out_bytes=0, back_bytes=0, lead=0)
    timeline, found = by_kind(chain((10, 20, 40)), {0, 1, 2}, {0}, staging)

    # Made at step 0, still read at 1, and asked for again at its unpack, which is step 7.
    assert [10, 10, 0, 0, 0, 0, 0, 10, 10] == list(found.by_kind[MemoryKind.OFFLOADED][:9])
    assert sums(found, timeline) == list(timeline.live_bytes)


def test_the_optimizer_step_is_made_of_what_is_static() -> None:
    _, found = by_kind(chain((10,)), {0}, set())

    assert STATIC.optimizer_peak_bytes == sum(found.optimizer.values())
    assert 5000 == found.optimizer[MemoryKind.OPTIMIZER_STEP]


def test_workspaces_gradients_and_gathered_parameters_have_kinds_of_their_own() -> None:
    graph = chain((10, 20))
    op: Op = graph.nodes[1]["op"]
    graph.nodes[1]["op"] = replace(op, workspace_bytes=7)
    first = graph.graph["storages"][0]
    more = [
        replace(first, index=2, kind=StorageKind.GRADIENT, size_bytes=80, alloc_step=3, free_step=5),
        replace(first, index=3, kind=StorageKind.COMMUNICATION, size_bytes=5, alloc_step=1, free_step=2),
        replace(first, index=4, kind=StorageKind.ACTIVATION, size_bytes=3, alloc_step=3, free_step=4),
        replace(first, index=5, kind=StorageKind.INPUT, size_bytes=9, alloc_step=0, free_step=6),
    ]
    graph.graph["storages"] = (*graph.graph["storages"], *more)
    graph.graph["step"] = replace(step_info(graph), sharded_gradient_ratio=0.25)

    timeline, found = by_kind(graph, {0, 1}, set())

    assert [0, 0, 0, 80, 80, 20] == list(found.by_kind[MemoryKind.GRADIENTS][:6])
    assert [0, 5, 0] == list(found.by_kind[MemoryKind.SHARDING][:3])
    assert [0, 0, 0, 3, 0] == list(found.by_kind[MemoryKind.BACKWARD][:5])
    assert [0, 7, 0] == list(found.by_kind[MemoryKind.WORKSPACE][:3])
    assert [9] * 6 == list(found.by_kind[MemoryKind.INPUTS][:6])
    assert sums(found, timeline) == list(timeline.live_bytes)


@settings(max_examples=200)
@given(st.data())
def test_at_every_moment_the_kinds_add_up_to_the_timeline(data: st.DataObject) -> None:
    sizes = tuple(data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=6)))
    saved = tuple(data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes))))
    graph = chain(sizes, saved=saved)
    problem = problem_of(graph)
    kept = set(problem.must_keep) | {t.index for t in problem.choices if data.draw(st.booleans())}
    movable = [t.index for t in problem.tensors if t.index in kept and t.packing is not None]
    offloaded = {index for index in movable if data.draw(st.booleans())}
    staging = Staging(
        out_bytes=data.draw(st.integers(0, 100)),
        back_bytes=data.draw(st.integers(0, 100)),
        lead=data.draw(st.integers(0, 3)),
    )

    timeline, found = by_kind(graph, kept, offloaded, staging)

    assert sums(found, timeline) == list(timeline.live_bytes)
    assert all(size >= 0 for sizes in found.by_kind.values() for size in sizes)
