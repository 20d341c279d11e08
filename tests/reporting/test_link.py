"""The timeline of the link, of steps small enough to follow on paper: an op takes 10 ms, a copy 20 ms."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("networkx")
pytest.importorskip("numpy")

from planner.graph import OpGraph, Phase, ops
from planner.link import Staging
from planner.problem import Problem, build_problem
from planner.reporting.link import LinkUse, summarize_link
from planner.simulation.liveness import simulate
from tests.steps import UNIT_DEVICE, Forward, step

MS = 1_000_000  # also in bytes: the link moves one a nanosecond
STAGING = Staging(out_bytes=20 * MS, back_bytes=20 * MS, lead=0)


def layered(layers: int, *, has_blocks: bool = True) -> tuple[OpGraph, dict[str, int]]:
    """A chain of layers that save their result, 20 MB each."""
    graph, index = step(
        [
            Forward(
                name="aten.mm.default",
                module=f"layers.{layer}" if has_blocks else "",
                sizes={f"h{layer}": 20 * MS},
                reads=(f"h{layer - 1}",) if layer else (),
                ns=10 * MS,
                saved=(f"h{layer}",),
            )
            for layer in range(layers)
        ],
        blocks=[f"layers.{layer}" for layer in range(layers)] if has_blocks else (),
        backward_ns=10 * MS,
    )
    if has_blocks:
        for place, op in enumerate(op for op in ops(graph) if op.phase is Phase.BACKWARD):
            graph.nodes[op.step]["op"] = replace(op, module_fqn=f"layers.{layers - 1 - place}")
    return graph, index


def problem_of(graph: OpGraph) -> Problem:
    return build_problem(graph, UNIT_DEVICE, host_budget_bytes=1_000 * MS, smallest_offload_bytes=1)


def link_of(graph: OpGraph, *, staging: Staging = STAGING) -> LinkUse:
    """With everything on the host."""
    problem = problem_of(graph)
    everything = {tensor.index for tensor in problem.tensors}
    timeline = simulate(problem, everything, offloaded=everything, staging=staging)
    found = summarize_link(timeline, problem, graph)
    assert found is not None
    return found


def test_every_copy_has_its_times_and_places() -> None:
    found = link_of(layered(3)[0])

    assert [
        ("layers.0", 20 * MS, (0.01, 0.03), (0.11, 0.13)),
        ("layers.1", 20 * MS, (0.03, 0.05), (0.09, 0.11)),
        ("layers.2", 20 * MS, (0.05, 0.07), (0.07, 0.09)),
    ] == [(copy.module_fqn, copy.size_bytes, copy.out_s, copy.back_s) for copy in found.copies]
    assert ["forward, aten.mm.default of layers.2", "end of forward", "end of forward"] == [
        copy.gone_at for copy in found.copies
    ]
    assert [f"backward, aten.backward.default of layers.{layer}" for layer in (1, 2, 2)] == [
        copy.back_at for copy in found.copies
    ]


def test_totals_say_how_busy_the_link_is_and_who_waits() -> None:
    found = link_of(layered(3)[0])

    assert (3, 60 * MS, 1_000 * MS) == (found.tensors, found.size_bytes, found.host_budget_bytes)
    assert found.host_bytes >= found.size_bytes
    assert (6 / 7, 6 / 7) == (found.forward_busy, found.backward_busy)
    assert (0.04, 0.04, 0.08) == (found.forward_stall_s, found.backward_stall_s, found.stall_s)
    assert (STAGING, 20 * MS, 20 * MS) == (found.staging, found.staged_out_bytes, found.staged_back_bytes)


def test_stretches_are_blocks_as_forward_and_backward_reach_them() -> None:
    found = link_of(layered(3)[0])

    assert [
        (Phase.FORWARD, "layers.0", 0.0, 0.01, 0, 0, 0.0, 0.0),
        (Phase.FORWARD, "layers.1", 0.01, 0.03, 20 * MS, 0, 1.0, 0.01),
        (Phase.FORWARD, "layers.2", 0.03, 0.07, 40 * MS, 0, 1.0, 0.03),
        (Phase.BACKWARD, "layers.2", 0.07, 0.1, 0, 30 * MS, 1.0, 0.02),
        (Phase.BACKWARD, "layers.1", 0.1, 0.12, 0, 20 * MS, 1.0, 0.01),
        (Phase.BACKWARD, "layers.0", 0.12, 0.14, 0, 10 * MS, 0.5, 0.01),
    ] == [
        (s.phase, s.modules, s.start_s, s.end_s, s.out_bytes, s.back_bytes, s.busy, s.stall_s) for s in found.stretches
    ]


def test_many_blocks_make_four_stretches_of_each_phase() -> None:
    names = [stretch.modules for stretch in link_of(layered(9)[0]).stretches]

    patterns = ["layers.{0..1}", "layers.{2..3}", "layers.{4..5}", "layers.{6..8}"]
    assert [*patterns, "layers.{7..8}", "layers.{5..6}", "layers.{3..4}", "layers.{0..2}"] == names


def test_what_is_beside_the_blocks_is_a_stretch_too() -> None:
    graph, _ = layered(4)
    for layer, now in ((3, 3), (3, 5)):  # the last layer becomes the loss
        assert f"layers.{layer}" == graph.nodes[now]["op"].module_fqn
        graph.nodes[now]["op"] = replace(graph.nodes[now]["op"], module_fqn="")

    found = link_of(graph)

    assert [
        *(("forward", name) for name in ("layers.0", "layers.1", "layers.2", "the rest")),
        *(("backward", name) for name in ("the rest", "layers.2", "layers.1", "layers.0")),
    ] == [(stretch.phase, stretch.modules) for stretch in found.stretches]


def test_a_model_without_blocks_is_cut_into_equal_parts() -> None:
    found = link_of(layered(10, has_blocks=False)[0])

    parts = [f"part {number} of 5" for number in range(1, 6)]
    assert [*parts, *parts] == [stretch.modules for stretch in found.stretches]
    assert [0.0, 0.05, 0.09, 0.13, 0.17, 0.21] == [stretch.start_s for stretch in found.stretches[:6]]


def test_a_plan_that_offloads_nothing_has_no_link() -> None:
    graph, _ = layered(3)
    problem = problem_of(graph)

    assert summarize_link(simulate(problem, {tensor.index for tensor in problem.tensors}), problem, graph) is None


def test_a_replay_that_reads_from_the_host_says_so() -> None:
    """The first layer's result comes back for the replay of the second's."""
    graph, index = layered(3)
    problem = problem_of(graph)
    by_value = {tensor.value: tensor.index for tensor in problem.tensors}
    first, last = by_value[index["h0"]], by_value[index["h2"]]

    found = summarize_link(simulate(problem, {first, last}, offloaded={first}, staging=STAGING), problem, graph)

    assert found is not None
    assert ["backward, replaying aten.mm.default of layers.1"] == [copy.back_at for copy in found.copies]
    assert [0.0, 0.02, 0.0] == [s.stall_s for s in found.stretches if s.phase is Phase.BACKWARD]


@given(
    st.lists(st.sampled_from(["save", "drop", "offload"]), min_size=2, max_size=8),
    st.sampled_from([20, 40, 1_000]),
    st.sampled_from([20, 60]),
    st.integers(0, 3),
)
def test_stretches_add_up_to_the_step(how: list[str], out: int, back: int, lead: int) -> None:
    graph, index = layered(len(how))
    problem = problem_of(graph)
    by_value = {tensor.value: tensor.index for tensor in problem.tensors}
    places = {name: {by_value[index[f"h{n}"]] for n, one in enumerate(how) if one == name} for name in how}
    offloaded = places.get("offload", set())
    staging = Staging(out_bytes=out * MS, back_bytes=back * MS, lead=lead)
    kept = offloaded | places.get("save", set())
    timeline = simulate(problem, kept, offloaded=offloaded, staging=staging)

    found = summarize_link(timeline, problem, graph)

    assert (found is None) == (not offloaded)
    if found is not None:
        stretches = found.stretches
        assert sum(stretch.out_bytes for stretch in stretches) == found.size_bytes
        assert sum(stretch.back_bytes for stretch in stretches) == found.size_bytes
        assert timeline.stall_ns == pytest.approx(sum(stretch.stall_s for stretch in stretches) * 1e9)
        assert [stretch.end_s for stretch in stretches[:-1]] == [stretch.start_s for stretch in stretches[1:]]
        assert (0.0, (sum(problem.times_ns) + timeline.added_ns) / 1e9) == (stretches[0].start_s, stretches[-1].end_s)
        assert all(0 <= stretch.busy <= 1 for stretch in stretches)
        assert found.staged_out_bytes <= staging.out_bytes
        assert found.staged_back_bytes <= staging.back_bytes
