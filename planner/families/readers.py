"""How the configuration of each family reads. Defaults are those of the family's own configuration class.

Source: the configuration and modelling files of transformers 5.24, per family.
"""

from collections.abc import Mapping
from typing import Any

from planner import validation
from planner.architecture import Architecture, Experts, LatentAttention, Norm, Positions
from planner.families.checks import Config, ConfigError


def llama_like(family: str, c: Config, **changes: Any) -> Architecture:
    """The common shape: RMS norms, rotary positions, gated feed-forward; `changes` are what a family has otherwise."""
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


def _windows_of(c: Config) -> tuple[bool, ...]:
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


def _qwen_windows(c: Config) -> dict[str, Any]:
    """Qwen's windows: off by default, and otherwise in the layers from `max_window_layers` on."""
    if not (c.get("use_sliding_window") and c.get("sliding_window", _QWEN_WINDOW)):
        return {}
    from_layer = c.get("max_window_layers", _QWEN_WINDOWS_FROM)
    windowed = _windows_of(c) or tuple(layer >= from_layer for layer in range(c["num_hidden_layers"]))
    return {"sliding_window": c.get("sliding_window", _QWEN_WINDOW), "windowed": windowed}


_QWEN_WINDOW, _QWEN_WINDOWS_FROM = 4096, 28


def qwen2(c: Config) -> Architecture:
    """Qwen 2 and 2.5: biases on queries, keys and values."""
    return llama_like("qwen2", c, attention_bias=True, output_bias=False, **_qwen_windows(c))


def qwen3(c: Config) -> Architecture:
    """Qwen 3: queries and keys are normalized."""
    return llama_like("qwen3", c, qk_norm=True, **_qwen_windows(c))


def gemma(family: str, c: Config, **changes: Any) -> Architecture:
    """Gemma: a tied output matrix."""
    activation = c.get("hidden_activation") or c.get("hidden_act", "gelu_pytorch_tanh")
    return llama_like(family, c, activation=activation, tied=c.get("tie_word_embeddings", True), **changes)


def gemma2(c: Config) -> Architecture:
    """Gemma 2: norms around both halves, capped scores and logits, every second layer with a window."""
    return gemma(
        "gemma2",
        c,
        norms_per_block=4,
        attention_softcap=c.get("attn_logit_softcapping", 50.0) is not None,
        logit_softcap=c.get("final_logit_softcapping", 30.0) is not None,
        sliding_window=c.get("sliding_window", 4096) or 0,
        full_attention_every=2,
        windowed=_windows_of(c),
    )


def gemma3(c: Config) -> Architecture:
    """Gemma 3, text: norms around both halves, five layers with a window to one without."""
    return gemma(
        "gemma3",
        c,
        norms_per_block=4,
        qk_norm=True,
        sliding_window=c.get("sliding_window", 4096) or 0,
        full_attention_every=c.get("sliding_window_pattern") or 6,
        windowed=_windows_of(c),
    )


def mixtral(c: Config) -> Architecture:
    """Mixtral: experts in every layer."""
    experts = Experts(count=c["num_local_experts"], chosen=c["num_experts_per_tok"], ffn=c["intermediate_size"])
    return llama_like("mixtral", c, experts=experts, sliding_window=c.get("sliding_window") or 0)


def qwen3_moe(c: Config) -> Architecture:
    """Qwen 3 with experts in every layer."""
    experts = Experts(
        count=c.get("num_experts") or c["num_local_experts"],
        chosen=c["num_experts_per_tok"],
        ffn=c["moe_intermediate_size"],
    )
    return llama_like("qwen3_moe", c, experts=experts, qk_norm=True)


def deepseek(family: str, c: Config) -> Architecture:
    """DeepSeek V2 and V3: latent attention, experts after some dense layers."""
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
    return llama_like(family, c, experts=experts, latent=latent, head_width=c["v_head_dim"])


def phi3(c: Config) -> Architecture:
    """Phi 3: one matrix for q, k and v, and one for gate and up."""
    return llama_like(
        "phi3",
        c,
        fused_qkv=True,
        fused_gate=True,
        partial_rotary=True,
        dropout=c.get("resid_pdrop", 0.0),
        sliding_window=c.get("sliding_window") or 0,
    )


def phi(c: Config) -> Architecture:
    """Phi 1 and 2: one norm, attention and feed-forward beside each other."""
    return llama_like(
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


def gpt2(c: Config) -> Architecture:
    """GPT-2: learned positions, one matrix for q, k and v."""
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


def gpt_bigcode(c: Config) -> Architecture:
    """GPT-BigCode: GPT-2 with one head of keys and values, and another activation where none is named."""
    base = gpt2({"activation_function": "gelu_pytorch_tanh", **c})
    kv_heads = 1 if c.get("multi_query", True) else base.heads
    return Architecture(
        **{
            **{name: getattr(base, name) for name in Architecture.__slots__},
            "family": "gpt_bigcode",
            "kv_heads": kv_heads,
        }
    )


def gpt_neox(c: Config) -> Architecture:
    """GPT-NeoX and Pythia: attention and feed-forward beside each other, each with a norm."""
    return llama_like(
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


def opt(c: Config) -> Architecture:
    """OPT: learned positions, ReLU."""
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


def falcon(c: Config) -> Architecture:
    """Falcon, old and new: attention and feed-forward beside each other."""
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


def bert(c: Config) -> Architecture:
    """BERT with its head for masked tokens: norms after each sum, segments."""
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
