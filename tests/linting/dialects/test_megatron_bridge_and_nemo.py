"""Overrides of Megatron-Bridge recipes and configs of NeMo 1: what they leave out is said elsewhere."""

import pytest

from tests.linting.dialects.reading import dialect_of, facts_of, values

BRIDGE = """
train:
  train_iters: 100
  micro_batch_size: 1
optimizer:
  lr: 0.0003
model:
  seq_length: 8192
  context_parallel_size: 2
  recompute_granularity: selective
  fine_grained_activation_offloading: true
"""
NEMO = """
trainer:
  devices: 8
model:
  mcore_gpt: true
  micro_batch_size: 4
  encoder_seq_length: 4096
  tensor_model_parallel_size: 2
  sequence_parallel: true
  activations_checkpoint_granularity: full
"""


def test_a_train_section_beside_a_model_of_megatron_core_is_megatron_bridge() -> None:
    assert dialect_of(BRIDGE) == "megatron_bridge"


@pytest.mark.parametrize(
    ("old", "new"), [("train:", "training:"), ("optimizer:", "optim:"), ("model:", "models:"), ("train_iters", "steps")]
)
def test_with_other_sections_it_is_not(old: str, new: str) -> None:
    text = BRIDGE.replace("  micro_batch_size: 1\n", "").replace(old, new, 1)
    assert dialect_of(text) is None


def test_a_trainer_beside_a_model_of_megatron_core_is_nemo() -> None:
    assert dialect_of(NEMO) == "nemo"
    assert dialect_of(NEMO.replace("trainer:", "runner:")) is None
    assert dialect_of("trainer:\n  devices: 8\nmodel:\n  hidden_size: 4096\n") is None


def test_overrides_are_read_and_what_they_leave_out_is_not_known() -> None:
    assert {
        "sequence_length": 8192,
        "micro_batch": 1,
        "context_parallel": 2,
        "tensor_parallel": None,
        "checkpointing": "selective",
        "activation_offload": True,
    } == values(
        facts_of(BRIDGE),
        "sequence_length", "micro_batch", "context_parallel", "tensor_parallel", "checkpointing", "activation_offload",
    )  # fmt: skip
    without = BRIDGE.replace("  recompute_granularity: selective\n", "")
    assert {"checkpointing": None} == values(facts_of(without), "checkpointing")


def test_nemos_own_names_are_read() -> None:
    assert {
        "sequence_length": 4096,
        "micro_batch": 4,
        "tensor_parallel": 2,
        "sequence_parallel": True,
        "checkpointing": "full",
        "context_parallel": None,
    } == values(
        facts_of(NEMO),
        "sequence_length", "micro_batch", "tensor_parallel", "sequence_parallel", "checkpointing", "context_parallel",
    )  # fmt: skip
