"""Architectures of known families, from the configurations of transformers. What is not known is said, not guessed."""

from collections.abc import Mapping
from typing import Any

from planner.architecture import Architecture
from planner.families import readers
from planner.families.checks import (
    MOST_LAYERS,
    Config,
    ConfigError,
    UnknownArchitectureError,
    check_config,
    check_heads,
    check_known,
    check_names,
)

_LLAMA_DEFAULTS: Config = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
_GPT2_DEFAULTS: Config = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}

# By transformers' model type: how its configuration reads, and the defaults that matter.
_FAMILIES: Mapping[str, tuple[Any, Config]] = {
    "llama": (lambda c: readers.llama_like("llama", c), _LLAMA_DEFAULTS),
    "mistral": (
        lambda c: readers.llama_like("mistral", c, sliding_window=c.get("sliding_window") or 0),
        {**_LLAMA_DEFAULTS, "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096},
    ),
    "granite": (lambda c: readers.llama_like("granite", c), _LLAMA_DEFAULTS),
    "qwen2": (
        readers.qwen2,
        {**_LLAMA_DEFAULTS, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32},
    ),
    "qwen3": (
        readers.qwen3,
        {
            **_LLAMA_DEFAULTS,
            "vocab_size": 151936,
            "intermediate_size": 22016,
            "num_key_value_heads": 32,
            "head_dim": 128,
        },
    ),
    "gemma": (
        lambda c: readers.gemma("gemma", c),
        {
            "vocab_size": 256000,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 256,
        },
    ),
    "gemma2": (
        readers.gemma2,
        {
            "vocab_size": 256000,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
        },
    ),
    "gemma3_text": (
        readers.gemma3,
        {
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
        },
    ),
    "phi3": (readers.phi3, {**_LLAMA_DEFAULTS, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192}),
    "phi": (
        readers.phi,
        {
            "vocab_size": 51200,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
        },
    ),
    "gpt2": (readers.gpt2, _GPT2_DEFAULTS),
    "gpt_bigcode": (readers.gpt_bigcode, _GPT2_DEFAULTS),
    "gpt_neox": (
        readers.gpt_neox,
        {
            "vocab_size": 50432,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
        },
    ),
    "opt": (
        readers.opt,
        {
            "vocab_size": 50272,
            "hidden_size": 768,
            "ffn_dim": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 2048,
        },
    ),
    "falcon": (
        readers.falcon,
        {"vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71},
    ),
    "bert": (
        readers.bert,
        {
            "vocab_size": 30522,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 512,
        },
    ),
    "mixtral": (
        readers.mixtral,
        {
            **_LLAMA_DEFAULTS,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    "qwen3_moe": (
        readers.qwen3_moe,
        {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "num_local_experts": 128,
        },
    ),
    "deepseek_v2": (
        lambda c: readers.deepseek("deepseek_v2", c),
        {
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "n_routed_experts": 64,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 1407,
            "n_shared_experts": 2,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        },
    ),
    "deepseek_v3": (
        lambda c: readers.deepseek("deepseek_v3", c),
        {
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "n_shared_experts": 1,
            "first_k_dense_replace": 3,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        },
    ),
}

# The classes that train these families as language models.
_CLASSES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "GraniteForCausalLM": "granite",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Phi3ForCausalLM": "phi3",
    "PhiForCausalLM": "phi",
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
    "GPTNeoXForCausalLM": "gpt_neox",
    "OPTForCausalLM": "opt",
    "FalconForCausalLM": "falcon",
    "BertForMaskedLM": "bert",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
}


# Other names that a family's configuration takes for its keys. Source: `attribute_map` of transformers 5.24.
_GPT2_NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
_KEY_BY_OTHER_NAME: Mapping[str, Mapping[str, str]] = {
    "gpt2": _GPT2_NAMES,
    "gpt_bigcode": _GPT2_NAMES,
    "mixtral": {"num_experts": "num_local_experts"},
    "deepseek_v2": {"num_experts": "n_routed_experts"},
    "deepseek_v3": {"num_local_experts": "n_routed_experts"},
}


class _Asked(dict[str, Any]):
    """A configuration that remembers which of its keys a family reads."""

    def __init__(self, settings: Config) -> None:
        super().__init__(settings)
        self.keys_read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.keys_read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_read.add(key)
        return super().get(key, default)


def architecture_of(name: str, config: Mapping[str, Any]) -> Architecture:
    """The architecture of a transformers class with that configuration.

    Args:
        name: a class such as "LlamaForCausalLM", or a model type such as "llama".
        config: keys of its configuration; absent ones have the family's defaults.

    Raises:
        UnknownArchitectureError: the family is not described here.
        ConfigError: a size is none, or does not go with another; a key asks for what is not described here; or it is
            nearly one that the family reads.
    """
    family = _CLASSES.get(name, name)
    if family not in _FAMILIES:
        raise UnknownArchitectureError(name)
    read, defaults = _FAMILIES[family]
    check_config(config)
    other_names = _KEY_BY_OTHER_NAME.get(family, {})
    given = {key: config[name] for name, key in other_names.items() if name in config} | dict(config)
    settings = _Asked({**defaults, **given})
    check_known(family, settings)
    found: Architecture = read(settings)
    check_names(given, settings.keys_read)
    check_heads(found)
    return found


def known_classes() -> tuple[str, ...]:
    """The transformers classes that `architecture_of` knows, sorted."""
    return tuple(sorted(_CLASSES))


__all__ = ["MOST_LAYERS", "ConfigError", "UnknownArchitectureError", "architecture_of", "known_classes"]
