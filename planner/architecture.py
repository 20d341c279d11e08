"""Transformer architectures as numbers, and their parameters; `planner.families` reads them from configurations.

Source: the modelling files of transformers 5.24, per family.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import prod


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
