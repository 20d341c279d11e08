"""Transformer architectures as numbers: what a configuration says about sizes, without building the model.

`architecture_of` reads the configuration of a known family, with that family's own defaults where a key is absent.
What it does not know it does not guess: the caller is told, and can trace the model instead.

Source: the configuration and modelling files of transformers 5.24, per family.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Any

from planner import validation
from planner.errors import PlannerError


class Norm(StrEnum):
    """The normalization of a block."""

    RMS = "rmsnorm"
    LAYER = "layernorm"


class Positions(StrEnum):
    """How positions enter; what is learned has parameters."""

    ROPE = "rope"
    LEARNED = "learned"
    ALIBI = "alibi"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts in place of the feed-forward layer.

    Attributes:
        count: routed experts in a layer.
        chosen: of them, for each token.
        ffn: their intermediate size.
        shared_ffn: intermediate size of the experts every token passes, all together; 0 for none.
        dense_layers: first layers that have a plain feed-forward layer instead.
    """

    count: int
    chosen: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values come from one small vector per token.

    Attributes:
        kv_rank: the size of that vector.
        q_rank: the same for queries; 0 if they are projected directly.
        rope_width: the part of each head that carries positions, shared by all key heads.
        plain_width: the part of each query and key head that does not.
        value_width: of each value head.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.
    """

    kv_rank: int
    q_rank: int
    rope_width: int
    plain_width: int
    value_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A transformer's sizes and choices.

    Attributes:
        family: such as "llama".
        layers: blocks.
        hidden: width of the residual stream.
        heads, kv_heads, head_width: of attention.
        ffn: intermediate size of the feed-forward layer.
        vocab: rows of the embedding.
        gated: the feed-forward layer has a gate beside its first matrix.
        activation: its function, such as "silu" or "gelu".
        norm: of the blocks.
        norms_per_block: 2, or 4 where outputs are normalized too, or 1 where attention and feed-forward share one.
        parallel: attention and feed-forward read the same input.
        tied: the output matrix is the embedding.
        causal: a decoder; otherwise an encoder, whose norms come after each residual sum.
        positions: how positions enter.
        max_positions: rows of a learned position table.
        attention_bias, output_bias, mlp_bias, head_bias: of the linear layers: q, k and v; attention's output; the
            feed-forward layer; the output matrix.
        fused_qkv, fused_gate: one matrix serves q, k and v; gate and up.
        qk_norm: queries and keys are normalized, over each head's width.
        partial_rotary: positions turn a part of each head, which is then joined to the rest.
        dropout: probability of the dropouts before residual sums, in training.
        attention_dropout: of the attention weights.
        attention_softcap, logit_softcap: scores or logits pass a tanh.
        sliding_window: tokens that attention reaches back; 0 for all.
        full_attention_every: with a window, each how many layers attend to everything; 0 for none.
        windowed: with a window, for each layer whether it has it; empty where `full_attention_every` says.
        experts: the mixture of experts, or None.
        latent: latent attention, or None.
        token_types: rows of BERT's segment table.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    vocab: int
    gated: bool = True
    activation: str = "silu"
    norm: Norm = Norm.RMS
    norms_per_block: int = 2
    parallel: bool = False
    tied: bool = False
    causal: bool = True
    positions: Positions = Positions.ROPE
    max_positions: int = 0
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    fused_qkv: bool = False
    fused_gate: bool = False
    qk_norm: bool = False
    partial_rotary: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    attention_softcap: bool = False
    logit_softcap: bool = False
    sliding_window: int = 0
    full_attention_every: int = 0
    windowed: tuple[bool, ...] = ()
    experts: Experts | None = None
    latent: LatentAttention | None = None
    token_types: int = 0

    @property
    def q_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_width

    @property
    def windows(self) -> tuple[int, ...]:
        """For each layer, the tokens that its attention reaches back; 0 for all."""
        every = self.full_attention_every
        windowed = self.windowed or tuple(not (every and (layer + 1) % every == 0) for layer in range(self.layers))
        return tuple(self.sliding_window if has_window else 0 for has_window in windowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A parameter: its module's name within the block, or within the model, and its shape.

    Attributes:
        name: such as "q_proj".
        shape: as PyTorch holds it.
        is_linear: the weight of a linear layer, which autocast casts and LoRA adapts.
        is_expert: one of a layer's experts, of which `copies` exist.
        copies: how many of this shape.
    """

    name: str
    shape: tuple[int, ...]
    is_linear: bool = False
    is_expert: bool = False
    copies: int = 1

    @property
    def elements(self) -> int:
        return prod(self.shape) * self.copies


