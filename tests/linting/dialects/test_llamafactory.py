"""LLaMA-Factory configs, of the trainer and of v1: which files are recognised, and what they are read to ask for."""

from pathlib import Path

import pytest

from planner.configs.facts import Facts
from planner.configs.tree import SourceFormat
from planner.linting.engine import Options, configs_of, lint_text
from planner.linting.sources import parse
from tests.linting.dialects.reading import dialect_of, facts_of, values

BASE = "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: lora\n"
FULL = BASE.replace("lora", "full")
PRETRAINING, PREFERENCE = BASE.replace("sft", "pt"), BASE.replace("sft", "dpo")
V1 = "model: Qwen/Qwen3-0.6B\nmodel_class: llm\nkernel_config:\n  name: auto\ntrain_dataset: a.yaml\n"


def facts(text: str) -> Facts:
    return facts_of(BASE + text)


def v1(text: str) -> Facts:
    return facts_of(V1 + text)


def codes(text: str) -> set[str]:
    found = lint_text(BASE + text, "a.yaml", Options())
    assert found is not None
    return {finding.rule.code for finding in found}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BASE, "llamafactory"),
        ("model_name_or_path: a/b\ntemplate: qwen3\ninfer_backend: vllm\n", "llamafactory"),
        ("model_name_or_path: a/b\nadapter_name_or_path: c\ntemplate: qwen3\nexport_dir: d\n", "llamafactory"),
        (V1, "llamafactory_v1"),
        ("model_name_or_path: a/b\ntemplate: qwen3\n", None),
        ("<|start|>: begins a drawing\n<|end|>: ends it\n", None),
        ("model: a/b\ntrain_dataset: c\n", None),
        ("model:\n  name: a\nmodel_class: llm\nkernel_config: {}\ntrain_dataset: c\n", None),
    ],
    ids=["trainer", "inference", "export", "v1", "too little", "tokens", "v1, too little", "a model of parts"],
)
def test_a_config_is_recognised_by_its_keys(text: str, expected: str | None) -> None:
    assert expected == dialect_of(text)


def test_plain_settings_are_facts_and_batches_are_those_of_the_trainer() -> None:
    read = facts("cutoff_len: 4096\nlora_rank: 16\ngradient_accumulation_steps: 2\n")
    assert values(read, "sequence_length", "lora_rank", "micro_batch", "accumulation_steps") == {
        "sequence_length": 4096,
        "lora_rank": 16,
        "micro_batch": 8,
        "accumulation_steps": 2,
    }


@pytest.mark.parametrize(
    ("text", "checkpointing", "is_offloaded"),
    [
        ("", "full", False),
        ("gradient_checkpointing: false\n", "full", False),
        ("use_unsloth_gc: true\n", "full", True),
        ("disable_gradient_checkpointing: true\nuse_unsloth_gc: true\n", "none", False),
        ("disable_gradient_checkpointing: true\ngradient_checkpointing: true\n", "full", False),
    ],
)
def test_checkpointing_is_on_unless_its_own_key_disables_it(text: str, checkpointing: str, is_offloaded: bool) -> None:
    assert values(facts(text), "checkpointing", "activation_offload") == {
        "checkpointing": checkpointing,
        "activation_offload": is_offloaded,
    }


def test_checkpointing_is_reentrant_unless_told_otherwise() -> None:
    assert values(facts(""), "reentrant") == {"reentrant": True}
    assert values(facts("use_reentrant_gc: false\n"), "reentrant") == {"reentrant": False}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("flash_attn: auto\n", None),
        ("flash_attn: fa2\n", "flash"),
        ("flash_attn: disabled\n", "eager"),
        ("flash_attn: sdpa\n", "sdpa"),
    ],
)
def test_the_attention_is_known_where_it_is_chosen(text: str, expected: str | None) -> None:
    assert values(facts(text), "attention") == {"attention": expected}


@pytest.mark.parametrize(
    ("text", "is_packed"),
    [
        (BASE, False),
        (BASE + "packing: true\n", True),
        (BASE + "packing: false\nneat_packing: true\n", True),
        (PRETRAINING, True),
        (PRETRAINING + "packing: false\n", False),
    ],
)
def test_rows_are_packed_in_pretraining_and_where_asked(text: str, is_packed: bool) -> None:
    assert values(facts_of(text), "packing") == {"packing": is_packed}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BASE, "full"),
        (BASE + "enable_liger_kernel: true\n", "fused"),
        (BASE + "enable_liger_kernel: true\nuse_dft_loss: true\n", None),
        (PREFERENCE, None),
    ],
)
def test_the_loss_is_known_where_it_is_that_of_the_language_model(text: str, expected: str | None) -> None:
    assert values(facts_of(text), "loss") == {"loss": expected}


