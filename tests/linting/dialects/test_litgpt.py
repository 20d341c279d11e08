"""litgpt configs: how they are recognised, and what they ask for."""

import pytest

from tests.linting.dialects.reading import dialect_of, facts_of, values

CONFIG = """
checkpoint_dir: checkpoints/meta-llama/Llama-2-7b-hf
precision: bf16-true
devices: 4
lora_r: 8
lora_key: true
train:
  global_batch_size: 64
  micro_batch_size: 2
  max_seq_length: 512
"""
PRETRAINING = """
model_name: pythia-160m
out_dir: out
data: TinyStories
train:
  global_batch_size: 512
  micro_batch_size: 4
"""


@pytest.mark.parametrize("text", [CONFIG, PRETRAINING])
def test_finetuning_and_pretraining_are_recognised(text: str) -> None:
    assert dialect_of(text) == "litgpt"


def test_a_train_section_alone_is_not_enough() -> None:
    assert dialect_of("train:\n  micro_batch_size: 2\n  global_batch_size: 4\n") is None


def test_several_devices_shard_and_checkpoint_when_finetuning() -> None:
    assert values(
        facts_of(CONFIG),
        "model", "lora", "lora_rank", "lora_targets", "micro_batch", "accumulation_steps", "sequence_length",
        "compute_dtype", "parameter_dtype", "data_parallel", "sharding", "checkpointing", "quantization_bits",
    ) == {
        "model": "meta-llama/Llama-2-7b-hf",
        "lora": True,
        "lora_rank": 8,
        "lora_targets": ("q_proj", "k_proj", "v_proj"),
        "micro_batch": 2,
        "accumulation_steps": 8,
        "sequence_length": 512,
        "compute_dtype": "bfloat16",
        "parameter_dtype": "bfloat16",
        "data_parallel": 4,
        "sharding": "parameters",
        "checkpointing": "full",
        "quantization_bits": None,
    }  # fmt: skip


def test_one_device_does_neither() -> None:
    facts = facts_of(CONFIG.replace("devices: 4", "devices: 1"))
    assert values(facts, "sharding", "checkpointing") == {"sharding": "none", "checkpointing": "none"}


def test_mixed_precision_keeps_parameters_in_float32() -> None:
    facts = facts_of(CONFIG.replace("bf16-true", "bf16-mixed"))
    assert values(facts, "compute_dtype", "parameter_dtype") == {
        "compute_dtype": "bfloat16",
        "parameter_dtype": "float32",
    }


def test_how_many_devices_pretraining_finds_is_not_known() -> None:
    assert values(facts_of(PRETRAINING), "data_parallel", "sharding", "checkpointing", "lora") == {
        "data_parallel": None,
        "sharding": None,
        "checkpointing": None,
        "lora": None,
    }


def test_any_key_of_adapters_says_that_there_are_some_and_none_says_nothing() -> None:
    assert values(facts_of(CONFIG.replace("lora_r: 8\n", "")), "lora", "lora_rank") == {"lora": True, "lora_rank": 8}
    bare = CONFIG.replace("lora_r: 8\n", "").replace("lora_key: true\n", "")
    assert values(facts_of(bare), "lora", "lora_rank") == {"lora": None, "lora_rank": None}
