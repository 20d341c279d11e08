"""axolotl configs: which files are recognised, and what they are read to ask for."""

import pytest

from planner.configs.config import Config
from planner.configs.facts import Attention, Checkpointing, Loss, Sharding
from planner.configs.tree import SourceFormat
from planner.linting.detection import detect
from planner.linting.engine import Options, config_of, lint_text
from planner.linting.sources import parse

BASE = "base_model: meta-llama/Llama-3.1-8B\ndatasets:\n  - path: mhenrichsen/alpaca_2k_test\n"


def read(text: str, target: tuple[int, ...] = (0, 19, 0)) -> Config:
    config = config_of(parse(BASE + text, "a.yaml", SourceFormat.YAML), Options(target_versions={"axolotl": target}))
    assert config is not None
    assert config.dialect.name == "axolotl"
    return config


def codes(text: str, target: tuple[int, ...] = (0, 19, 0)) -> set[str]:
    found = lint_text(
        BASE + text,
        "a.yaml",
        Options(is_selected=lambda rule: not rule.opt_in, target_versions={"axolotl": target}),
    )
    assert found is not None
    return {finding.rule.code for finding in found}


@pytest.mark.parametrize(
    "text",
    [
        "base_model: a/b\nmodels:\n  - model: c/d\nmerge_method: ties\n",
        "base_model: a/b\nsequence_len: 512\n",
        "datasets:\n  - path: a\nsequence_len: 512\nmicro_batch_size: 1\n",
        "- base_model: a/b\n",
    ],
    ids=["a merge of models", "one key more", "no model", "a list"],
)
def test_a_file_without_a_model_and_data_is_no_axolotl_config(text: str) -> None:
    assert detect(parse(text, "a.yaml", SourceFormat.YAML)) is None


def test_a_dataset_of_pretraining_and_a_length_make_a_config_too() -> None:
    text = "base_model: a/b\npretraining_dataset: c4\nsequence_len: 2048\n"
    assert detect(parse(text, "a.yaml", SourceFormat.YAML)) == "axolotl"


def test_plain_settings_are_facts_with_their_defaults() -> None:
    facts = read("sequence_len: 4096\ngradient_accumulation_steps: 8\n").facts
    assert facts.sequence_length is not None
    assert facts.sequence_length.value == 4096
    assert facts.micro_batch is not None
    assert (facts.micro_batch.value, facts.micro_batch.setting) == (1, None)
    assert facts.accumulation_steps is not None
    assert facts.accumulation_steps.value == 8
    assert facts.optimizer is not None
    assert facts.optimizer.value == "adamw_torch_fused"


@pytest.mark.parametrize(
    ("text", "checkpointing", "is_offloaded"),
    [
        ("", Checkpointing.NONE, False),
        ("gradient_checkpointing: true\n", Checkpointing.FULL, False),
        ("gradient_checkpointing: offload\n", Checkpointing.FULL, True),
        ("gradient_checkpointing: true\nactivation_offloading: true\n", Checkpointing.FULL, True),
        ("adapter: lora\ngradient_checkpointing: true\nactivation_offloading: true\n", Checkpointing.NONE, True),
        (
            "adapter: lora\ngradient_checkpointing: true\nactivation_offloading: hidden_states\n",
            Checkpointing.FULL,
            True,
        ),
        ("gradient_checkpointing: true\nselective_checkpointing: true\n", Checkpointing.SELECTIVE, False),
        ("fsdp_config:\n  activation_checkpointing: true\n", Checkpointing.FULL, False),
    ],
)
def test_offloading_with_an_adapter_takes_the_place_of_recomputation(
    text: str, checkpointing: Checkpointing, is_offloaded: bool
) -> None:
    facts = read(text).facts
    assert facts.checkpointing is not None
    assert facts.activation_offload is not None
    assert (facts.checkpointing.value, facts.activation_offload.value) == (checkpointing, is_offloaded)


def test_checkpointing_of_a_kind_that_is_not_known_is_no_fact() -> None:
    assert read("gradient_checkpointing: ${GC}\n").facts.checkpointing is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("attn_implementation: eager\n", Attention.EAGER),
        ("attn_implementation: kernels-community/flash-attn3\n", Attention.FLASH),
        ("attn_implementation: xformers\n", Attention.OTHER),
        ("flash_attention: true\n", Attention.FLASH),
        ("sdp_attention: true\nflash_attention: false\n", Attention.SDPA),
        ("flex_attention: true\nflash_attention: true\n", Attention.FLEX),
    ],
)
def test_the_attention_is_that_of_the_name_or_of_the_first_flag_that_is_on(
    text: str, expected: Attention | None
) -> None:
    found = read(text).facts.attention
    assert expected == (None if found is None else found.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Loss.FULL),
        ("rl: dpo\n", None),
        ("chunked_cross_entropy: true\n", None),
        ("liger_fused_linear_cross_entropy: true\n", Loss.FULL),
        ("plugins:\n  - liger.LigerPlugin\nliger_fused_linear_cross_entropy: true\n", Loss.FUSED),
        ("plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n", Loss.FUSED),
        (
            "plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\ncut_cross_entropy: false\n",
            Loss.FULL,
        ),
    ],
)
def test_a_fused_loss_needs_its_plugin_and_cut_cross_entropy_no_more_than_that(
    text: str, expected: Loss | None
) -> None:
    found = read(text).facts.loss
    assert expected == (None if found is None else found.value)


