"""A rehearsal, which lets the runtime act, against the timeline, which works out what it should do."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import planner
from planner.device import load_device
from planner.errors import RehearsalError, TraceError
from planner.graph import OUTSIDE, saved_tensors
from planner.link import Staging
from planner.plan import Plan
from planner.planning import make_plan
from planner.problem import build_problem
from planner.runtime.handle import apply
from planner.runtime.measure import measure_curve, storage_bytes
from planner.runtime.offload import HostCopies
from planner.runtime.rehearsal import rehearse
from planner.simulation.liveness import Timeline, simulate
from planner.simulation.rehearsal import Rehearsal
from planner.simulation.tracker import StorageTracker
from planner.solving.search import Solution, Status
from planner.spec import from_mapping
from planner.tracing import Kernels, Step, prepare, prepare_module, trace
from tests.runtime.models import Case, build, loss_of
from tests.runtime.plans import (
    Subject,
    keep_all,
    keep_block_inputs,
    keep_least,
    keep_some,
    mixed,
    offload,
    offload_all,
    offload_some,
    plan_that_keeps,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # what model libraries say of tiny configurations

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
}
SPECS: dict[str, dict[str, Any]] = {
    "llama": {"model": {"transformers": "LlamaForCausalLM", "config": LLAMA}},
    "llama, sharded": {
        "model": {"transformers": "LlamaForCausalLM", "config": LLAMA},
        "precision": {"parameters": "float32", "compute": "bfloat16"},
        "parallel": {"fsdp": 4},
    },
    # Dropout, and a tied weight.
    "gpt2, autocast": {
        "model": {
            "transformers": "GPT2LMHeadModel",
            "config": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 96},
        },
        "precision": {"parameters": "float32", "compute": "bfloat16"},
    },
    "bert": {
        "model": {
            "transformers": "BertForMaskedLM",
            "config": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 64,
                "vocab_size": 96,
            },
        },
    },
    "vit": {
        "model": {
            "transformers": "ViTForImageClassification",
            "config": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 64,
                "image_size": 32,
                "patch_size": 8,
            },
        },
        "precision": {"parameters": "float32", "compute": "bfloat16"},
        "batch": {"micro_batch": 8},
    },
    # Some of its replays write in place.
    "t5": {
        "model": {
            "transformers": "T5ForConditionalGeneration",
            "config": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 64},
        },
    },
    "mixtral": {
        "model": {
            "transformers": "MixtralForCausalLM",
            "config": {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
        },
        "precision": {"parameters": "float32", "compute": "bfloat16"},
        "parallel": {"fsdp": 2},
    },
    # Batch norms, which a replay runs without their statistics, and sums in place.
    "resnet": {
        "model": {
            "transformers": "ResNetForImageClassification",
            "config": {
                "embedding_size": 8,
                "hidden_sizes": [16, 32],
                "depths": [1, 2],
                "layer_type": "bottleneck",
            },
        },
        "batch": {"micro_batch": 2},
        "optimizer": {"name": "sgd", "momentum": 0.9},
    },
}


def step_of(name: str, **others: Any) -> Step:
    pytest.importorskip("transformers")
    return prepare(from_mapping({"batch": {"micro_batch": 4, "sequence_length": 24}, **SPECS[name], **others}))


def subject_of(step: Step) -> Subject:
    graph = trace(step)
    return Subject(graph, build_problem(graph, load_device("h100-80gb")))


def valid(subject: Subject, kept: frozenset[int]) -> frozenset[int]:
    """These tensors, and what else the dropped ones cannot come back without."""
    while True:
        try:
            simulate(subject.problem, kept)
        except ValueError as error:
            kept |= {int(str(error).split()[1])}  # "tensor 7 is neither kept nor replayable"
        else:
            return kept


def plans(subject: Subject) -> Iterator[tuple[Plan, Timeline]]:
    for wanted in (
        keep_all(subject),
        keep_least(subject),
        keep_block_inputs(subject),
        keep_some(subject, 0.5, seed=1),
    ):
        kept = valid(subject, wanted)
        yield plan_that_keeps(subject, kept), simulate(subject.problem, kept)


def at_ops(subject: Subject, timeline: Timeline) -> tuple[int, ...]:
    """Bytes alive at each op that is no view and at each replay, not where a tensor is only unpacked."""
    nodes = subject.graph.nodes
    return tuple(
        size
        for point, size in zip(timeline.points, timeline.live_bytes, strict=True)
        if point.replay is not None or (point.step in nodes and not nodes[point.step]["op"].is_view)
    )


@pytest.mark.parametrize("name", SPECS)
def test_the_runtime_does_what_the_timeline_says(name: str) -> None:
    step = step_of(name)
    subject = subject_of(step)

    for plan, timeline in plans(subject):
        found = rehearse(step, plan)

        assert (timeline.peak_bytes, 0) == (found.peak_bytes, found.fallbacks)
        if found.replays == timeline.replays:  # else there are copies for what replays write to in place
            assert at_ops(subject, timeline) == found.live_bytes


def test_with_many_plans_every_moment_is_as_the_timeline_has_it() -> None:
    step = step_of("llama, sharded")
    subject = subject_of(step)

    for seed in range(8):
        kept = keep_some(subject, seed / 8, seed)
        timeline, found = simulate(subject.problem, kept), rehearse(step, plan_that_keeps(subject, kept))

        assert timeline.replays == found.replays
        assert at_ops(subject, timeline) == found.live_bytes


def test_the_optimizer_step_can_be_the_peak() -> None:
    step = step_of("llama", batch={"micro_batch": 1, "sequence_length": 1})
    subject = subject_of(step)

    found = rehearse(step, plan_that_keeps(subject, keep_all(subject)))

    assert ("optimizer step", subject.problem.optimizer_peak_bytes) == (found.peak_at, found.peak_bytes)


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))


def test_bytes_are_those_that_can_be_counted_by_hand() -> None:
    step = prepare_module(chain(), (torch.randn(2, 4),), optimizer="none")
    subject = subject_of(step)

    found = rehearse(step, plan_that_keeps(subject, keep_all(subject)))

    parameters = 4 * (4 * 8 + 8 + 8 * 64 + 64 + 64 * 4 + 4)
    at_the_last_product = parameters + 4 * 2 * (4 + 8 + 64 + 4)  # the input, both results of tanh, the output
    assert at_the_last_product in found.live_bytes
    assert 0 == found.replays
    assert found.peak_bytes == max(found.live_bytes)


def test_the_place_of_a_peak_in_a_replay_names_who_asked_for_it() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            narrow = self.inner(x)
            return torch.sin(torch.exp(narrow.repeat(1, 1000) + narrow.repeat(1, 1000)))

    step = prepare_module(Wide(), (torch.randn(2, 4),), optimizer="none")
    subject = subject_of(step)

    found = rehearse(step, plan_that_keeps(subject, keep_least(subject)))

    # Both summands and the sum, beside the output and its gradient; afterwards only as many again.
    assert ("backward, replaying aten.add.Tensor for the model", 4) == (found.peak_at, found.replays - 1)


def test_a_rehearsal_leaves_nothing_behind_and_can_be_repeated() -> None:
    step = prepare_module(chain(), (torch.randn(2, 4),))
    subject = subject_of(step)
    plan = plan_that_keeps(subject, keep_least(subject))
    before = torch.autograd.graph.saved_tensors_hooks

    first, second = rehearse(step, plan), rehearse(step, plan)

    assert first.live_bytes == second.live_bytes
    assert before is torch.autograd.graph.saved_tensors_hooks
    assert all(parameter.grad is None for parameter in step.module.parameters())
    assert not step.module._forward_hooks
    assert not step.module._forward_pre_hooks
    planner.apply(step.module, plan).remove()


def test_a_model_that_counts_its_steps_is_rehearsed_once_it_runs_from_the_tape() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.chain = chain()
            self.steps = 0

        def forward(self, x: Tensor) -> Any:
            self.steps += 1
            return self.chain(x)

    step = prepare_module(Counting(), (torch.randn(2, 4),))
    subject = subject_of(step)
    kept = keep_least(subject)

    found = rehearse(step, plan_that_keeps(subject, kept))

    assert at_ops(subject, simulate(subject.problem, kept)) == found.live_bytes


def test_a_plan_of_another_model_is_refused_and_taken_off() -> None:
    step, other = (prepare_module(chain(), (torch.randn(2, 4),)), prepare_module(nn.Linear(4, 4), (torch.randn(2, 4),)))
    subject = subject_of(other)
    plan = plan_that_keeps(subject, keep_all(subject))

    with pytest.raises(RehearsalError, match="the plan is for"):
        rehearse(step, plan)

    rehearse(other, plan)


def test_a_failing_model_is_a_trace_error_and_the_plan_is_taken_off() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.chain = chain()
            self.left = 2

        def forward(self, x: Tensor) -> Any:
            self.left -= 1
            if self.left < 0:
                raise IndexError("no more of it")
            return self.chain(x)

    step = prepare_module(Failing(), (torch.randn(2, 4),))
    subject = subject_of(step)

    with pytest.raises(TraceError, match="no more of it"):
        rehearse(step, plan_that_keeps(subject, keep_all(subject)))

    assert not step.module._forward_hooks


def test_a_model_that_is_recorded_in_each_forward_is_rehearsed_being_recorded() -> None:
    class Scheduled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.chain = chain()
            self.scale = 1.0

        def forward(self, x: Tensor) -> Any:
            self.scale *= 0.9
            return self.chain(x * self.scale)

    step = prepare_module(Scheduled(), (torch.randn(2, 4),))
    subject = subject_of(step)
    kept = keep_least(subject)
    timeline = simulate(subject.problem, kept)

    found = rehearse(step, plan_that_keeps(subject, kept))

    assert 0 < found.replays == timeline.replays
    assert at_ops(subject, timeline) == found.live_bytes


# -- offloading -----------------------------------------------------------------------------------------------------


_UNBOUNDED_BYTES = 2**62


# More packings than a forward has.
_WHOLE_FORWARD = 10**6


def both_ways(size_bytes: int) -> Staging:
    """As much out as back, whatever is packed meanwhile."""
    return Staging(out_bytes=size_bytes, back_bytes=size_bytes, lead=_WHOLE_FORWARD)


def curve(case: Case, plan: Plan, staging: Staging | None) -> tuple[list[int], int]:
    """The allocator's bytes after each change of a step that runs from the tape, what was there before included; and
    those on the host.
    """
    model, batch = case.model, case.batch()

    def run() -> Any:
        output = model(**batch)
        loss_of(output).backward()
        return output

    applied = apply(model, plan, staging=staging)
    for _ in range(3):
        run()
        model.zero_grad(set_to_none=True)
    resident = [*model.parameters(), *model.buffers(), *batch.values()]
    with torch.backends.mkldnn.flags(enabled=False):
        found = measure_curve(run)
    model.zero_grad(set_to_none=True)
    applied.remove()
    assert (2, 0) == (applied.recordings, applied.fallbacks)
    return [storage_bytes(resident) + change for change in found], applied.host.peak_bytes


def offloading(subject: Subject, seeds: int) -> Iterator[Plan]:
    yield offload_all(subject)
    yield from (mixed(subject, seed) for seed in range(seeds))


# GPT-2 makes tensors of numbers on the way, of 8 or 4 bytes each.
@pytest.mark.parametrize(
    ("name", "seeds", "most_off_bytes"),
    [("llama", 4, 0), ("bert", 1, 0), ("vit", 1, 0), ("resnet", 1, 0), ("gpt2", 2, 56)],
)
def test_a_rehearsed_peak_of_a_step_that_offloads_is_the_allocators(name: str, seeds: int, most_off_bytes: int) -> None:
    case = build(name)
    step = prepare_module(case.model, (), case.batch(), optimizer="none", kernels=Kernels.CPU)
    subject = subject_of(step)

    for place, plan in enumerate(offloading(subject, seeds)):
        for staging in (
            None,
            Staging(out_bytes=0, back_bytes=0, lead=0),
            Staging(out_bytes=40_000, back_bytes=40_000, lead=0),
            Staging(out_bytes=20_000, back_bytes=60_000, lead=8),
        ):
            real, host_bytes = curve(case, plan, staging)
            found = rehearse(step, plan, staging=staging)

            assert 0 <= max(real) - found.peak_bytes <= most_off_bytes, f"plan {place}, {staging}"
            assert 0 < host_bytes == found.host_bytes
            if not most_off_bytes:
                left = iter(real)
                changes = [now for before, now in pairwise((0, *found.live_bytes)) if now != before]
                assert all(size in left for size in changes)  # "in" moves the iterator on: the order counts


def may_offload(step: Step) -> Subject:
    """The step with a host to which tensors of any size may go."""
    graph = trace(step)
    device = load_device("h100-80gb")
    return Subject(graph, build_problem(graph, device, host_budget_bytes=10**12, smallest_offload_bytes=1))


def plan_that_offloads(
    subject: Subject, kept: frozenset[int], offloaded: frozenset[int], staging: Staging
) -> tuple[Plan, Timeline]:
    timeline = simulate(subject.problem, kept, offloaded=offloaded, staging=staging)
    solution = Solution(status=Status.FEASIBLE, kept=kept, timeline=timeline, bound_ns=0, gap=1.0, wall_s=0.0)
    return make_plan(subject.graph, subject.problem, solution, (), budget_bytes=10**12, device="test"), timeline


# Times the largest tensor that leaves, out and back, and the lead.
_STAGINGS = ((16, 2, 48), (1, 1, 3), (2, 4, 0), (0, 0, 10**6), (4, 16, 1))


def offloads(subject: Subject, seeds: int) -> Iterator[tuple[Plan, Timeline]]:
    """Plans that save, replay and offload at random."""
    problem = subject.problem
    for seed in range(seeds):
        chance = random.Random(seed)
        kept = valid(subject, keep_some(subject, chance.choice((0.3, 0.6, 1.0)), seed))
        share = chance.choice((0.3, 0.7, 1.0))
        leave = frozenset(index for index in sorted(kept) if problem.tensors[index].packing and chance.random() < share)
        out, back, lead = _STAGINGS[seed % len(_STAGINGS)]
        staging = Staging.of((problem.tensors[index].size_bytes for index in leave), out=out, back=back, lead=lead)
        yield plan_that_offloads(subject, kept, leave, staging)


@pytest.mark.parametrize("name", SPECS)
def test_the_runtime_offloads_as_the_timeline_says(name: str) -> None:
    step = step_of(name)
    subject = may_offload(step)

    for plan, timeline in offloads(subject, seeds=5):
        found = rehearse(step, plan)

        assert (timeline.peak_bytes, 0) == (found.peak_bytes, found.fallbacks)
        assert 0 < found.host_bytes <= timeline.traffic.host_bytes
        if found.replays == timeline.replays:  # else there are copies for what replays write to in place
            assert at_ops(subject, timeline) == found.live_bytes


class Scorer(nn.Module):
    """Its loss is not its own affair; the last thing that it does is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(3))
        self.head = nn.Linear(32, 48)

    def forward(self, x: Tensor) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x).flatten(0, 1), x


