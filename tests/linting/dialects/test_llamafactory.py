"""LLaMA-Factory configs, of the trainer and of v1: which files are recognised, and what they are read to ask for."""

from pathlib import Path

import pytest

from planner.configs.config import Config
from planner.configs.facts import Attention, Checkpointing, Facts, Loss, Sharding
from planner.configs.tree import SourceFormat
from planner.linting.detection import detect
from planner.linting.engine import Options, config_of, lint_text
from planner.linting.sources import parse

BASE = "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: lora\n"
V1 = "model: Qwen/Qwen3-0.6B\nmodel_class: llm\nkernel_config:\n  name: auto\ntrain_dataset: a.yaml\n"


def config(text: str, path: str = "a.yaml") -> Config:
    found = config_of(parse(text, path, SourceFormat.YAML), Options())
    assert found is not None
    return found


def facts(text: str) -> Facts:
    read = config(BASE + text)
    assert read.dialect.name == "llamafactory"
    return read.facts


def v1(text: str) -> Facts:
    read = config(V1 + text)
    assert read.dialect.name == "llamafactory_v1"
    return read.facts


def codes(text: str) -> set[str]:
    found = lint_text(text, "a.yaml", Options())
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
    assert expected == detect(parse(text, "a.yaml", SourceFormat.YAML))


def test_plain_settings_are_facts_and_batches_are_those_of_the_trainer() -> None:
    read = facts("cutoff_len: 4096\nlora_rank: 16\ngradient_accumulation_steps: 2\n")
    assert read.sequence_length is not None
    assert read.sequence_length.value == 4096
    assert read.lora_rank is not None
    assert read.lora_rank.value == 16
    assert read.micro_batch is not None
    assert read.micro_batch.value == 8


@pytest.mark.parametrize(
    ("text", "checkpointing", "is_offloaded"),
    [
        ("", Checkpointing.FULL, False),
        ("gradient_checkpointing: false\n", Checkpointing.FULL, False),
        ("use_unsloth_gc: true\n", Checkpointing.FULL, True),
        ("disable_gradient_checkpointing: true\nuse_unsloth_gc: true\n", Checkpointing.NONE, False),
        ("disable_gradient_checkpointing: true\ngradient_checkpointing: true\n", Checkpointing.FULL, False),
    ],
)
def test_checkpointing_is_on_unless_its_own_key_disables_it(
    text: str, checkpointing: Checkpointing, is_offloaded: bool
) -> None:
    read = facts(text)
    assert read.checkpointing is not None
    assert read.activation_offload is not None
    assert (read.checkpointing.value, read.activation_offload.value) == (checkpointing, is_offloaded)


def test_checkpointing_is_reentrant_unless_told_otherwise() -> None:
    default, chosen = facts("").reentrant, facts("use_reentrant_gc: false\n").reentrant
    assert default is not None
    assert chosen is not None
    assert (default.value, chosen.value) == (True, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("flash_attn: auto\n", None),
        ("flash_attn: fa2\n", Attention.FLASH),
        ("flash_attn: disabled\n", Attention.EAGER),
        ("flash_attn: sdpa\n", Attention.SDPA),
    ],
)
def test_the_attention_is_known_where_it_is_chosen(text: str, expected: Attention | None) -> None:
    found = facts(text).attention
    assert expected == (found.value if found else None)


@pytest.mark.parametrize(
    ("text", "is_packed"),
    [
        (BASE, False),
        (BASE + "packing: true\n", True),
        (BASE + "packing: false\nneat_packing: true\n", True),
        (BASE.replace("sft", "pt"), True),
        (BASE.replace("sft", "pt") + "packing: false\n", False),
    ],
)
def test_rows_are_packed_in_pretraining_and_where_asked(text: str, is_packed: bool) -> None:
    found = config(text).facts.packing
    assert found is not None
    assert is_packed == found.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BASE, Loss.FULL),
        (BASE + "enable_liger_kernel: true\n", Loss.FUSED),
        (BASE + "enable_liger_kernel: true\nuse_dft_loss: true\n", None),
        (BASE.replace("sft", "dpo"), None),
    ],
)
def test_the_loss_is_known_where_it_is_that_of_the_language_model(text: str, expected: Loss | None) -> None:
    found = config(text).facts.loss
    assert expected == (found.value if found else None)


