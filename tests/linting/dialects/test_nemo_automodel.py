"""Recipes of NeMo Automodel: how they are recognised, and what they ask for."""

import pytest

from tests.linting.dialects.reading import dialect_of, facts_of, values

CONFIG = """
step_scheduler:
  global_batch_size: 64
  local_batch_size: 2
model:
  pretrained_model_name_or_path: meta-llama/Llama-3.1-8B
  backend:
    attn: te
distributed:
  strategy: fsdp2
  tp_size: 2
  cp_size: 1
  sequence_parallel: true
  activation_checkpointing: "full"
loss_fn:
  _target_: nemo_automodel.components.loss.linear_ce.FusedLinearCrossEntropy
packed_sequence:
  packed_sequence_size: 4096
"""


def test_a_step_scheduler_with_a_model_makes_a_recipe() -> None:
    assert dialect_of(CONFIG) == "nemo_automodel"
    assert dialect_of(CONFIG.replace("step_scheduler:", "scheduler:")) is None
    assert dialect_of("step_scheduler:\n  local_batch_size: 1\n") is None


def test_sizes_degrees_and_kinds_are_read() -> None:
    assert {
        "model": "meta-llama/Llama-3.1-8B",
        "micro_batch": 2,
        "tensor_parallel": 2,
        "context_parallel": 1,
        "sequence_parallel": True,
        "checkpointing": "full",
        "attention": "other",
        "loss": "fused",
        "packing": True,
        "sharding": "parameters",
    } == values(
        facts_of(CONFIG),
        "model", "micro_batch", "tensor_parallel", "context_parallel", "sequence_parallel", "checkpointing",
        "attention", "loss", "packing", "sharding",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("true", "full"),
        ("Enabled", "full"),
        ("selective", "selective"),
        ("null", "none"),
        ('"off"', "none"),
        ("sometimes", None),
        ("[full]", None),
    ],
)
def test_checkpointing_has_the_words_that_automodel_takes(value: str, expected: str | None) -> None:
    text = CONFIG.replace('activation_checkpointing: "full"', f"activation_checkpointing: {value}")
    assert {"checkpointing": expected} == values(facts_of(text), "checkpointing")


def test_a_pack_of_no_tokens_is_no_packing() -> None:
    text = CONFIG.replace("packed_sequence_size: 4096", "packed_sequence_size: 0")
    assert {"packing": False} == values(facts_of(text), "packing")
