"""Blocks and the loss as Megatron-LM's core has them, with its own layers or those of Transformer Engine.

What differs from transformers is what is kept. With sequence parallelism, a linear layer keeps this rank's tokens and
gathers the others' once more in backward; masks of dropout take a byte; the softmax of attention is kept in the compute
dtype; the loss computes its softmax in the place of float32 logits, and then its gradient in the place of the softmax.
Left out: FP8, activation offloading and CUDA graphs.

Source: Megatron-LM, megatron/core: tensor_parallel/layers.py (`LinearWithGradAccumulationAndAsyncCommunication`),
tensor_parallel/cross_entropy.py, transformer/dot_product_attention.py, fusions/; Transformer Engine,
pytorch/module/layernorm_linear.py and attention/dot_product_attention/backends.py. Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models" (arXiv 2205.05198), counts the same block on paper.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from planner.architecture import Architecture, Experts, Positions
from planner.estimation.blocks import Computation, Loss, Section, Writer
from planner.estimation.experts import ExpertWriter
from planner.estimation.tape import Size, Tensor, size
from planner.units import DTYPE_BYTES

_FP32 = "float32"


class MegatronWriter(ExpertWriter):
    """Writes blocks in Megatron's ops."""

    def gathered(self, x: Tensor) -> Tensor:
        return x  # each linear layer gathers for itself, and lets go

    def linear(self, x: Tensor, name: str, outputs: Size, **how: Any) -> Tensor:
        """A linear layer; from this rank's tokens to all of them, it gathers its input, and in backward once more,
        beside the gradient of all that is then scattered.
        """
        rows, ours = outputs.factors[0][1], x.size.factors[0][1]
        if ours < rows:
            whole = x.size_bytes // ours * rows
            how["forward_bytes"] = whole
            how["backward_bytes"] = how.get("backward_bytes", 0) + 2 * whole
        return super().linear(x, name, outputs, **how)

    def expert_layer(self, x: Tensor, experts: Experts) -> Tensor:
        return self.dropout(super().expert_layer(x, experts), "feed-forward residual dropout")

    def weighted(self, x: Tensor, weights: Tensor) -> Tensor:
        """Nothing more: the experts have multiplied by the probabilities, before their second matrix."""
        return x

    def acted(self, x: Tensor) -> Tensor:
        """The activation times each assignment's probability.

        Source: Megatron-LM, core/transformer/moe/experts.py, `TEGroupedMLP.forward` (`permuted_probs`).
        """
        probabilities = [("permuted probabilities", size(assignments=x.size.factors[0][1]), _FP32)]
        return self.tape.op("weighted activation", [x], x.size, x.dtype, saves=[x], extra=probabilities)

    def _part(self, of: Tensor, name: str, part: Size) -> Tensor:
        """A view; beside turned queries and keys, values are copied, for kernels want all three alike.

        Source: Transformer Engine, attention/dot_product_attention/utils.py, `get_qkv_layout`.
        """
        if name == "v" and self.a.positions is Positions.ROPE:
            return self.tape.op(name, [of], part, of.dtype)
        return super()._part(of, name, part)

    def _attend_fused(self, q: Tensor, k: Tensor, v: Tensor, heads: int, out_size: Size) -> Tensor:
        out = super()._attend_fused(q, k, v, heads, out_size)
        if not self.c.copies_attention_output:
            return out
        return self.tape.op("attention output turned", [out], out_size, out.dtype)

    def _attend_eagerly(self, q: Tensor, k: Tensor, v: Tensor, heads: int, out_size: Size) -> Tensor:
        c, tape = self.c, self.tape
        if k.size.elements < q.size.elements and self.a.latent is None:
            k, v = (tape.op(f"{t.name} repeated", [t], q.size, t.dtype) for t in (k, v))
        scores_size = size(batch=c.batch, heads=heads, length=c.length, keys=c.length)
        scores = tape.op("attention scores", [q, k], scores_size, q.dtype, saves=[q, k], is_matmul=True)
        softmax = tape.op("attention softmax", [scores], scores_size, q.dtype, saves_output=True)
        weights = self.dropout(softmax, "attention dropout", self.a.attention_dropout)
        out = tape.op("attention output", [weights, v], out_size, q.dtype, saves=[weights, v])
        return tape.op("attention output turned", [out], out_size, q.dtype, is_matmul=True)


def writer_of(a: Architecture, layer: int) -> Callable[[Architecture, Computation], Writer]:
    """What writes the block of that layer; layers that are alike have equal ones."""
    has_experts = a.experts is not None and layer >= a.experts.dense_layers
    return partial(MegatronWriter, has_experts=has_experts)


def head(a: Architecture, c: Computation) -> Section:
    """Last norm, output matrix and loss, over this rank's share of the vocabulary.

    What goes out is the softmax in float32, in the place of which the gradient will be. Its fused form is compiled, and
    makes the softmax beside the logits (fusions/fused_cross_entropy.py).
    """
    w = MegatronWriter(a, c, has_experts=False)
    x = w.tape.input("last hidden states", w.stream(), c.parameter_dtype, needs_grad=True)
    hidden = w.norm(x, "norm")
    vocab = a.vocab // c.tensor_parallel
    everything = size(tokens=c.tokens, vocab=vocab)
    logits = w.linear(hidden, "lm_head", everything, weight=a.hidden * vocab, bias=a.head_bias)
    copy_bytes = round(everything.elements * DTYPE_BYTES[_FP32])
    softmax = w.tape.op(
        "softmax of logits",
        [logits],
        everything,
        _FP32,
        forward_bytes=copy_bytes if c.loss is Loss.FUSED else 0,
        extra=[("target mask", size(tokens=c.tokens), "bool"), ("target ids", size(tokens=c.tokens), "int64")],
    )
    return Section(tape=w.tape, entry=x, exit=softmax)