def _linear(name: str, inputs: int, outputs: int, *, bias: bool, copies: int = 1, expert: bool = False) -> list[Matrix]:
    found = [Matrix(name=name, shape=(outputs, inputs), is_linear=True, is_expert=expert, copies=copies)]
    if bias:
        found.append(Matrix(name=f"{name}.bias", shape=(outputs,), is_expert=expert, copies=copies))
    return found


def _norm(a: Architecture, name: str, width: int) -> list[Matrix]:
    found = [Matrix(name=name, shape=(width,))]
    if a.norm is Norm.LAYER:
        found.append(Matrix(name=f"{name}.bias", shape=(width,)))
    return found


def attention_parameters(a: Architecture) -> tuple[Matrix, ...]:
    """The parameters of one block's attention."""
    found: list[Matrix] = []
    if (latent := a.latent) is not None:
        q_out = a.heads * (latent.plain_width + latent.rope_width)
        if latent.q_rank:
            found += _linear("q_a_proj", a.hidden, latent.q_rank, bias=a.attention_bias)
            found += [Matrix(name="q_a_norm", shape=(latent.q_rank,))]
            found += _linear("q_b_proj", latent.q_rank, q_out, bias=False)
        else:
            found += _linear("q_proj", a.hidden, q_out, bias=False)
        found += _linear("kv_a_proj", a.hidden, latent.kv_rank + latent.rope_width, bias=a.attention_bias)
        found += [Matrix(name="kv_a_norm", shape=(latent.kv_rank,))]
        found += _linear("kv_b_proj", latent.kv_rank, a.heads * (latent.plain_width + latent.value_width), bias=False)
        found += _linear("o_proj", a.heads * latent.value_width, a.hidden, bias=a.output_bias)
        return tuple(found)
    if a.fused_qkv:
        found += _linear("qkv_proj", a.hidden, a.q_width + 2 * a.kv_width, bias=a.attention_bias)
    else:
        found += _linear("q_proj", a.hidden, a.q_width, bias=a.attention_bias)
        found += _linear("k_proj", a.hidden, a.kv_width, bias=a.attention_bias)
        found += _linear("v_proj", a.hidden, a.kv_width, bias=a.attention_bias)
    found += _linear("o_proj", a.q_width, a.hidden, bias=a.output_bias)
    if a.qk_norm:
        found += [Matrix(name="q_norm", shape=(a.head_width,)), Matrix(name="k_norm", shape=(a.head_width,))]
    return tuple(found)


def _feed_forward(a: Architecture, width: int, *, prefix: str = "", copies: int = 1, expert: bool) -> list[Matrix]:
    found: list[Matrix] = []
    if a.gated and a.fused_gate:
        found += _linear(f"{prefix}gate_up_proj", a.hidden, 2 * width, bias=a.mlp_bias, copies=copies, expert=expert)
    else:
        if a.gated:
            found += _linear(f"{prefix}gate_proj", a.hidden, width, bias=a.mlp_bias, copies=copies, expert=expert)
        found += _linear(f"{prefix}up_proj", a.hidden, width, bias=a.mlp_bias, copies=copies, expert=expert)
    return [*found, *_linear(f"{prefix}down_proj", width, a.hidden, bias=a.mlp_bias, copies=copies, expert=expert)]


def feed_forward_parameters(a: Architecture, layer: int) -> tuple[Matrix, ...]:
    """The parameters of the feed-forward layer, or of router and experts, of one block."""
    experts = a.experts
    if experts is None or layer < experts.dense_layers:
        return tuple(_feed_forward(a, a.ffn, expert=False))
    found = [Matrix(name="router", shape=(experts.count, a.hidden), is_linear=True)]
    found += _feed_forward(a, experts.ffn, prefix="experts.", copies=experts.count, expert=True)
    if experts.shared_ffn:
        found += _feed_forward(a, experts.shared_ffn, prefix="shared_expert.", expert=False)
    return tuple(found)


