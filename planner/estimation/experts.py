"""Mixtures of experts and latent attention as tapes: what a block has in place of its dense layers.

Routing is followed as if every expert got as many tokens, times `Computation.imbalance` for the rank that is meant;
what a real router does with real data is not known before. Left out: auxiliary losses and counts of tokens, which are
small.

Source: transformers 5.24, integrations/moe.py (`grouped_mm_experts_forward`) and the modelling files of mixtral,
qwen3_moe, deepseek_v2 and deepseek_v3; for the exchange of tokens, Megatron-LM,
core/transformer/moe/token_dispatcher.py (`MoEAlltoAllTokenDispatcher`).
"""

from collections.abc import Callable
from functools import partial
from math import ceil

from planner.architecture import Architecture, Experts, LatentAttention
from planner.estimation.blocks import Computation, Kernels, Writer
from planner.estimation.tape import Size, Tensor, size
from planner.units import DTYPE_BYTES

_FP32 = "float32"
# Families whose routing probabilities go back to the model's dtype before experts' outputs are multiplied by them.
# Source: modeling_qwen3_moe.py, `Qwen3MoeTopKRouter.forward`.
_NARROW_PROBABILITIES = frozenset({"qwen3_moe"})
# Families whose router computes in float32, from a copy of its input. Source: modeling_deepseek_v3.py,
# `DeepseekV3TopkRouter.forward`, and modeling_deepseek_v2.py.
_WIDE_ROUTERS = frozenset({"deepseek_v2", "deepseek_v3"})
# What an assignment of a token to an expert has besides, in int64: the order, its inverse, the token, and the expert.
_INDICES = 4


