"""What a configuration may say: sizes in their range, and nothing that would make another model of it."""

import difflib
from collections.abc import Mapping, Set
from typing import Any

from planner import validation
from planner.architecture import Architecture
from planner.errors import PlannerError


class UnknownArchitectureError(PlannerError):
    """The configuration is of a family that is not described here; `family` is its name."""

    def __init__(self, family: str) -> None:
        super().__init__(f"{family} is not an architecture that is known in closed form")
        self.family = family


class ConfigError(PlannerError):
    """A value of a configuration that no model can have; `key` is its key, or None if it is about several."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


Config = Mapping[str, Any]

_LARGEST_SIZE = 10**9  # no axis of a model is longer
MOST_LAYERS = 10**4
# Sizes, by how small they may be.
_LEAST_BY_KEY: Mapping[str, int] = {
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "n_positions", "sliding_window_pattern"), 1),
    **dict.fromkeys(("hidden_size", "n_embd", "num_hidden_layers", "n_layer"), 1),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads", "num_kv_heads", "head_dim"), 1),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "moe_intermediate_size"), 1),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok"), 1),
    **dict.fromkeys(("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 1),
    **dict.fromkeys(("sliding_window", "max_window_layers", "q_lora_rank", "n_shared_experts"), 0),
    **dict.fromkeys(("first_k_dense_replace", "type_vocab_size"), 0),
    "word_embed_proj_dim": 1,
}
_MOST_BY_KEY: Mapping[str, int] = dict.fromkeys(("num_hidden_layers", "n_layer"), MOST_LAYERS)
_MAY_BE_NULL = {
    *("num_key_value_heads", "num_kv_heads", "head_dim", "n_inner", "ffn_hidden_size", "num_experts"),
    *("sliding_window", "sliding_window_pattern", "q_lora_rank", "n_shared_experts"),
}
_PROBABILITIES = frozenset(
    {
        *("attention_dropout", "resid_pdrop", "attn_pdrop", "embd_pdrop", "dropout", "hidden_dropout"),
        *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    }
)


def check_config(config: Config) -> None:
    """Returns when every size is a whole number in its range, and every probability one.

    Raises:
        ConfigError: for the first key that does not fit.
    """
    for key, value in config.items():
        if value is None and (key in _MAY_BE_NULL or key not in _NEVER_NULL):
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if (least := _LEAST_BY_KEY.get(key)) is not None:
            most = _MOST_BY_KEY.get(key, _LARGEST_SIZE)
            expected = f"a whole number from {least} to {most:,}"
            fits = is_number and isinstance(value, int) and least <= value <= most
        elif key in _PROBABILITIES:
            expected = "a number from 0 to 1"
            fits = is_number and 0 <= value <= 1
        elif key in _FLAGS:
            expected, fits = "true or false", isinstance(value, bool)
        elif key in _NAMES:
            expected, fits = "a name such as silu", isinstance(value, str)
        else:
            continue
        if not fits:
            raise ConfigError(f"expected {expected}, found {validation.found(value)}", key=key)


# What a family's configuration can say that changes its parameters or ops and that is not described here, with the
# values that change nothing. Source: configuration and modelling files of transformers 5.24.
_ONLY_KNOWN_WITH: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "opt": {"do_layer_norm_before": (True,), "enable_bias": (True,), "layer_norm_elementwise_affine": (True,)},
    "qwen3_moe": {"decoder_sparse_step": (1,), "mlp_only_layers": (None, [], ())},
    "falcon": {"num_ln_in_parallel_attn": (None, 2)},
    "phi": {"qk_layernorm": (False,)},
    "gpt2": {"add_cross_attention": (False,)},
    "gpt_bigcode": {"add_cross_attention": (False,)},
    "bert": {"add_cross_attention": (False,)},
    "gpt_neox": {"attention_bias": (True,)},
}
# Of a configuration's flags: anything else than true or false is a mistake that Python would take for one of them.
_FLAGS = frozenset(
    {
        *("tie_word_embeddings", "attention_bias", "mlp_bias", "use_parallel_residual", "multi_query", "parallel_attn"),
        *("new_decoder_architecture", "alibi", "bias", "use_sliding_window"),
    }
)
_NAMES = frozenset({"hidden_act", "hidden_activation", "activation_function", "activation"})
# Gemma's files say null for one of the two keys of its activation.
_NEVER_NULL = (frozenset(_LEAST_BY_KEY) | _PROBABILITIES | _NAMES) - {"hidden_activation"}


def check_known(family: str, config: Config) -> None:
    """Returns when nothing in the configuration asks for what the family has not got here; raises ConfigError."""
    for key, values in _ONLY_KNOWN_WITH.get(family, {}).items():
        if key in config and config[key] not in values:
            message = f"{validation.found(config[key])} is not known in closed form"
            raise ConfigError(message, key=key)
    if family == "opt" and config.get("word_embed_proj_dim", config["hidden_size"]) != config["hidden_size"]:
        message = f"an embedding of another width than the model's {config['hidden_size']} is not known in closed form"
        raise ConfigError(message, key="word_embed_proj_dim")


# Slips of the hand are nearer than this to what was meant. Of all keys of these families' configurations in
# transformers 5.24 that are not read, only those of `_UNREAD` are as near to one that is.
_SLIP_LIKENESS = 0.85
_SLIP_LETTERS = 2  # a slip adds, drops or changes no more
_MOST_COMPARED = 1_000  # keys that are not read; no configuration has a tenth of it
_UNREAD = frozenset({"qk_head_dim", "_sliding_window_pattern"})


def check_names(config: Config, keys_read: Set[str]) -> None:
    """Returns when no key is a slip of one that the family reads and the configuration has not; raises ConfigError.

    What is read is all that decides sizes, so that a slip would be counted with a default; other keys are no matter.
    """
    known = keys_read | _LEAST_BY_KEY.keys() | _PROBABILITIES | _FLAGS | _NAMES | _UNREAD
    absent = {key: frozenset(key) for key in sorted(keys_read - config.keys())}
    # Comparing is slow, and whoever asks a service may send any number of keys.
    for key in sorted(config.keys() - known)[:_MOST_COMPARED]:
        letters = set(key)
        near = [
            other
            for other, its_letters in absent.items()
            if abs(len(other) - len(key)) <= _SLIP_LETTERS and len(its_letters ^ letters) <= _SLIP_LETTERS
        ]
        meant = difflib.get_close_matches(key, near, n=1, cutoff=_SLIP_LIKENESS) if near else []
        if meant:
            raise ConfigError(f"there is no such key, and {meant[0]} is not given", key=key)


def check_heads(a: Architecture) -> None:
    """Returns when heads have a width and share keys and values evenly; raises ConfigError otherwise."""
    if a.head_width < 1:
        raise ConfigError(f"a width of {a.hidden} cannot be split into {a.heads} heads")
    if a.heads % a.kv_heads:
        raise ConfigError(f"{a.heads} attention heads cannot share {a.kv_heads} key and value heads evenly")