def block_parameters(a: Architecture, layer: int) -> tuple[Matrix, ...]:
    """The parameters of one block."""
    norms = [m for place in range(a.norms_per_block) for m in _norm(a, f"norm_{place + 1}", a.hidden)]
    return (*norms, *attention_parameters(a), *feed_forward_parameters(a, layer))


def embedding_parameters(a: Architecture) -> tuple[Matrix, ...]:
    """The parameters before the first block."""
    found = [Matrix(name="embed_tokens", shape=(a.vocab, a.hidden))]
    if a.positions is Positions.LEARNED:
        found.append(Matrix(name="embed_positions", shape=(a.max_positions, a.hidden)))
    if a.token_types:
        found.append(Matrix(name="embed_types", shape=(a.token_types, a.hidden)))
    if not a.causal:
        found += _norm(a, "embed_norm", a.hidden)
    return tuple(found)


def head_parameters(a: Architecture) -> tuple[Matrix, ...]:
    """The parameters after the last block, without a tied output matrix."""
    found: list[Matrix] = []
    if a.causal:
        found += _norm(a, "norm", a.hidden)
    else:  # BERT's prediction head: a linear layer, a norm, and the output's bias
        found += [*_linear("transform", a.hidden, a.hidden, bias=True), *_norm(a, "transform_norm", a.hidden)]
    if not a.tied:
        found += _linear("lm_head", a.hidden, a.vocab, bias=a.head_bias)
    elif a.head_bias:
        found.append(Matrix(name="lm_head.bias", shape=(a.vocab,)))
    return tuple(found)


def parameter_count(a: Architecture) -> int:
    """All parameters, tied ones once."""
    blocks = sum(m.elements for layer in range(a.layers) for m in block_parameters(a, layer))
    return blocks + sum(m.elements for m in (*embedding_parameters(a), *head_parameters(a)))


# -- from a transformers configuration


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


_Config = Mapping[str, Any]

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


def _check_config(config: _Config) -> None:
    """Returns when every size is a whole number in its range, and every probability one.

    Raises:
        ConfigError: for the first key that does not fit.
    """
    for key, value in config.items():
        if value is None and (key in _MAY_BE_NULL or key not in _LEAST_BY_KEY):
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


def _check_known(family: str, config: _Config) -> None:
    """Returns when nothing in the configuration asks for what the family has not got here; raises ConfigError."""
    for key, values in _ONLY_KNOWN_WITH.get(family, {}).items():
        if key in config and config[key] not in values:
            message = f"{validation.found(config[key])} is not known in closed form"
            raise ConfigError(message, key=key)
    if family == "opt" and config.get("word_embed_proj_dim", config["hidden_size"]) != config["hidden_size"]:
        message = f"an embedding of another width than the model's {config['hidden_size']} is not known in closed form"
        raise ConfigError(message, key="word_embed_proj_dim")


def _check_heads(a: Architecture) -> None:
    """Returns when heads have a width and share keys and values evenly; raises ConfigError otherwise."""
    if a.head_width < 1:
        raise ConfigError(f"a width of {a.hidden} cannot be split into {a.heads} heads")
    if a.heads % a.kv_heads:
        raise ConfigError(f"{a.heads} attention heads cannot share {a.kv_heads} key and value heads evenly")


def _llama_like(family: str, c: _Config, **changes: Any) -> Architecture:
    heads = c["num_attention_heads"]
    hidden = c["hidden_size"]
    settings: dict[str, Any] = {
        "family": family,
        "layers": c["num_hidden_layers"],
        "hidden": hidden,
        "heads": heads,
        "kv_heads": c.get("num_key_value_heads") or heads,
        "head_width": c.get("head_dim") or hidden // heads,
        "ffn": c["intermediate_size"],
        "vocab": c["vocab_size"],
        "activation": c.get("hidden_act", "silu"),
        "tied": c.get("tie_word_embeddings", False),
        "attention_bias": c.get("attention_bias", False),
        "output_bias": c.get("attention_bias", False),
        "mlp_bias": c.get("mlp_bias", False),
        "attention_dropout": c.get("attention_dropout", 0.0),
    }
    return Architecture(**{**settings, **changes})


