"""The blocks of a step add up to what the simulation counts, and replay to figures that can be worked out on paper."""

import random
from collections.abc import Iterator, Set
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor, nn

import planner
from planner.device import load_device
from planner.graph import OpGraph, StorageKind, saved_tensors, step_info, storages
from planner.problem import Problem, build_problem
from planner.simulation.allocations import (
    Life,
    StepAllocations,
    Stream,
    apportioned,
    planned_step,
    saving_step,
)
from planner.simulation.liveness import Timeline, simulate
from planner.simulation.reserved import Limited, Replay, replay, reserved
from planner.solving.baselines import baselines
from planner.spec import from_mapping
from planner.tracing import prepare_module
from tests.steps import Forward, step

MIB = 2**20
H100 = load_device("h100-80gb")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


@pytest.fixture(scope="module")
def plain() -> OpGraph:
    """Four blocks, and a batch norm, which has buffers."""
    model = nn.Sequential(*(Block(32) for _ in range(4)), nn.BatchNorm1d(32))
    return planner.trace(prepare_module(model, (torch.randn(512, 32),), optimizer="adamw"))


@pytest.fixture(scope="module")
def sharded() -> OpGraph:
    """Two blocks of Llama on four devices."""
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4}
    spec = {
        "model": {"transformers": "LlamaForCausalLM", "config": {**sizes, "vocab_size": 96}},
        "batch": {"micro_batch": 8, "sequence_length": 64},
        "precision": {"parameters": "float32", "compute": "bfloat16"},
        "parallel": {"fsdp": 4},
    }
    return planner.trace(planner.prepare(from_mapping(spec)))


def plans(graph: OpGraph, problem: Problem) -> Iterator[tuple[Set[int], Timeline]]:
    """Those made by hand, and some by chance, which replay and offload."""
    for baseline in baselines(problem, graph):
        yield baseline.kept, baseline.timeline
    draw = random.Random(0)
    movable = [tensor.index for tensor in problem.tensors if tensor.packing is not None]
    for _ in range(20):
        chosen = {tensor.index for tensor in problem.choices if draw.random() < 0.6}
        kept = problem.must_keep | chosen
        away = frozenset(index for index in movable if index in kept and draw.random() < 0.5)
        try:
            yield kept, simulate(problem, kept, offloaded=away)
        except ValueError:
            continue


def alive(found: StepAllocations) -> list[int]:
    change = [0] * (found.end + 2)
    for life in found.lives:
        change[life.start] += life.size_bytes
        change[life.stop] -= life.size_bytes
    return list(accumulate(change))[: found.end]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["plain", "sharded"])
def test_at_every_moment_the_blocks_add_up_to_what_is_alive(name: str, request: pytest.FixtureRequest) -> None:
    graph = request.getfixturevalue(name)
    problem = build_problem(graph, H100, host_budget_bytes=10**12, smallest_offload_bytes=1)
    resident_bytes = step_info(graph).static.resident_bytes
    replays = offloads = 0
    for kept, timeline in plans(graph, problem):
        found = planned_step(graph, problem, kept, timeline)

        assert list(timeline.live_bytes) == [resident_bytes + size_bytes for size_bytes in alive(found)]
        assert resident_bytes == sum(found.resident_bytes) + sum(found.state_bytes)
        replays += timeline.replays
        offloads += len(timeline.traffic.copies)
    assert min(replays, offloads) > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["plain", "sharded"])
def test_keeping_all_that_is_saved_is_the_plan_without_checkpointing(name: str, request: pytest.FixtureRequest) -> None:
    graph = request.getfixturevalue(name)
    problem = build_problem(graph, H100)
    nothing = baselines(problem, graph)[0]

    assert planned_step(graph, problem, nothing.kept, nothing.timeline) == saving_step(graph)


