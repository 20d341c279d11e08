"""Configurations of transformers as architectures: names of keys that are taken, and names that are slips."""

from typing import Any

import pytest

from planner.families import ConfigError, architecture_of, known_classes


@pytest.mark.parametrize(
    ("name", "slip", "meant"),
    [
        ("LlamaForCausalLM", "hidden_siz", "hidden_size"),
        ("LlamaForCausalLM", "num_hiden_layers", "num_hidden_layers"),
        ("Qwen3ForCausalLM", "num_key_value_head", "num_key_value_heads"),
        ("GPT2LMHeadModel", "n_layers", "n_layer"),
        ("MixtralForCausalLM", "num_local_expert", "num_local_experts"),
    ],
)
def test_a_slip_in_a_sizes_name_is_not_counted_with_the_default(name: str, slip: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no such key, and {meant} is not given") as caught:
        architecture_of(name, {slip: 2})

    assert slip == caught.value.key


def test_a_name_that_is_near_to_a_given_one_is_another_key() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4}

    assert architecture_of("LlamaForCausalLM", sizes) == architecture_of("LlamaForCausalLM", {**sizes, "hidden_siz": 3})


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "GPTBigCodeForCausalLM"])
def test_gpt2_takes_its_sizes_under_the_names_of_others_too(name: str) -> None:
    own = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
    others = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
    }

    assert architecture_of(name, own) == architecture_of(name, others)
    assert architecture_of(name, own) == architecture_of(name, {**own, "hidden_size": 128})


def test_a_size_that_is_none_is_named_as_it_was_given() -> None:
    with pytest.raises(ConfigError) as caught:
        architecture_of("GPT2LMHeadModel", {"hidden_size": -1})

    assert "hidden_size" == caught.value.key


@pytest.mark.parametrize("name", known_classes())
def test_no_key_of_a_familys_own_configuration_is_taken_for_a_slip(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    config: dict[str, Any] = getattr(transformers, name).config_class().to_dict()
    for key, value in config.items():
        try:
            architecture_of(name, {key: value})
        except ConfigError as error:
            assert "no such key" not in str(error)