def _windowed(c: _Config) -> tuple[bool, ...]:
    """For each layer whether `layer_types` gives it a window; empty without that key."""
    kinds = c.get("layer_types")
    if kinds is None:
        return ()
    if not isinstance(kinds, list | tuple) or len(kinds) != c["num_hidden_layers"]:
        raise ConfigError(f"expected a list of {c['num_hidden_layers']} kinds, one a layer", key="layer_types")
    for kind in kinds:
        if kind not in list(_WINDOWED_BY_KIND):
            raise ConfigError(
                f"expected {' or '.join(_WINDOWED_BY_KIND)}, found {validation.found(kind)}", key="layer_types"
            )
    return tuple(_WINDOWED_BY_KIND[kind] for kind in kinds)


_WINDOWED_BY_KIND: Mapping[str, bool] = {"sliding_attention": True, "full_attention": False}


def _qwen_windows(c: _Config) -> dict[str, Any]:
    """Qwen's windows: off by default, and otherwise in the layers from `max_window_layers` on."""
    if not (c.get("use_sliding_window") and c.get("sliding_window", _QWEN_WINDOW)):
        return {}
    from_layer = c.get("max_window_layers", _QWEN_WINDOWS_FROM)
    windowed = _windowed(c) or tuple(layer >= from_layer for layer in range(c["num_hidden_layers"]))
    return {"sliding_window": c.get("sliding_window", _QWEN_WINDOW), "windowed": windowed}


_QWEN_WINDOW, _QWEN_WINDOWS_FROM = 4096, 28


def _qwen2(c: _Config) -> Architecture:
    return _llama_like("qwen2", c, attention_bias=True, output_bias=False, **_qwen_windows(c))


def _qwen3(c: _Config) -> Architecture:
    return _llama_like("qwen3", c, qk_norm=True, **_qwen_windows(c))


def _gemma(family: str, c: _Config, **changes: Any) -> Architecture:
    activation = c.get("hidden_activation") or c.get("hidden_act", "gelu_pytorch_tanh")
    return _llama_like(family, c, activation=activation, tied=c.get("tie_word_embeddings", True), **changes)


def _gemma2(c: _Config) -> Architecture:
    return _gemma(
        "gemma2",
        c,
        norms_per_block=4,
        attention_softcap=c.get("attn_logit_softcapping", 50.0) is not None,
        logit_softcap=c.get("final_logit_softcapping", 30.0) is not None,
        sliding_window=c.get("sliding_window", 4096) or 0,
        full_attention_every=2,
        windowed=_windowed(c),
    )


def _gemma3(c: _Config) -> Architecture:
    return _gemma(
        "gemma3",
        c,
        norms_per_block=4,
        qk_norm=True,
        sliding_window=c.get("sliding_window", 4096) or 0,
        full_attention_every=c.get("sliding_window_pattern") or 6,
        windowed=_windowed(c),
    )


def _mixtral(c: _Config) -> Architecture:
    experts = Experts(count=c["num_local_experts"], chosen=c["num_experts_per_tok"], ffn=c["intermediate_size"])
    return _llama_like("mixtral", c, experts=experts, sliding_window=c.get("sliding_window") or 0)


def _qwen3_moe(c: _Config) -> Architecture:
    experts = Experts(
        count=c.get("num_experts") or c["num_local_experts"],
        chosen=c["num_experts_per_tok"],
        ffn=c["moe_intermediate_size"],
    )
    return _llama_like("qwen3_moe", c, experts=experts, qk_norm=True)


