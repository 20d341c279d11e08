"""axolotl configs: which files are recognised, and what they are read to ask for."""

import pytest

from planner.configs.facts import Facts
from planner.linting.engine import Options, lint_text
from tests.linting.dialects.reading import dialect_of, facts_of, values

BASE = "base_model: meta-llama/Llama-3.1-8B\ndatasets:\n  - path: mhenrichsen/alpaca_2k_test\n"
CUT = "plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n"
FULL_SHARD = "fsdp_version: 2\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n"
GRAD_SHARD = FULL_SHARD.replace("FULL_SHARD", "SHARD_GRAD_OP")
PACKED = "sequence_len: 16384\nsample_packing: true\nattn_implementation: sdpa\n"


def facts(text: str) -> Facts:
    return facts_of(BASE + text)


def codes(text: str, target: tuple[int, ...] = (0, 19, 0)) -> set[str]:
    found = lint_text(BASE + text, "a.yaml", Options(target_versions={"axolotl": target}))
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
    assert dialect_of(text) is None


def test_a_dataset_of_pretraining_and_a_length_make_a_config_too() -> None:
    assert dialect_of("base_model: a/b\npretraining_dataset: c4\nsequence_len: 2048\n") == "axolotl"


def test_plain_settings_are_facts_and_so_are_their_defaults() -> None:
    read = facts("sequence_len: 4096\ngradient_accumulation_steps: 8\n")
    assert values(read, "sequence_length", "micro_batch", "accumulation_steps", "optimizer") == {
        "sequence_length": 4096,
        "micro_batch": 1,
        "accumulation_steps": 8,
        "optimizer": "adamw_torch_fused",
    }
    assert read.micro_batch is not None
    assert read.micro_batch.setting is None


@pytest.mark.parametrize(
    ("text", "checkpointing", "is_offloaded"),
    [
        ("", "none", False),
        ("gradient_checkpointing: true\n", "full", False),
        ("gradient_checkpointing: offload\n", "full", True),
        ("gradient_checkpointing: true\nactivation_offloading: true\n", "full", True),
        ("adapter: lora\ngradient_checkpointing: true\nactivation_offloading: true\n", "none", True),
        ("adapter: lora\ngradient_checkpointing: true\nactivation_offloading: hidden_states\n", "full", True),
        ("gradient_checkpointing: true\nselective_checkpointing: true\n", "selective", False),
        ("fsdp_config:\n  activation_checkpointing: true\n", "full", False),
        ("gradient_checkpointing: ${GC}\n", None, None),
    ],
)
def test_offloading_with_an_adapter_takes_the_place_of_recomputation(
    text: str, checkpointing: str | None, is_offloaded: bool | None
) -> None:
    assert values(facts(text), "checkpointing", "activation_offload") == {
        "checkpointing": checkpointing,
        "activation_offload": is_offloaded,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("attn_implementation: eager\n", "eager"),
        ("attn_implementation: kernels-community/flash-attn3\n", "flash"),
        ("attn_implementation: xformers\n", "other"),
        ("flash_attention: true\n", "flash"),
        ("sdp_attention: true\nflash_attention: false\n", "sdpa"),
        ("flex_attention: true\nflash_attention: true\n", "flex"),
    ],
)
def test_the_attention_is_that_of_the_name_or_of_the_first_flag_that_is_on(text: str, expected: str | None) -> None:
    assert values(facts(text), "attention") == {"attention": expected}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "full"),
        ("rl: dpo\n", None),
        ("chunked_cross_entropy: true\n", None),
        ("liger_fused_linear_cross_entropy: true\n", "full"),
        ("plugins:\n  - liger.LigerPlugin\nliger_fused_linear_cross_entropy: true\n", "fused"),
        (CUT, "fused"),
        (CUT + "cut_cross_entropy: false\n", "full"),
    ],
)
def test_a_fused_loss_needs_its_plugin_and_cut_cross_entropy_no_more_than_that(text: str, expected: str | None) -> None:
    assert values(facts(text), "loss") == {"loss": expected}


@pytest.mark.parametrize(
    ("text", "lora", "bits"),
    [
        ("", False, None),
        ("adapter: qlora\nload_in_4bit: true\n", True, 4),
        ("adapter: lora\nload_in_8bit: true\n", True, 8),
        ("adapter: lora\nload_in_4bit: true\n", True, None),
        ("adapter: llama-adapter\n", None, None),
    ],
)
def test_four_bits_go_with_qlora_and_eight_with_lora(text: str, lora: bool | None, bits: int | None) -> None:
    assert values(facts(text), "lora", "quantization_bits") == {"lora": lora, "quantization_bits": bits}