@pytest.mark.parametrize(
    ("text", "compute", "parameters"),
    [
        (BASE + "bf16: true\n", "bfloat16", "bfloat16"),
        (BASE, None, None),
        (FULL + "bf16: true\n", "bfloat16", "float32"),
        (FULL + "pure_bf16: true\n", "bfloat16", "bfloat16"),
        (FULL + "bf16: true\nuse_badam: true\n", "bfloat16", None),
    ],
)
def test_parameters_that_are_trained_in_full_are_float32_but_in_pure_bfloat16(
    text: str, compute: str | None, parameters: str | None
) -> None:
    assert values(facts_of(text), "compute_dtype", "parameter_dtype") == {
        "compute_dtype": compute,
        "parameter_dtype": parameters,
    }


def test_an_optimizer_of_its_own_is_not_taken_for_the_trainers() -> None:
    assert values(facts_of(FULL), "optimizer") == {"optimizer": "adamw_torch_fused"}
    assert values(facts_of(FULL + "use_apollo: true\n"), "optimizer") == {"optimizer": None}


def test_rows_of_preferences_are_not_counted_as_rows_of_text() -> None:
    assert values(facts_of(PREFERENCE), "micro_batch") == {"micro_batch": None}


def test_targets_are_known_where_they_are_named() -> None:
    named = facts("lora_target: q_proj, v_proj\n")
    assert values(named, "lora", "lora_targets") == {"lora": True, "lora_targets": ("q_proj", "v_proj")}
    assert values(facts("lora_target: all\n"), "lora_targets") == {"lora_targets": ("all-linear",)}


def test_a_deepspeed_config_beside_it_says_what_is_sharded(tmp_path: Path) -> None:
    (tmp_path / "z3.json").write_text('{"train_batch_size": "auto", "zero_optimization": {"stage": 3}}')
    document = parse(BASE + "deepspeed: z3.json\n", str(tmp_path / "a.yaml"), SourceFormat.YAML)
    (config,) = configs_of(document, Options())
    assert values(config.facts, "sharding") == {"sharding": "parameters"}


def test_keys_of_megatron_are_not_judged_where_it_trains() -> None:
    assert codes("moe_router_fusion: true\n") == {"KEY003"}
    assert codes("expert_model_parallel_size: 2\nmoe_router_fusion: true\n") == set()


def test_keys_that_some_release_of_transformers_in_its_range_takes_are_taken() -> None:
    assert codes("fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\ntrain_sampling_strategy: random\n") == set()
    assert codes("evaluation_strategy: steps\n") == {"KEY009"}


def test_the_new_trainer_has_its_defaults() -> None:
    assert values(v1(""), "checkpointing", "reentrant", "attention", "compute_dtype", "loss", "sharding", "lora") == {
        "checkpointing": "full",
        "reentrant": False,
        "attention": "sdpa",
        "compute_dtype": "bfloat16",
        "loss": "full",
        "sharding": "none",
        "lora": False,
    }
    off = v1("enable_activation_checkpointing: false\n")
    assert values(off, "checkpointing", "reentrant") == {"checkpointing": "none", "reentrant": None}


@pytest.mark.parametrize(
    ("text", "sharding", "is_offloaded"),
    [
        ("dist_config:\n  name: fsdp2\n  offload_params: true\n", "parameters", True),
        ("dist_config:\n  name: fsdp2\n  reshard_after_forward: false\n", "gradients", False),
        ("dist_config:\n  name: deepspeed\n  config_file: nowhere.json\n", None, None),
    ],
)
def test_the_new_trainer_shards_as_its_distribution_says(
    text: str, sharding: str | None, is_offloaded: bool | None
) -> None:
    assert values(v1(text), "sharding", "parameter_offload") == {
        "sharding": sharding,
        "parameter_offload": is_offloaded,
    }


def test_the_new_trainers_adapters_and_bits_are_in_parts_of_their_own() -> None:
    read = v1("peft_config:\n  name: lora\n  r: 32\nquant_config:\n  name: bnb\n  quantization_bit: 4\n")
    assert values(read, "lora", "lora_rank", "quantization_bits") == {
        "lora": True,
        "lora_rank": 32,
        "quantization_bits": 4,
    }
