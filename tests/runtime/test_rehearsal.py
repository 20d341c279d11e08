"""A rehearsal, which lets the runtime act, against the timeline, which works out what it should do."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import planner
from planner.device import load_device
from planner.errors import RehearsalError, TraceError
from planner.plan import Plan, Retention
from planner.problem import build_problem
from planner.runtime.rehearsal import rehearse
from planner.simulation.liveness import Timeline, simulate
from planner.spec import from_mapping
from planner.tracing import Step, prepare, prepare_module, trace
from tests.runtime.plans import Subject, keep_all, keep_block_inputs, keep_least, keep_some, plan_that_keeps

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


def test_what_goes_to_the_host_is_refused() -> None:
    step = prepare_module(chain(), (torch.randn(2, 4),))
    subject = subject_of(step)
    plan = plan_that_keeps(subject, keep_all(subject))
    offloading = replace(plan, decisions=tuple(replace(d, retention=Retention.OFFLOAD) for d in plan.decisions))

    with pytest.raises(RehearsalError, match="cannot be rehearsed"):
        rehearse(step, offloading)


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