def _deepseek(family: str, c: _Config) -> Architecture:
    experts = Experts(
        count=c["n_routed_experts"],
        chosen=c["num_experts_per_tok"],
        ffn=c["moe_intermediate_size"],
        shared_ffn=c["moe_intermediate_size"] * (c.get("n_shared_experts") or 0),
        dense_layers=c.get("first_k_dense_replace", 0),
    )
    latent = LatentAttention(
        kv_rank=c["kv_lora_rank"],
        q_rank=c.get("q_lora_rank") or 0,
        rope_width=c["qk_rope_head_dim"],
        plain_width=c["qk_nope_head_dim"],
        value_width=c["v_head_dim"],
    )
    return _llama_like(family, c, experts=experts, latent=latent, head_width=c["v_head_dim"])


def _phi3(c: _Config) -> Architecture:
    return _llama_like(
        "phi3",
        c,
        fused_qkv=True,
        fused_gate=True,
        partial_rotary=True,
        dropout=c.get("resid_pdrop", 0.0),
        sliding_window=c.get("sliding_window") or 0,
    )


def _phi(c: _Config) -> Architecture:
    return _llama_like(
        "phi",
        c,
        gated=False,
        activation=c.get("hidden_act", "gelu_new"),
        norm=Norm.LAYER,
        norms_per_block=1,
        parallel=True,
        partial_rotary=True,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        head_bias=True,
        dropout=c.get("resid_pdrop", 0.0),
    )


def _gpt2(c: _Config) -> Architecture:
    hidden, heads = c["n_embd"], c["n_head"]
    return Architecture(
        family="gpt2",
        layers=c["n_layer"],
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_width=hidden // heads,
        ffn=c.get("n_inner") or 4 * hidden,
        vocab=c["vocab_size"],
        gated=False,
        activation=c.get("activation_function", "gelu_new"),
        norm=Norm.LAYER,
        tied=c.get("tie_word_embeddings", True),
        positions=Positions.LEARNED,
        max_positions=c["n_positions"],
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        fused_qkv=True,
        dropout=c.get("resid_pdrop", 0.1),
        attention_dropout=c.get("attn_pdrop", 0.1),
    )


def _gpt_bigcode(c: _Config) -> Architecture:
    base = _gpt2(c)
    kv_heads = 1 if c.get("multi_query", True) else base.heads
    return Architecture(
        **{
            **{name: getattr(base, name) for name in Architecture.__slots__},
            "family": "gpt_bigcode",
            "kv_heads": kv_heads,
        }
    )


def _gpt_neox(c: _Config) -> Architecture:
    return _llama_like(
        "gpt_neox",
        c,
        kv_heads=c["num_attention_heads"],
        gated=False,
        activation=c.get("hidden_act", "gelu"),
        norm=Norm.LAYER,
        parallel=c.get("use_parallel_residual", True),
        partial_rotary=True,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        fused_qkv=True,
        dropout=c.get("hidden_dropout", 0.0),
    )


def _opt(c: _Config) -> Architecture:
    return Architecture(
        family="opt",
        layers=c["num_hidden_layers"],
        hidden=c["hidden_size"],
        heads=c["num_attention_heads"],
        kv_heads=c["num_attention_heads"],
        head_width=c["hidden_size"] // c["num_attention_heads"],
        ffn=c["ffn_dim"],
        vocab=c["vocab_size"],
        gated=False,
        activation=c.get("activation_function", "relu"),
        norm=Norm.LAYER,
        tied=c.get("tie_word_embeddings", True),
        positions=Positions.LEARNED,
        max_positions=c["max_position_embeddings"] + 2,  # OPT's table starts two rows later
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        dropout=c.get("dropout", 0.1),
        attention_dropout=c.get("attention_dropout", 0.0),
    )