def test_trained_parameters_are_float32_but_in_pure_bfloat16() -> None:
    mixed, pure = facts("bf16: true\n"), facts("pure_bf16: true\n")
    assert mixed.parameter_dtype is not None
    assert mixed.compute_dtype is not None
    assert (mixed.parameter_dtype.value, mixed.compute_dtype.value) == ("float32", "bfloat16")
    assert pure.parameter_dtype is not None
    assert pure.parameter_dtype.value == "bfloat16"


def test_targets_are_known_where_they_are_named() -> None:
    named = facts("lora_target: q_proj, v_proj\n").lora_targets
    assert named is not None
    assert named.value == ("q_proj", "v_proj")
    assert facts("lora_target: all\n").lora_targets is None


def test_a_deepspeed_config_beside_it_says_what_is_sharded(tmp_path: Path) -> None:
    (tmp_path / "z3.json").write_text('{"train_batch_size": "auto", "zero_optimization": {"stage": 3}}')
    read = config(BASE + "deepspeed: z3.json\n", str(tmp_path / "a.yaml")).facts
    assert read.sharding is not None
    assert read.sharding.value is Sharding.PARAMETERS


def test_keys_of_megatron_are_not_judged_where_it_trains() -> None:
    assert codes(BASE + "moe_router_fusion: true\n") == {"KEY003"}
    assert codes(BASE + "expert_model_parallel_size: 2\nmoe_router_fusion: true\n") == set()


def test_keys_that_some_release_of_transformers_in_its_range_takes_are_taken() -> None:
    assert (
        codes(BASE + "fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\ntrain_sampling_strategy: random\n")
        == set()
    )
    assert codes(BASE + "evaluation_strategy: steps\n") == {"KEY004"}


def test_the_new_trainer_checkpoints_without_reentrance_unless_told_otherwise() -> None:
    read = v1("")
    assert read.checkpointing is not None
    assert read.reentrant is not None
    assert (read.checkpointing.value, read.reentrant.value) == (Checkpointing.FULL, False)
    off = v1("enable_activation_checkpointing: false\n").checkpointing
    assert off is not None
    assert off.value is Checkpointing.NONE


def test_the_new_trainer_has_sdpa_bfloat16_and_full_logits_by_default() -> None:
    read = v1("")
    assert read.attention is not None
    assert read.compute_dtype is not None
    assert read.loss is not None
    assert (read.attention.value, read.compute_dtype.value, read.loss.value) == (
        Attention.SDPA,
        "bfloat16",
        Loss.FULL,
    )


@pytest.mark.parametrize(
    ("text", "sharding", "is_offloaded"),
    [
        ("", Sharding.NONE, None),
        ("dist_config:\n  name: fsdp2\n  offload_params: true\n", Sharding.PARAMETERS, True),
        ("dist_config:\n  name: fsdp2\n  reshard_after_forward: false\n", Sharding.GRADIENTS, False),
        ("dist_config:\n  name: deepspeed\n  config_file: nowhere.json\n", None, None),
    ],
)
def test_the_new_trainer_shards_as_its_distribution_says(
    text: str, sharding: Sharding | None, is_offloaded: bool | None
) -> None:
    read = v1(text)
    assert sharding == (read.sharding.value if read.sharding else None)
    assert is_offloaded == (read.parameter_offload.value if read.parameter_offload else None)


def test_the_new_trainers_adapters_and_bits_are_in_parts_of_their_own() -> None:
    read = v1("peft_config:\n  name: lora\n  r: 32\nquant_config:\n  name: bnb\n  quantization_bit: 4\n")
    assert read.lora is not None
    assert read.lora_rank is not None
    assert read.quantization_bits is not None
    assert (read.lora.value, read.lora_rank.value, read.quantization_bits.value) == (True, 32, 4)