def test_four_bits_are_a_fact_with_qlora_and_eight_with_lora_only() -> None:
    four = read("adapter: qlora\nload_in_4bit: true\nlora_r: 16\n").facts
    assert four.quantization_bits is not None
    assert four.quantization_bits.value == 4
    assert four.lora_rank is not None
    assert four.lora_rank.value == 16
    assert read("adapter: lora\nload_in_4bit: true\n").facts.quantization_bits is None


def test_targets_are_known_where_they_are_listed() -> None:
    listed = read("adapter: lora\nlora_target_modules: [q_proj, v_proj]\n").facts.lora_targets
    assert listed is not None
    assert listed.value == ("q_proj", "v_proj")
    assert read("adapter: lora\nlora_target_linear: true\n").facts.lora_targets is None


def test_parameters_that_are_loaded_in_bfloat16_stay_so_without_a_wrapper() -> None:
    plain = read("bf16: true\n").facts
    assert plain.compute_dtype is not None
    assert plain.parameter_dtype is not None
    assert (plain.compute_dtype.value, plain.parameter_dtype.value) == ("bfloat16", "bfloat16")
    assert read("bf16: true\ndeepspeed: a.json\n").facts.parameter_dtype is None
    assert read("bf16: auto\n").facts.compute_dtype is None


@pytest.mark.parametrize(
    ("text", "sharding", "is_offloaded"),
    [
        ("", Sharding.NONE, None),
        ("deepspeed: a.json\n", None, None),
        ("fsdp_version: 2\nfsdp_config:\n  offload_params: true\n", Sharding.PARAMETERS, True),
        ("fsdp_config:\n  fsdp_offload_params: false\n", Sharding.PARAMETERS, False),
        ("fsdp:\n  - shard_grad_op\n  - auto_wrap\n", Sharding.GRADIENTS, False),
        ("fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: false\n", Sharding.GRADIENTS, False),
        ("fsdp: []\n", Sharding.NONE, None),
    ],
)
def test_sharding_is_that_of_fsdp_and_unknown_with_deepspeed(
    text: str, sharding: Sharding | None, is_offloaded: bool | None
) -> None:
    facts = read(text).facts
    assert sharding == (facts.sharding.value if facts.sharding else None)
    assert is_offloaded == (facts.parameter_offload.value if facts.parameter_offload else None)


def test_rows_that_are_packed_are_padded_unless_told_otherwise() -> None:
    packed = read("sample_packing: true\nattn_implementation: flash_attention_2\n").facts
    assert packed.pad_to_length is not None
    assert packed.pad_to_length.value
    unpadded = read("sample_packing: true\npad_to_sequence_len: false\n").facts.pad_to_length
    assert unpadded is not None
    assert not unpadded.value


def test_evaluation_batches_follow_the_micro_batch() -> None:
    followed = read("micro_batch_size: 4\n").facts.eval_batch
    assert followed is not None
    assert followed.value == 4
    own = read("micro_batch_size: 4\neval_batch_size: 1\n").facts.eval_batch
    assert own is not None
    assert own.value == 1


def test_keys_of_a_plugin_of_ones_own_are_not_judged() -> None:
    assert codes("fancy_loss_scale: 2\n") == {"KEY002"}
    assert codes("plugins:\n  - my_company.FancyPlugin\nfancy_loss_scale: 2\n") == set()


def test_a_removed_key_with_the_value_that_holds_anyway_is_no_finding() -> None:
    full = "fsdp_version: 2\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n"
    assert codes(full) == set()
    assert codes(full.replace("FULL_SHARD", "SHARD_GRAD_OP")) == {"KEY005"}
    assert codes(full.replace("FULL_SHARD", "SHARD_GRAD_OP"), target=(0, 12, 0)) == set()


def test_a_key_that_a_later_release_reads_is_dropped_by_an_earlier_one() -> None:
    text = "gradient_checkpointing: true\nselective_checkpointing: true\n"
    assert codes(text) == set()
    assert codes(text, target=(0, 17, 0)) == {"KEY002"}


def test_a_key_is_refused_from_its_release_on() -> None:
    assert codes("unsloth_lora_mlp: true\n") == {"KEY101"}
    assert codes("unsloth_lora_mlp: true\n", target=(0, 16, 1)) == set()


def test_sdpa_has_no_mask_from_the_release_on_that_replaces_it_on_packed_rows() -> None:
    text = "sequence_len: 16384\nsample_packing: true\nattn_implementation: sdpa\n"
    assert codes(text) == set()
    assert codes(text + "sdpa_varlen: false\n") == {"PK101"}
    assert codes(text, target=(0, 17, 0)) == {"PK101"}


def test_a_switch_that_another_program_fills_in_is_not_taken_for_off() -> None:
    assert codes("adapter: ${ADAPTER}\nlora_r: 8\n") == set()
