"""Arguments of TRL's trainers: how they are recognised, and what they ask for."""

import pytest

from planner.configs.facts import Attention, Checkpointing, Loss
from planner.configs.tree import SourceFormat
from planner.linting.engine import Options, configs_of
from planner.linting.sources import parse
from tests.linting.dialects.reading import dialect_of, facts_of, values

CONFIG = """
model_name_or_path: Qwen/Qwen3-8B
dataset_name: trl-lib/Capybara
output_dir: out
learning_rate: 2.0e-5
"""


def test_a_model_a_word_of_trl_and_training_arguments_make_a_config() -> None:
    assert dialect_of(CONFIG) == "trl"
    shell = "trl sft --model_name_or_path a --dataset_name b --output_dir out --learning_rate 1e-5\n"
    assert dialect_of(shell, SourceFormat.SHELL) == "trl"


@pytest.mark.parametrize(
    "text",
    [
        "model_name_or_path: a\noutput_dir: out\nlearning_rate: 1.0e-5\n",  # no word of TRL
        CONFIG + "use_slow_tokenizer: false\n",  # open-instruct
        CONFIG + "finetuning_type: full\n",  # LLaMA-Factory
        "model_name_or_path: {a: b}\ndataset_name: x\noutput_dir: out\nlearning_rate: 1\n",
    ],
)
def test_other_trainers_are_not_taken_for_it(text: str) -> None:
    assert dialect_of(text) is None


def test_trl_checkpoints_and_computes_in_bfloat16_unless_told_otherwise() -> None:
    assert values(facts_of(CONFIG), "checkpointing", "compute_dtype", "parameter_dtype", "packing", "lora") == {
        "checkpointing": Checkpointing.FULL,
        "compute_dtype": "bfloat16",
        "parameter_dtype": "float32",
        "packing": False,
        "lora": False,
    }
    assert values(facts_of(CONFIG + "fp16: true\n"), "compute_dtype") == {"compute_dtype": "float16"}
    assert values(facts_of(CONFIG + "bf16: false\n"), "compute_dtype") == {"compute_dtype": None}


def test_before_trl_0_27_the_checkpoint_decided_the_dtype_of_weights() -> None:
    document = parse(CONFIG, "a.yaml", SourceFormat.YAML)
    [config] = configs_of(document, Options(target_versions={"trl": (0, 26)}))
    assert values(config.facts, "parameter_dtype") == {"parameter_dtype": None}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("eager", Attention.EAGER),
        ("sdpa", Attention.SDPA),
        ("flash_attention_2", Attention.FLASH),
        ("kernels-community/vllm-flash-attn3", Attention.FLASH),
        ("flex_attention", Attention.FLEX),
        ("kernels-community/sage", Attention.OTHER),
    ],
)
def test_attention_is_known_by_transformers_names(name: str, kind: Attention) -> None:
    assert values(facts_of(CONFIG + f"attn_implementation: {name}\n"), "attention") == {"attention": kind}


def test_length_loss_and_adapters_are_facts() -> None:
    facts = facts_of(
        CONFIG + "max_length: 4096\npacking: true\nuse_liger_kernel: true\nuse_peft: true\nload_in_4bit: true\n"
        "lora_target_modules: [q_proj, v_proj]\n"
    )
    names = ("sequence_length", "packing", "loss", "lora", "lora_rank", "lora_targets", "quantization_bits")
    assert values(facts, *names, "parameter_dtype") == {
        "sequence_length": 4096,
        "packing": True,
        "loss": Loss.FUSED,
        "lora": True,
        "lora_rank": 16,
        "lora_targets": ("q_proj", "v_proj"),
        "quantization_bits": 4,
        "parameter_dtype": None,
    }