def test_targets_are_known_where_they_are_listed() -> None:
    listed = facts("adapter: lora\nlora_r: 16\nlora_target_modules: [q_proj, v_proj]\n")
    assert values(listed, "lora_rank", "lora_targets") == {"lora_rank": 16, "lora_targets": ("q_proj", "v_proj")}
    all_linear = facts("adapter: lora\nlora_target_linear: true\n")
    assert values(all_linear, "lora_targets") == {"lora_targets": ("all-linear",)}
    assert values(facts("adapter: lora\n"), "lora_targets") == {"lora_targets": None}


@pytest.mark.parametrize(
    ("text", "compute", "parameters"),
    [
        ("bf16: true\n", "bfloat16", "bfloat16"),
        ("bf16: true\ndeepspeed: nowhere.json\n", "bfloat16", None),
        ("bf16: true\nadapter: lora\n", "bfloat16", "bfloat16"),
        ("bf16: true\nadapter: qlora\nload_in_4bit: true\n", "bfloat16", None),
        ("fp16: true\n", "float16", None),
        ("bf16: auto\n", None, None),
    ],
)
def test_parameters_that_are_loaded_in_bfloat16_stay_so_without_a_wrapper(
    text: str, compute: str | None, parameters: str | None
) -> None:
    assert values(facts(text), "compute_dtype", "parameter_dtype") == {
        "compute_dtype": compute,
        "parameter_dtype": parameters,
    }


@pytest.mark.parametrize(
    ("text", "sharding", "is_offloaded"),
    [
        ("", "none", None),
        ("deepspeed: nowhere.json\n", None, None),
        ("fsdp_version: 2\nfsdp_config:\n  offload_params: true\n", "parameters", True),
        ("fsdp_config:\n  fsdp_offload_params: false\n", "parameters", False),
        ("fsdp:\n  - shard_grad_op\n  - auto_wrap\n", "gradients", False),
        ("fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: false\n", "gradients", False),
        ("fsdp: []\n", "none", None),
    ],
)
def test_sharding_is_that_of_fsdp_and_unknown_with_deepspeed(
    text: str, sharding: str | None, is_offloaded: bool | None
) -> None:
    assert values(facts(text), "sharding", "parameter_offload") == {
        "sharding": sharding,
        "parameter_offload": is_offloaded,
    }


@pytest.mark.parametrize(
    ("text", "is_padded"),
    [("", False), ("sample_packing: true\n", True), ("sample_packing: true\npad_to_sequence_len: false\n", False)],
)
def test_rows_that_are_packed_are_padded_unless_told_otherwise(text: str, is_padded: bool) -> None:
    assert values(facts(text), "pad_to_length") == {"pad_to_length": is_padded}


def test_rows_of_preferences_are_not_counted_as_rows_of_text() -> None:
    assert values(facts("rl: dpo\nmicro_batch_size: 4\n"), "micro_batch") == {"micro_batch": None}


def test_evaluation_batches_follow_the_micro_batch() -> None:
    assert values(facts("micro_batch_size: 4\n"), "eval_batch") == {"eval_batch": 4}
    assert values(facts("micro_batch_size: 4\neval_batch_size: 1\n"), "eval_batch") == {"eval_batch": 1}


def test_keys_of_a_plugin_of_ones_own_are_not_judged() -> None:
    assert codes("fancy_loss_scale: 2\n") == {"KEY002"}
    assert codes("plugins:\n  - my_company.FancyPlugin\nfancy_loss_scale: 2\n") == set()


def test_a_removed_key_with_the_value_that_holds_anyway_is_no_finding() -> None:
    assert codes(FULL_SHARD) == set()
    assert codes(GRAD_SHARD) == {"KEY005"}
    assert codes(GRAD_SHARD, target=(0, 12, 0)) == set()


def test_a_key_that_a_later_release_reads_is_dropped_by_an_earlier_one() -> None:
    text = "gradient_checkpointing: true\nselective_checkpointing: true\n"
    assert codes(text) == set()
    assert codes(text, target=(0, 17, 0)) == {"KEY002"}


def test_a_key_is_refused_from_its_release_on() -> None:
    assert codes("unsloth_lora_mlp: true\n") == {"KEY101"}
    assert codes("unsloth_lora_mlp: true\n", target=(0, 16, 1)) == set()


def test_sdpa_has_no_mask_from_the_release_on_that_replaces_it_on_packed_rows() -> None:
    assert codes(PACKED) == set()
    assert codes(PACKED + "sdpa_varlen: false\n") == {"PK101"}
    assert codes(PACKED, target=(0, 17, 0)) == {"PK101"}


def test_four_bits_are_ignored_with_lora_from_the_release_on_that_asks_for_qlora() -> None:
    text = "adapter: lora\nlora_r: 8\nload_in_4bit: true\n"
    assert codes(text) == {"LO102"}
    assert codes(text, target=(0, 12, 2)) == set()


def test_a_switch_that_another_program_fills_in_is_not_taken_for_off() -> None:
    assert codes("adapter: ${ADAPTER}\nlora_r: 8\n") == set()