def scored(output: Any, _: Any) -> Tensor:
    scores, hidden = output
    return scores.mul(2).logsumexp(-1).mean() + hidden.square().mean()


def scorer() -> Step:
    return replace(prepare_module(Scorer(), (torch.randn(4, 16, 32),)), loss=scored)


def test_what_a_loss_outside_the_model_saves_neither_leaves_nor_counts() -> None:
    step = scorer()
    subject = may_offload(step)
    inside = [saved for saved in saved_tensors(subject.graph) if saved.module_fqn != OUTSIDE]
    outside = {saved.value for saved in saved_tensors(subject.graph)} - {saved.value for saved in inside}

    assert len(inside) == len(subject.problem.packs) < len(saved_tensors(subject.graph))
    assert not any(tensor.packing for tensor in subject.problem.tensors if tensor.value in outside)
    for plan, timeline in offloads(subject, seeds=20):
        assert at_ops(subject, timeline) == rehearse(step, plan).live_bytes


@pytest.mark.parametrize("name", ["llama", "t5", "the loss outside"])
def test_copies_out_are_waited_for_when_the_models_own_forward_has_ended(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = scorer() if name == "the loss outside" else step_of(name)
    subject = may_offload(step)
    problem = subject.problem
    leave = frozenset(tensor.index for tensor in problem.tensors if tensor.packing)
    plan, _ = plan_that_offloads(subject, keep_all(subject), leave, Staging.of((1,)))
    trackers: list[StorageTracker] = []
    settled: list[int] = []

    class Tracker(StorageTracker):  # type: ignore[no-untyped-call]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            trackers.append(self)

    settle = HostCopies.settle

    def noted(copies: HostCopies) -> None:
        settled.append(trackers[-1].step if trackers else -1)
        settle(copies)

    monkeypatch.setattr("planner.runtime.rehearsal.StorageTracker", Tracker)
    monkeypatch.setattr(HostCopies, "settle", noted)
    rehearse(step, plan)

    assert problem.settle_step == settled[-1]
    assert (problem.settle_step < problem.backward_step) == (name == "the loss outside")


def test_a_rehearsal_tells_stagings_apart() -> None:
    case = build("llama")
    step = prepare_module(case.model, (), case.batch(), optimizer="none", kernels=Kernels.CPU)
    plan = offload_all(subject_of(step))

    peaks = [rehearse(step, plan, staging=both_ways(size)).peak_bytes for size in (0, 40_000, 80_000, _UNBOUNDED_BYTES)]

    assert sorted(set(peaks)) == peaks


# What the caller holds besides, so that it is there twice once it has come back: the encoder's output.
_DOUBLE_BYTES = {"t5": 4 * (4 * 24) * 32}


def away(without: Rehearsal, found: Rehearsal) -> list[int]:
    """How many bytes less are alive at each op."""
    return [before - now for before, now in zip(without.live_bytes, found.live_bytes, strict=True)]


@pytest.mark.parametrize("name", SPECS)
def test_with_staging_for_all_values_are_away_only_while_nothing_needs_them(name: str) -> None:
    step = step_of(name)
    subject = subject_of(step)

    for kept in (keep_all(subject), valid(subject, keep_some(subject, 0.5, seed=1))):
        plan = plan_that_keeps(subject, kept)
        without = rehearse(step, plan)
        found = rehearse(step, offload(plan), staging=both_ways(_UNBOUNDED_BYTES))

        saved = [size for size, _ in groupby(away(without, found))]
        double_bytes = _DOUBLE_BYTES.get(name, 0)
        # In forward; in the loss; from when backward asks for the first of them.
        assert [0, found.host_bytes - double_bytes, -double_bytes, 0][: 4 if double_bytes else 3] == saved
        assert (without.replays, 0) == (found.replays, found.fallbacks)


@pytest.mark.parametrize("name", SPECS)
def test_at_no_moment_does_offloading_take_more_of_the_device(name: str) -> None:
    step = step_of(name)
    subject = subject_of(step)

    for seed in range(2):
        plan = plan_that_keeps(subject, valid(subject, keep_some(subject, 0.7, seed)))
        without, found = rehearse(step, plan), rehearse(step, offload_some(subject, plan, 0.6, seed))

        double_bytes = _DOUBLE_BYTES.get(name, 0)
        assert found.host_bytes > 0
        assert found.host_bytes - max(away(without, found)) in {0, double_bytes}  # in the loss
        assert min(away(without, found)) >= -double_bytes
        assert (without.replays, 0) == (found.replays, found.fallbacks)


def test_what_goes_to_the_host_is_counted_and_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 2**36
    step = prepare_module(chain(), (torch.empty(rows, 4, device="meta"),), optimizer="none")
    plan = offload_all(subject_of(step))
    monkeypatch.setattr("planner.runtime.host.mmap.mmap", None)

    found = rehearse(step, plan)

    # Both results of tanh, which the layers after them share: 20 TB.
    assert 4 * rows * (8 + 64) == found.host_bytes


def test_a_model_that_is_recorded_in_each_forward_is_rehearsed_offloading() -> None:
    class Scheduled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.chain = chain()
            self.scale = 1.0

        def forward(self, x: Tensor) -> Any:
            self.scale *= 0.9
            return self.chain(x * self.scale)

    step = prepare_module(Scheduled(), (torch.empty(1024, 4),), optimizer="none")
    subject = subject_of(step)
    plan = plan_that_keeps(subject, keep_all(subject))

    without, found = rehearse(step, plan), rehearse(step, offload(plan), staging=both_ways(0))

    assert len(without.live_bytes) == len(found.live_bytes)
    # The scaled input, which the first layer reads, and both results of tanh; the larger one comes back first.
    assert 4 * 1024 * (4 + 8 + 64) == found.host_bytes
    assert max(found.live_bytes) <= max(without.live_bytes) - 4 * 1024 * (4 + 8)