def _falcon(c: _Config) -> Architecture:
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    is_new = c.get("new_decoder_architecture", False)
    kv_heads = (c.get("num_kv_heads") or heads) if is_new else (1 if c.get("multi_query", True) else heads)
    return Architecture(
        family="falcon",
        layers=c["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_width=hidden // heads,
        ffn=c.get("ffn_hidden_size") or 4 * hidden,
        vocab=c["vocab_size"],
        gated=False,
        activation=c.get("activation", "gelu"),
        norm=Norm.LAYER,
        norms_per_block=2 if is_new else 1,
        parallel=c.get("parallel_attn", True),
        tied=c.get("tie_word_embeddings", True),
        positions=Positions.ALIBI if c.get("alibi", False) else Positions.ROPE,
        attention_bias=c.get("bias", False),
        output_bias=c.get("bias", False),
        mlp_bias=c.get("bias", False),
        fused_qkv=True,
        dropout=c.get("hidden_dropout", 0.0),
        attention_dropout=c.get("attention_dropout", 0.0),
    )


def _bert(c: _Config) -> Architecture:
    heads = c["num_attention_heads"]
    return Architecture(
        family="bert",
        layers=c["num_hidden_layers"],
        hidden=c["hidden_size"],
        heads=heads,
        kv_heads=heads,
        head_width=c["hidden_size"] // heads,
        ffn=c["intermediate_size"],
        vocab=c["vocab_size"],
        gated=False,
        activation=c.get("hidden_act", "gelu"),
        norm=Norm.LAYER,
        tied=c.get("tie_word_embeddings", True),
        causal=False,
        positions=Positions.LEARNED,
        max_positions=c["max_position_embeddings"],
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        head_bias=True,
        dropout=c.get("hidden_dropout_prob", 0.1),
        attention_dropout=c.get("attention_probs_dropout_prob", 0.1),
        token_types=c.get("type_vocab_size", 2),
    )


_LLAMA_DEFAULTS: _Config = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
_GPT2_DEFAULTS: _Config = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}

# By transformers' model type: how its configuration reads, and the defaults that matter.
_FAMILIES: Mapping[str, tuple[Any, _Config]] = {
    "llama": (lambda c: _llama_like("llama", c), _LLAMA_DEFAULTS),
    "mistral": (
        lambda c: _llama_like("mistral", c, sliding_window=c.get("sliding_window") or 0),
        {**_LLAMA_DEFAULTS, "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096},
    ),
    "granite": (lambda c: _llama_like("granite", c), _LLAMA_DEFAULTS),
    "qwen2": (_qwen2, {**_LLAMA_DEFAULTS, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32}),
    "qwen3": (
        _qwen3,
        {
            **_LLAMA_DEFAULTS,
            "vocab_size": 151936,
            "intermediate_size": 22016,
            "num_key_value_heads": 32,
            "head_dim": 128,
        },
    ),
    "gemma": (
        lambda c: _gemma("gemma", c),
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
        _gemma2,
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
        _gemma3,
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
    "phi3": (_phi3, {**_LLAMA_DEFAULTS, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192}),
    "phi": (
        _phi,
        {
            "vocab_size": 51200,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
        },
    ),
    "gpt2": (_gpt2, _GPT2_DEFAULTS),
    "gpt_bigcode": (_gpt_bigcode, _GPT2_DEFAULTS),
    "gpt_neox": (
        _gpt_neox,
        {
            "vocab_size": 50432,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
        },
    ),
    "opt": (
        _opt,
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
        _falcon,
        {"vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71},
    ),
    "bert": (
        _bert,
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
        _mixtral,
        {
            **_LLAMA_DEFAULTS,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    "qwen3_moe": (
        _qwen3_moe,
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
        lambda c: _deepseek("deepseek_v2", c),
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
        lambda c: _deepseek("deepseek_v3", c),
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


def architecture_of(name: str, config: Mapping[str, Any]) -> Architecture:
    """The architecture of a transformers class with that configuration.

    Args:
        name: a class such as "LlamaForCausalLM", or a model type such as "llama".
        config: keys of its configuration; absent ones have the family's defaults.

    Raises:
        UnknownArchitectureError: the family is not described here.
        ConfigError: a size is none, or does not go with another; or a key asks for what is not described here.
    """
    family = _CLASSES.get(name, name)
    if family not in _FAMILIES:
        raise UnknownArchitectureError(name)
    read, defaults = _FAMILIES[family]
    settings = {**defaults, **config}
    _check_config(settings)
    _check_known(family, settings)
    found: Architecture = read(settings)
    _check_heads(found)
    return found


def known_classes() -> tuple[str, ...]:
    """The transformers classes that `architecture_of` knows, sorted."""
    return tuple(sorted(_CLASSES))