class ExpertWriter(Writer):
    """Writes blocks with latent attention, with experts, or with both.

    Args:
        a, c: as for `Writer`.
        has_experts: this block is not one of the first, dense ones.
    """

    def __init__(self, a: Architecture, c: Computation, *, has_experts: bool) -> None:
        super().__init__(a, c)
        self.experts = a.experts if has_experts else None

    def fed(self, x: Tensor) -> Tensor:
        return super().fed(x) if self.experts is None else self.expert_layer(x, self.experts)

    def attention(self, x: Tensor) -> Tensor:
        return super().attention(x) if self.a.latent is None else self.latent_attention(x, self.a.latent)

    # -- experts

    def route(self, x: Tensor, experts: Experts) -> Tensor:
        """The probabilities of each token's chosen experts."""
        tokens = x.size.factors[0][1]
        scores = size(tokens=tokens, experts=experts.count)
        seen = self.cast(x, _FP32, "router input in float32") if self.a.family in _WIDE_ROUTERS else x
        logits = self.linear(seen, "router", scores, weight=experts.count * self.a.hidden)
        wide = self.cast(logits, _FP32, "router logits in float32")
        probabilities = self.tape.op("router probabilities", [wide], scores, _FP32, saves_output=True)
        chosen = size(tokens=tokens, chosen=experts.chosen)
        indices = [("indices of experts", chosen, "int64")]
        weights = self.tape.op("router weights", [probabilities], chosen, _FP32, saves_output=True, extra=indices)
        return self.cast(weights, x.dtype) if self.a.family in _NARROW_PROBABILITIES else weights

    def expert_layer(self, x: Tensor, experts: Experts) -> Tensor:
        """Router, exchange, experts, exchange back, the sum over each token's experts; shared experts beside."""
        tape, tokens = self.tape, x.size.factors[0][1]
        weights = self.route(x, experts)
        outgoing = size(assignments=tokens * experts.chosen, hidden=self.a.hidden)
        order = [("order of assignments", size(assignments=tokens * experts.chosen, indices=_INDICES), "int64")]
        permuted = tape.op("permuted tokens", [x], outgoing, x.dtype, extra=order)
        back = self.returned(self.run_experts(self.dispatched(permuted), experts), outgoing)
        weighted = self.weighted(back, weights)
        ordered = tape.op("outputs by token", [weighted], outgoing, weighted.dtype, backward_bytes=weighted.size_bytes)
        out = self.cast(tape.op("summed outputs", [ordered], x.size, weighted.dtype), x.dtype)
        if experts.shared_ffn:
            shared = self.feed_forward(x, experts.shared_ffn, prefix="shared_expert.")
            out = self.add("shared and routed experts", out, shared)
        return out

    def weighted(self, x: Tensor, weights: Tensor) -> Tensor:
        """The experts' outputs times their probabilities."""
        dtype = max(weights.dtype, x.dtype, key=lambda dtype: DTYPE_BYTES[dtype])
        wide = round(x.size.elements * DTYPE_BYTES[dtype])
        return self.tape.op(
            "weighted outputs", [x, weights], x.size, dtype, saves=[x, weights], backward_bytes=2 * wide
        )

    def acted(self, x: Tensor) -> Tensor:
        """What experts do between activation and second matrix."""
        return x

    def dispatched(self, x: Tensor) -> Tensor:
        """The tokens for this rank's experts: an all-to-all among ranks that share experts, and then an all-gather
        among those that share each of them.
        """
        c = self.c
        if c.expert_parallel > 1:
            rows = ceil(x.size.factors[0][1] * c.imbalance)
            x = self.tape.op("dispatched tokens", [x], size(assignments=rows, hidden=self.a.hidden), x.dtype)
        if c.sequence_parallel and c.expert_tensor > 1:
            rows = x.size.factors[0][1] * c.expert_tensor
            x = self.tape.op("tokens gathered", [x], size(assignments=rows, hidden=self.a.hidden), x.dtype)
        return x

    def returned(self, x: Tensor, outgoing: Size) -> Tensor:
        """The experts' outputs for this rank's tokens, the way back."""
        c = self.c
        if c.sequence_parallel and c.expert_tensor > 1:
            rows = x.size.factors[0][1] // c.expert_tensor
            x = self.tape.op("outputs scattered", [x], size(assignments=rows, hidden=self.a.hidden), x.dtype)
        return self.tape.op("returned outputs", [x], outgoing, x.dtype) if c.expert_parallel > 1 else x

    def run_experts(self, x: Tensor, experts: Experts) -> Tensor:
        """The experts of this rank on the tokens they got, in one kernel for each matrix."""
        a, c, tape = self.a, self.c, self.tape
        rows, width = x.size.factors[0][1], experts.ffn // c.expert_tensor
        weight = experts.count // c.expert_parallel * a.hidden * width
        inner = size(assignments=rows, ffn=width)
        if a.gated:
            both = size(assignments=rows, gate_and_up=2 * width)
            # Backward joins the gradients of both halves.
            joined = round(inner.elements * DTYPE_BYTES[c.compute_dtype])
            made = self.linear(x, "experts.gate_up_proj", both, weight=2 * weight, backward_bytes=joined)
            gate, up = tape.view(made, "gate", inner), tape.view(made, "up", inner)
            if c.activation is Kernels.FUSED:
                acted = tape.op("gated activation", [gate, up], inner, made.dtype, saves=[gate, up])
            else:
                turned = self.activation(gate, a.activation)
                acted = tape.op("gated", [turned, up], inner, made.dtype, saves=[turned, up])
        else:
            acted = self.activation(self.linear(x, "experts.up_proj", inner, weight=weight), a.activation)
        return self.linear(
            self.acted(acted), "experts.down_proj", size(assignments=rows, hidden=a.hidden), weight=weight
        )

    # -- latent attention

    def latent_attention(self, x: Tensor, latent: LatentAttention) -> Tensor:
        """Projections down to the latent vectors and up again, the shared rotary part, attention, output."""
        a, c, tape = self.a, self.c, self.tape
        x = self.gathered(x)
        tokens, heads = c.tokens, a.heads // c.tensor_parallel
        q_width = heads * (latent.plain_width + latent.rope_width)
        q_size = size(tokens=tokens, q_width=q_width)
        if latent.q_rank:
            small = size(tokens=tokens, q_rank=latent.q_rank)
            down = self.linear(x, "q_a_proj", small, weight=a.hidden * latent.q_rank, bias=a.attention_bias)
            q = self.linear(self.norm(down, "q_a_norm"), "q_b_proj", q_size, weight=latent.q_rank * q_width)
        else:
            q = self.linear(x, "q_proj", q_size, weight=a.hidden * q_width)
        both = latent.kv_rank + latent.rope_width
        compressed = self.linear(
            x, "kv_a_proj", size(tokens=tokens, kv_width=both), weight=a.hidden * both, bias=a.attention_bias
        )
        kv_latent = tape.view(compressed, "kv latent", size(tokens=tokens, kv_rank=latent.kv_rank))
        normed = self.norm(kv_latent, "kv_a_norm")
        q_turned = self._turned(q, "q", size(tokens=tokens, heads=heads, rope=latent.rope_width))
        k_turned = self._turned(compressed, "k", size(tokens=tokens, rope=latent.rope_width))
        # Backward joins the plain and the turned parts once, and turns heads and tokens around once more.
        q = tape.op("q joined", [q, q_turned], q_size, q.dtype, backward_bytes=q.size_bytes)
        kv_width = heads * (latent.plain_width + latent.value_width)
        kv = self.linear(normed, "kv_b_proj", size(tokens=tokens, kv_width=kv_width), weight=latent.kv_rank * kv_width)
        k = tape.op("k joined", [kv, k_turned], q_size, kv.dtype, backward_bytes=kv.size_bytes)
        v_size = size(tokens=tokens, v_width=heads * latent.value_width)
        out = self.attend(q, k, tape.view(kv, "v", v_size), v_size)
        weight = heads * latent.value_width * a.hidden
        out = self.linear(out, "o_proj", self.full_stream(), weight=weight, bias=a.output_bias)
        return self.dropout(self.scattered(out), "attention residual dropout")

    def _turned(self, of: Tensor, name: str, part: Size) -> Tensor:
        """The rotary part of queries or of the one key, turned: a copy of that part alone."""
        part_bytes = round(part.elements * DTYPE_BYTES[of.dtype])
        return self.tape.op(
            f"{name} rotated", [of], part, of.dtype, forward_bytes=2 * part_bytes, backward_bytes=3 * part_bytes
        )


def writer_of(a: Architecture, layer: int) -> Callable[[Architecture, Computation], Writer]:
    """What writes the block of that layer; layers that are alike have equal ones."""
    if a.experts is None and a.latent is None:
        return Writer
    has_experts = a.experts is not None and layer >= a.experts.dense_layers
    return partial(ExpertWriter, has_experts=has_experts)