def test_every_parameter_has_its_state_and_gradients_outlive_backward(plain: OpGraph) -> None:
    found = saving_step(plain)
    sizes = [s.size_bytes for s in storages(plain) if s.kind is StorageKind.PARAMETER]
    buffers = [s.size_bytes for s in storages(plain) if s.kind is StorageKind.BUFFER]

    assert (*sizes, *buffers) == found.resident_bytes
    assert tuple(size for size in sizes for _ in range(2)) == found.state_bytes  # Adam's two moments
    assert tuple(sizes) == found.transient_bytes
    assert sorted(sizes) == sorted(life.size_bytes for life in found.lives if life.stop == found.end + 1)
    assert {Stream.COMPUTE} == {life.stream for life in found.lives}


@pytest.mark.filterwarnings("ignore")
def test_fsdp_gathers_and_reduces_on_streams_of_its_own(sharded: OpGraph) -> None:
    found = saving_step(sharded)
    by_stream = {stream: [life for life in found.lives if life.stream is stream] for stream in Stream}

    # Two blocks and the root reduce once each; the shards stay for the optimizer.
    assert 3 == len(by_stream[Stream.REDUCE_SCATTER])
    assert {found.end + 1} == {life.stop for life in by_stream[Stream.REDUCE_SCATTER]}
    assert step_info(sharded).static.gradients_bytes == sum(
        life.size_bytes for life in by_stream[Stream.REDUCE_SCATTER]
    )
    # The root gathers once, each block in forward and in backward.
    assert 5 == len(by_stream[Stream.ALL_GATHER])
    # Embedding, head and norm of the root: 96 × 32 twice and 32 elements, in bfloat16, from first to last.
    whole = [life.size_bytes for life in found.lives if (life.start, life.stop) == (0, found.end)]
    assert (1, 2) == (whole.count(2 * 32), whole.count(2 * 96 * 32))


def test_ddp_fills_buckets_of_25_mib_from_the_last_gradient_on() -> None:
    with torch.device("meta"):
        widths = (1024, 2048, 1024, 2048, 512, 512)
        model = nn.Sequential(*(nn.Linear(one, other, bias=False) for one, other in pairwise(widths)))
    made = prepare_module(model, (torch.empty(1, 1024, device="meta"),))
    found = saving_step(planner.trace(replace(made, settings=replace(made.settings, ddp=2))))

    # Parameters, and buckets: the first is full at 1 MiB, the second at 25, of which it misses 5 before the last.
    assert [size_mib * MIB for size_mib in (8, 8, 8, 4, 1, 1, 28)] == list(found.resident_bytes)


@pytest.mark.parametrize(
    ("total", "weights", "expected"),
    [
        (10, [1, 1], (5, 5)),
        (10, [1, 1, 1], (3, 3, 4)),
        (7, [0, 3], (0, 7)),
        (7, [], (7,)),
        (7, [0, 0], (7,)),
        (0, [], ()),
        (0, [2, 1], (0, 0)),
    ],
)
def test_a_sum_is_shared_out_whole(total: int, weights: list[int], expected: tuple[int, ...]) -> None:
    assert expected == apportioned(total, weights)


# -- replays, on paper ---


def run(*lives: Life, backward: int = 1, end: int = 4, **sizes: tuple[int, ...]) -> StepAllocations:
    return StepAllocations(
        resident_bytes=sizes.get("resident", ()),
        lives=lives,
        backward=backward,
        end=end,
        state_bytes=sizes.get("states", ()),
        transient_bytes=sizes.get("transients", ()),
    )


def life(size_mib: int, start: int, stop: int, stream: Stream = Stream.COMPUTE) -> Life:
    return Life(size_bytes=size_mib * MIB, start=start, stop=stop, stream=stream)


def test_what_is_freed_at_a_moment_serves_what_is_made_then() -> None:
    found = replay(run(life(40, 0, 2), life(40, 2, 4)), expandable=False)

    assert Replay(reserved_bytes=40 * MIB, allocated_bytes=40 * MIB, steps=2, is_settled=True) == found


def test_streams_hold_what_is_free_in_the_other() -> None:
    found = replay(run(life(40, 0, 2), life(40, 2, 4, Stream.ALL_GATHER)), expandable=True)

    assert (80 * MIB, 40 * MIB) == (found.reserved_bytes, found.allocated_bytes)
    assert 40 * MIB == found.fragmentation_bytes


