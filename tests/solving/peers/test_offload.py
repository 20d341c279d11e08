"""Rules that send tensors to the host, on a link that moves a byte in a nanosecond."""

import pytest

pytest.importorskip("ortools")

from planner.problem import build_problem
from planner.solving.baselines import baselines
from planner.solving.peers.offload import offload_all, offload_block_inputs
from tests.steps import UNIT_DEVICE, Forward, step


def chain_of(count: int, *, size: int, ns: int, per_block: int = 1) -> list[Forward]:
    return [
        Forward(
            name="aten.gelu.default",
            module=f"layers.{place // per_block}",
            sizes={str(place): size},
            reads=(str(place - 1),) if place else (),
            ns=ns,
            saved=(str(place),),
        )
        for place in range(count)
    ]


def test_a_link_as_fast_as_the_computation_hides_all_but_the_turn() -> None:
    graph, _ = step(chain_of(2, size=2000, ns=2000), backward_ns=2000)
    problem = build_problem(graph, UNIT_DEVICE, host_budget_bytes=10**9)

    found = offload_all(problem, graph)

    assert found is not None
    # 0 leaves at 2000..4000, 1 at 4000..6000. 1 is back at 8000, needed at 4000; 0 at 10000, when it is needed.
    assert 4000 == found.timeline.stall_ns
    assert 0 == found.timeline.recompute_ns
    assert frozenset({0, 1}) == found.offloaded
    assert 4000 == found.overhead_ns


def test_memory_is_free_between_the_copies() -> None:
    graph, _ = step(chain_of(4, size=2000, ns=4000), backward_ns=4000)
    problem = build_problem(graph, UNIT_DEVICE, host_budget_bytes=10**9)

    found = offload_all(problem, graph, staging=1)

    assert found is not None
    # Twice as fast as the computation, the link takes each away while the next is made: two are there at a time.
    assert 2 * 2000 == found.timeline.peak_bytes
    # Only the last, needed at once, is late: out 16000..18000 and back until 20000.
    assert 4000 == found.timeline.stall_ns


def test_with_much_staging_a_slow_link_frees_little() -> None:
    graph, _ = step(chain_of(4, size=2000, ns=100), backward_ns=100)
    problem = build_problem(graph, UNIT_DEVICE, host_budget_bytes=10**9)

    free, held = (offload_all(problem, graph, staging=staging) for staging in (16, 1))

    assert free is not None
    assert held is not None
    assert held.timeline.peak_bytes < free.timeline.peak_bytes
    assert 4 * 2000 == free.timeline.peak_bytes


def test_nothing_leaves_before_it_is_made_whatever_else_autograd_packs() -> None:
    ops = [
        Forward(
            name="aten.gelu.default",
            module=f"layers.{place}",
            sizes={f"{place}": 2000, f"small {place}": 8},
            reads=(f"{place - 1}",) if place else (),
            ns=100,
            saved=(f"small {place}", f"{place}"),
        )
        for place in range(6)
    ]
    graph, index = step(ops)
    problem = build_problem(graph, UNIT_DEVICE, host_budget_bytes=10**9)

    found = offload_all(problem, graph)

    assert found is not None
    made = {index[f"{place}"]: place for place in range(6)}
    copies = found.timeline.traffic.copies
    assert 6 == len(copies)
    assert all(copy.gone_step > made[problem.tensors[copy.tensor].value] for copy in copies)


def test_small_tensors_and_those_saved_outside_the_model_stay() -> None:
    ops = [
        Forward(name="aten.gelu.default", module="", sizes={"small": 1000}, saved=("small",)),
        Forward(name="aten.gelu.default", module="(outside)", sizes={"loss": 5000}, reads=("small",), saved=("loss",)),
    ]
    graph, _ = step(ops)
    problem = build_problem(graph, UNIT_DEVICE, host_budget_bytes=10**9)

    assert offload_all(problem, graph) is None


def test_block_inputs_leave_and_blocks_are_replayed_as_a_whole() -> None:
    graph, index = step(chain_of(6, size=2000, ns=3000, per_block=2), blocks=[f"layers.{i}" for i in range(3)])
    problem = build_problem(graph, UNIT_DEVICE, host_budget_bytes=10**9)

    found = offload_block_inputs(problem, graph)

    assert found is not None
    inputs = {index["1"], index["3"]}
    assert inputs == {problem.tensors[tensor].value for tensor in found.offloaded}
    every = next(baseline for baseline in baselines(problem, graph) if baseline.name == "every block")
    assert every.timeline.recompute_ns == found.timeline.recompute_ns
    assert every.timeline.peak_bytes >= found.timeline.peak_bytes
    # The last block's input left at 12000..14000, is needed at 18000, and may only come back from then on.
    assert 2000 == found.timeline.stall_ns


def test_without_blocks_no_block_input_leaves() -> None:
    graph, _ = step(chain_of(2, size=2000, ns=1))

    assert offload_block_inputs(build_problem(graph, UNIT_DEVICE, host_budget_bytes=10**9), graph) is None
