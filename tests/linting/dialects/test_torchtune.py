"""torchtune configs: how they are recognised, and what they ask for."""

import pytest

from tests.linting.dialects.reading import dialect_of, facts_of, values

CONFIG = """
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 4096
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  packed: true
model:
  _component_: torchtune.models.llama3.lora_llama3_8b
  quantize_base: true
optimizer:
  _component_: torch.optim.AdamW
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
batch_size: 2
gradient_accumulation_steps: 8
dtype: bf16
"""


def test_components_in_two_places_make_a_torchtune_config() -> None:
    assert dialect_of(CONFIG) == "torchtune"


def test_one_component_or_targets_of_hydra_do_not() -> None:
    assert dialect_of("model:\n  _component_: torchtune.models.llama3.llama3_8b\nepochs: 1\n") is None
    assert dialect_of(CONFIG.replace("_component_", "_target_")) is None


def test_sizes_kinds_and_dtypes_are_read() -> None:
    assert values(
        facts_of(CONFIG),
        "sequence_length", "packing", "micro_batch", "accumulation_steps", "lora", "quantization_bits", "optimizer",
        "loss", "compute_dtype", "parameter_dtype", "checkpointing", "activation_offload", "compile", "attention",
    ) == {
        "sequence_length": 4096,
        "packing": True,
        "micro_batch": 2,
        "accumulation_steps": 8,
        "lora": True,
        "quantization_bits": 4,
        "optimizer": "torch.optim.AdamW",
        "loss": "chunked",
        "compute_dtype": "bfloat16",
        "parameter_dtype": "bfloat16",
        "checkpointing": "none",
        "activation_offload": False,
        "compile": False,
        "attention": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("enable_activation_checkpointing: true", "full"),
        ("enable_activation_checkpointing: false", "none"),
        ("enable_activation_checkpointing: ${checkpoint}", None),
        ("ac_mode: selective", None),  # which of the recipes reads it is not known
    ],
)
def test_checkpointing_is_known_where_all_recipes_agree(lines: str, expected: str | None) -> None:
    assert values(facts_of(CONFIG + lines), "checkpointing") == {"checkpointing": expected}


def test_a_variable_is_no_number() -> None:
    facts = facts_of(CONFIG.replace("batch_size: 2", "batch_size: ${size}"))
    assert values(facts, "micro_batch") == {"micro_batch": None}


def test_recipes_that_read_no_offloading_have_none() -> None:
    teacher = "enable_activation_offloading: true\nteacher_model:\n  _component_: torchtune.models.llama3.llama3_8b\n"
    assert values(facts_of(CONFIG + teacher), "activation_offload") == {"activation_offload": None}


def test_an_optimizer_on_the_host_is_the_class_or_fsdp() -> None:
    own = CONFIG.replace("torch.optim.AdamW", "torchao.prototype.low_bit_optim.CPUOffloadOptimizer")
    assert values(facts_of(own), "optimizer_offload", "parameter_offload") == {
        "optimizer_offload": True,
        "parameter_offload": False,
    }
    assert values(facts_of(CONFIG + "fsdp_cpu_offload: true"), "optimizer_offload", "parameter_offload") == {
        "optimizer_offload": True,
        "parameter_offload": True,
    }