def test_state_of_the_optimizer_takes_what_the_first_step_has_left() -> None:
    # Forward's 40 MiB are free when state of 24 MiB is made, which takes them: 16 are left, too few for the next step.
    found = replay(run(life(40, 0, 2), states=(24 * MIB,)), expandable=False)

    assert Replay(reserved_bytes=80 * MIB, allocated_bytes=64 * MIB, steps=3, is_settled=True) == found
    # In one range that grows, 16 MiB are there and 24 more are mapped, in pages: 20 MiB and 20 MiB.
    assert 80 * MIB == replay(run(life(40, 0, 2), states=(24 * MIB,)), expandable=True).reserved_bytes


def test_a_first_step_that_reserves_nothing_is_not_the_last() -> None:
    # The parameter leaves 18 MiB of its segment, for forward's 9.5 and then for state of 9. Of that, 9 are left.
    forward = Life(size_bytes=9 * MIB + MIB // 2, start=0, stop=2)
    found = replay(run(forward, resident=(2 * MIB,), states=(9 * MIB,)), expandable=False)

    assert (40 * MIB, 3) == (found.reserved_bytes, found.steps)


def test_temporaries_of_the_optimizer_come_with_gradients_and_without_activations() -> None:
    gradient = life(40, 2, 5)
    found = replay(
        run(gradient, life(60, 0, 4), transients=(60 * MIB, 60 * MIB), resident=(20 * MIB,)), expandable=False
    )

    # Resident 20, gradient 40, activations 60 which serve one temporary, and the other.
    assert (180 * MIB, 180 * MIB) == (found.reserved_bytes, found.allocated_bytes)


def test_workspaces_are_made_once_for_each_thread() -> None:
    bare, worked = (replay(run(life(40, 0, 2)), expandable=False, workspace_bytes=size) for size in (0, 32 * MIB))

    assert bare.reserved_bytes + 64 * MIB == worked.reserved_bytes


def test_the_interval_spans_both_kinds_of_segments() -> None:
    found = reserved(run(life(40, 0, 2), life(30, 2, 4), life(30, 2, 4)))

    # Default: 40, 30 beside it and Hopper's workspaces of 32 MiB. In one range, there is a workspace of 8.125 MiB, then
    # 40, and in the last of three pages the other workspace, which leaves 3.75 MiB behind it: 30 of the 40 are taken
    # again, and 30 more need two pages.
    assert ((40 + 30 + 64) * MIB, 100 * MIB) == (found.default.reserved_bytes, found.expandable.reserved_bytes)
    assert (100 * MIB, 134 * MIB) == (found.interval.low_bytes, found.interval.high_bytes)


def test_in_limited_memory_unused_segments_are_given_back_or_it_runs_out() -> None:
    # 64 or 16.25 MiB of workspaces; two streams of 40 MiB, which do not need them at the same time.
    made = run(life(40, 0, 2), life(40, 2, 4, Stream.ALL_GATHER))
    enough, tight, little = (reserved(made, limit_bytes=size * MIB).limited for size in (200, 105, 50))

    assert Limited(limit_bytes=200 * MIB, default_retries=0, expandable_retries=0) == enough
    assert tight is not None
    assert tight.default_retries is not None
    assert tight.default_retries > 0
    assert Limited(limit_bytes=50 * MIB, default_retries=None, expandable_retries=None) == little
    assert reserved(made).limited is None


def test_a_small_graph_needs_no_parameters_to_be_replayed() -> None:
    graph, _ = step([Forward(name="aten.mm.default", module="a", sizes={"x": 3 * MIB}, saved=("x",))])

    assert 1 == len(saved_tensors(graph))
    assert 20 * MIB == replay(saving_step(graph), expandable=False).reserved_bytes


def test_the_same_step_gives_the_same_figure(plain: OpGraph) -> None:
    assert reserved(saving_step(plain)) == reserved(saving_step(plain))
