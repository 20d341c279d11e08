"""ms-swift's arguments, in YAML and in scripts, for its own training and for Megatron's."""

import pytest

from planner.configs.tree import SourceFormat
from tests.linting.dialects.reading import dialect_of, facts_of, read, values

CONFIG = """
model: Qwen/Qwen2.5-7B-Instruct
tuner_type: lora
attn_impl: flash_attn
max_length: 8192
per_device_train_batch_size: 2
packing: true
ENV:
  PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True'
"""
SCRIPT = "swift sft --model Qwen/Qwen2.5-7B --tuner_type full --attn_impl eager --gradient_checkpointing false\n"
MEGATRON = "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --max_length 4096 --tensor_model_parallel_size 2\n"


def test_two_of_its_own_keys_make_a_config() -> None:
    assert dialect_of(CONFIG) == "ms_swift"
    assert dialect_of("model: Qwen/Qwen2.5-7B\ntuner_type: lora\n") is None
    assert dialect_of(CONFIG + "stage: sft\nfinetuning_type: lora\n") != "ms_swift"


@pytest.mark.parametrize("text", [SCRIPT, MEGATRON, "python swift/cli/sft.py --model Qwen/Qwen2.5-7B\n"])
def test_its_commands_are_recognised_in_scripts(text: str) -> None:
    assert dialect_of(text, SourceFormat.SHELL) == "ms_swift"


def test_a_build_with_swift_is_not_a_training_run() -> None:
    assert dialect_of("swiftc --model x\n", SourceFormat.SHELL) is None


def test_its_own_training_is_read() -> None:
    assert {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "sequence_length": 8192,
        "micro_batch": 2,
        "packing": True,
        "attention": "flash",
        "checkpointing": "full",
        "lora": True,
    } == values(
        facts_of(CONFIG), "model", "sequence_length", "micro_batch", "packing", "attention", "checkpointing", "lora"
    )
    assert {"attention": "eager", "checkpointing": "none", "lora": False} == values(
        facts_of(SCRIPT, SourceFormat.SHELL), "attention", "checkpointing", "lora"
    )


def test_its_environment_is_read() -> None:
    config = read(CONFIG)
    assert config is not None
    assert "expandable_segments:True" == config.environment["PYTORCH_CUDA_ALLOC_CONF"].value


def test_megatrons_training_recomputes_selectively_by_default() -> None:
    assert {
        "sequence_length": 4096,
        "tensor_parallel": 2,
        "pipeline_parallel": 1,
        "checkpointing": "selective",
    } == values(
        facts_of(MEGATRON, SourceFormat.SHELL),
        "sequence_length", "tensor_parallel", "pipeline_parallel", "checkpointing",
    )  # fmt: skip
    none = MEGATRON.strip() + " --recompute_granularity none\n"
    assert {"checkpointing": "none"} == values(facts_of(none, SourceFormat.SHELL), "checkpointing")
