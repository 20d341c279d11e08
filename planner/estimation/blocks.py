"""What the parts of a transformer do, op by op, as tapes: embedding, blocks, head and loss.

These are the ops of eager PyTorch as the modelling files of transformers issue them, or of fused kernels where a
`Computation` says so. Every saved tensor has a size in named factors. A traced step of the same model is the
reference that tests compare with.

Source: transformers 5.24 modelling files (llama, qwen3, gemma2, gpt2, gpt_neox, phi, opt, bert, mixtral) and
loss/loss_utils.py; torch 2.13 autograd formulas (tools/autograd/derivatives.yaml); flash-attention's `mha_bwd`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from planner.architecture import Architecture, Norm, Positions
from planner.estimation.tape import Size, Tape, Tensor, size
from planner.units import DTYPE_BYTES

_FP32 = "float32"
_FLASH_DTYPES = frozenset({"float16", "bfloat16"})
# Families whose eager softmax keeps the scores' dtype; the others name float32, and autocast computes it in float32.
# Source: `softmax(` in the modelling files of transformers 5.24.
_SOFTMAX_AS_IT_COMES = frozenset({"gpt2", "bert", "falcon"})


class Kernels(StrEnum):
    """Written out in PyTorch ops, or one kernel that keeps only what it must."""

    EAGER = "eager"
    FUSED = "fused"


class AttentionKind(StrEnum):
    """Fused kernels keep q, k, v, the output and one number per query; eager ones the scores."""

    FUSED = "fused"
    EAGER = "eager"


class ContextMethod(StrEnum):
    """How ranks that share a sequence attend to all of it.

    RING: keys and values go round, a rank's share at a time. ULYSSES: an all-to-all gives each rank the whole sequence
    for some of the heads.
    """

    RING = "ring"
    ULYSSES = "ulysses"


class Implementation(StrEnum):
    """Whose code a block is: which ops there are, and what they save.

    TRANSFORMERS: modelling files of transformers, under PyTorch's own tensor parallelism. MEGATRON: Megatron-LM's core,
    with its own linear layers, or those of Transformer Engine.
    """

    TRANSFORMERS = "transformers"
    MEGATRON = "megatron"


class Loss(StrEnum):
    """How cross entropy is computed from the last hidden states.

    FULL: logits of all tokens, in float32. SHIFTED: the same with a contiguous copy of them without each last token.
    FUSED: one kernel on float32 logits that leaves the gradient in their place. CHUNKED: a few tokens' logits at a
    time, their logits and gradients kept. FUSED_LINEAR: the output matrix and the loss in one, gradients made in
    forward.
    """

    FULL = "full"
    SHIFTED = "shifted"
    FUSED = "fused"
    CHUNKED = "chunked"
    FUSED_LINEAR = "fused-linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """LoRA matrices beside frozen linear layers.

    Attributes:
        rank: of each.
        targets: the linear layers that have them.
        dtype: they are held in.
        dropout: before them.
        fused: one kernel with the base layer, which keeps the input alone.
        parts: of a matrix that serves q, k and v, which of them have adapters; they share one matrix of as many ranks,
            and the result is padded with zeros. Empty where each linear layer has its own.
    """

    rank: int
    targets: tuple[str, ...]
    dtype: str
    dropout: bool = False
    fused: bool = False
    parts: tuple[str, ...] = ()

    def ranks_of(self, name: str) -> int:
        """Rows of the first of the two matrices beside a linear layer."""
        return self.rank * (len(self.parts) if name == "qkv_proj" and self.parts else 1)

    def width_of(self, a: Architecture, name: str, width: int) -> int:
        """Outputs of the second, where the layer has so many."""
        if name != "qkv_proj" or not self.parts:
            return width
        return sum(a.q_width if part == "q" else a.kv_width for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """How a block computes.

    Attributes:
        batch: sequences.
        length: tokens of each, on this rank.
        parameter_dtype: of the weights an op sees.
        compute_dtype: of matrix products; autocast when it differs.
        attention: the kind of kernel.
        norm, activation, rotary: written out or fused.
        norm_in_float32: norms multiply by their weight before they cast back.
        expands_kv: grouped keys and values are copied for every query head before the kernel.
        loss: how it is computed.
        loss_dtype: of the logits that the loss sees.
        chunks: of CHUNKED and FUSED_LINEAR losses.
        upcasts_in_model: the model's output is the float32 copy of the logits (transformers before 4.46).
        adapter_autocast: adapters are computed under autocast, in the base's dtype.
        gradient_dtype: of parameters' gradients.
        trains_base: the model's own weights are trained.
        adapters: LoRA, or None.
        dequantized_dtype: weights are held quantized, and made into this for each use; None if they are not.
        quantizes_head: the output matrix is, too.
        quantized_saves_input: products with quantized weights keep their input though nothing reads it, as those of
            bitsandbytes 0.41 and 0.42 do (autograd/_functions.py, `MatMul4Bit`).
        quantized_from: the dtype they were quantized from, which they are made whole in before they are cast.
        tensor_parallel: ranks that share each matrix.
        sequence_parallel: norms and residuals are shared, too.
        dropout: the model's dropouts are on.
        context_parallel: ranks that share each sequence, of which `length` is this rank's part.
        context_method: how they attend.
        expert_parallel: ranks that share a layer's experts.
        expert_tensor: ranks that share each expert's matrices.
        imbalance: tokens that experts of this rank get, over what they would get if all experts got as many.
        grouped_experts: one kernel runs all experts of a rank; otherwise they run one after the other.
        copies_attention_output: the kernel's output has batch and sequence the other way round, and is copied.
    """

    batch: int
    length: int
    parameter_dtype: str
    compute_dtype: str
    attention: AttentionKind = AttentionKind.FUSED
    norm: Kernels = Kernels.EAGER
    activation: Kernels = Kernels.EAGER
    rotary: Kernels = Kernels.EAGER
    norm_in_float32: bool = False
    expands_kv: bool = False
    loss: Loss = Loss.FULL
    loss_dtype: str = _FP32
    chunks: int = 8
    upcasts_in_model: bool = False
    adapter_autocast: bool = False
    gradient_dtype: str = _FP32
    trains_base: bool = True
    adapters: Adapters | None = None
    dequantized_dtype: str | None = None
    quantizes_head: bool = False
    quantized_saves_input: bool = False
    quantized_from: str | None = None
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    dropout: bool = True
    context_parallel: int = 1
    context_method: ContextMethod = ContextMethod.RING
    expert_parallel: int = 1
    expert_tensor: int = 1
    imbalance: float = 1.0
    grouped_experts: bool = True
    copies_attention_output: bool = False

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    @property
    def dequantized_bytes(self) -> float:
        """Of an element of a weight that is made whole."""
        found = {self.dequantized_dtype, self.quantized_from} - {None}
        return sum(DTYPE_BYTES[dtype] for dtype in found if dtype is not None)

    @property
    def is_autocast(self) -> bool:
        return self.parameter_dtype != self.compute_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A stretch of the model as a tape, with what goes in and what comes out; `output` is what the model returns."""

    tape: Tape
    entry: Tensor | None
    exit: Tensor
    output: Tensor | None = None


def _wider(*dtypes: str) -> str:
    return max(dtypes, key=lambda dtype: DTYPE_BYTES[dtype])


class Writer:
    """Writes the ops of one section."""

    def __init__(self, a: Architecture, c: Computation) -> None:
        self.a, self.c = a, c
        self.tape = Tape()

    # -- sizes

    def stream(self) -> Size:
        """The residual stream of this rank."""
        if self.c.sequence_parallel:
            return size(tokens=self.c.tokens // self.c.tensor_parallel, hidden=self.a.hidden)
        return size(tokens=self.c.tokens, hidden=self.a.hidden)

    def full_stream(self) -> Size:
        return size(tokens=self.c.tokens, hidden=self.a.hidden)

    def gathered(self, x: Tensor) -> Tensor:
        """All tokens, where sequence parallelism has divided them.

        PyTorch's tensor parallelism gathers in an op of its own, so the linear layers behind it save all tokens.
        Source: torch/distributed/tensor/parallel/style.py, `PrepareModuleInput`.
        """
        if not self.c.sequence_parallel:
            return x
        return self.tape.op(f"{x.name} gathered", [x], self.full_stream(), x.dtype)

    def scattered(self, x: Tensor) -> Tensor:
        """This rank's tokens of what all ranks have a part of: a reduce-scatter; without it, they reduce in place."""
        if not self.c.sequence_parallel:
            return x
        return self.tape.op(f"{x.name} scattered", [x], self.stream(), x.dtype)

    def statistics(self, of: Size) -> Size:
        return size(tokens=of.factors[0][1])

    # -- ops

    def cast(self, x: Tensor, dtype: str, name: str | None = None) -> Tensor:
        if x.dtype == dtype:
            return x
        return self.tape.op(name or f"{x.name} in {dtype}", [x], x.size, dtype)

    def point(self, name: str, x: Tensor, *, saves: Sequence[Tensor] = (), saves_output: bool = False) -> Tensor:
        """An elementwise op of one tensor."""
        return self.tape.op(name, [x], x.size, x.dtype, saves=saves, saves_output=saves_output)

    def add(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        dtype = _wider(x.dtype, y.dtype)
        if x.dtype != y.dtype:  # the narrower one's gradient is cast
            y, x = (x, y) if x.dtype == dtype else (y, x)
            widened = self.tape.op(f"{x.name} widened", [x], Size(factors=(("none", 0),)), dtype)
            # promotion happens inside the kernel: no memory of its own, but its gradient is cast back
            return self.tape.op(name, [y, widened], y.size, dtype, passes_grad=True)
        return self.tape.op(name, [x, y], x.size, dtype, passes_grad=True)

    def linear(
        self,
        x: Tensor,
        name: str,
        outputs: Size,
        *,
        weight: int,
        bias: bool = False,
        frozen: bool | None = None,
        forward_bytes: int = 0,
        backward_bytes: int = 0,
    ) -> Tensor:
        """A linear layer of `weight` elements on this rank; under autocast both sides are cast."""
        c, tape = self.c, self.tape
        is_trained = c.trains_base if frozen is None else not frozen
        adapters = c.adapters if c.adapters is not None and name in c.adapters.targets else None
        seen = self.cast(x, c.compute_dtype, f"{x.name} for {name}") if c.is_autocast else x
        saves: list[Tensor] = []
        if c.dequantized_dtype is not None and (name != "lm_head" or c.quantizes_head):
            if c.quantized_saves_input:
                saves.append(seen)
            whole = round(weight * c.dequantized_bytes)
            forward_bytes, backward_bytes = forward_bytes + whole, backward_bytes + whole
        elif c.is_autocast:
            width = size(weight=weight)
            # The cast weight is kept: backward needs it for the gradient of the input.
            saves.append(tape.op(f"{name}.weight cast", [], width, c.compute_dtype, needs_grad=False))
        parameter_bytes = 0
        if is_trained:
            saves.append(seen)
            parameter_bytes = round((weight + (outputs.factors[-1][1] if bias else 0)) * DTYPE_BYTES[c.gradient_dtype])
            if c.is_autocast:
                backward_bytes += round(weight * DTYPE_BYTES[c.compute_dtype])
        out = tape.op(
            name,
            [seen],
            outputs,
            c.compute_dtype if c.is_autocast else x.dtype,
            saves=saves,
            needs_grad=is_trained or seen.needs_grad,
            forward_bytes=forward_bytes,
            backward_bytes=backward_bytes,
            parameter_bytes=parameter_bytes,
            is_matmul=True,
        )
        return out if adapters is None else self._adapted(x, out, name, adapters)

    def _adapted(self, x: Tensor, out: Tensor, name: str, lora: Adapters) -> Tensor:
        """The output of a frozen linear layer plus that of its adapters.

        Source: peft, tuners/lora/layer.py, `Linear.forward`; bitsandbytes' variant casts the result back alike.
        """
        c, tape = self.c, self.tape
        ranks = lora.ranks_of(name)
        rank = size(tokens=c.tokens, rank=ranks)
        element_bytes = DTYPE_BYTES[lora.dtype]
        inputs, outputs = x.size.factors[-1][1], lora.width_of(self.a, name, out.size.factors[-1][1])
        a_bytes, b_bytes = round(inputs * ranks * element_bytes), round(outputs * lora.rank * element_bytes)
        if lora.fused:
            down = tape.op(
                f"{name}.lora", [x], rank, out.dtype, saves=[x], needs_grad=True, parameter_bytes=a_bytes + b_bytes
            )
            return tape.op(f"{name} with lora", [out, down], out.size, out.dtype, passes_grad=False)
        is_cast = c.is_autocast or c.adapter_autocast
        dtype = c.compute_dtype if is_cast else lora.dtype
        seen = self.cast(x, lora.dtype, f"{x.name} for {name}.lora")
        if lora.dropout:
            seen = self.dropout(seen, f"{name}.lora dropout", 1.0)  # any but 0: the mask is as large
        if seen.dtype != dtype:
            seen = self.cast(seen, dtype, f"{x.name} cast for {name}.lora")
        down = tape.op(f"{name}.lora_A", [seen], rank, dtype, saves=[seen], needs_grad=True, parameter_bytes=a_bytes)
        made = out.size if outputs == out.size.factors[-1][1] else size(tokens=c.tokens, lora_width=outputs)
        up = tape.op(f"{name}.lora_B", [down], made, dtype, saves=[down], needs_grad=True, parameter_bytes=b_bytes)
        if made != out.size:
            # Source: derivatives.yaml, `index_copy`: the source is saved for its shape.
            up = tape.op(f"{name}.lora padded", [up], out.size, dtype, saves=[up])
        scaled = self.point(f"{name}.lora scaled", up)
        total = tape.op(f"{name} with lora", [out, scaled], out.size, _wider(out.dtype, scaled.dtype), passes_grad=True)
        return self.cast(total, out.dtype)

    def dropout(self, x: Tensor, name: str, probability: float | None = None) -> Tensor:
        """`native_dropout`: keeps a mask of one byte an element."""
        if not self.c.dropout or not (self.a.dropout if probability is None else probability):
            return x
        return self.tape.op(name, [x], x.size, x.dtype, extra=[(f"{name} mask", x.size, "bool")], is_random=True)

    def norm(self, x: Tensor, name: str, *, trained: bool | None = None, one_plus: bool = False) -> Tensor:
        """A normalization over the last axis."""
        c, tape = self.c, self.tape
        is_trained = c.trains_base if trained is None else trained
        width = x.size.factors[-1][1]
        weight_bytes = round(width * DTYPE_BYTES[c.gradient_dtype]) if is_trained else 0
        statistics = self.statistics(x.size)
        if self.a.norm is Norm.LAYER:
            seen = self.cast(x, _FP32, f"{x.name} for {name}") if c.is_autocast else x
            extra = [(f"{name} mean", statistics, _FP32), (f"{name} rstd", statistics, _FP32)]
            return tape.op(
                name, [seen], x.size, seen.dtype, saves=[seen], extra=extra, parameter_bytes=2 * weight_bytes
            )
        if c.norm is Kernels.FUSED:
            return tape.op(
                name,
                [x],
                x.size,
                x.dtype,
                saves=[x],
                extra=[(f"{name} rstd", statistics, _FP32)],
                parameter_bytes=weight_bytes,
            )
        full = round(x.size.elements * DTYPE_BYTES[_FP32])
        wide = self.cast(x, _FP32, f"{name} input in float32")
        square = tape.op(f"{name} square", [wide], x.size, _FP32, saves=[wide], backward_bytes=full)
        mean = tape.op(f"{name} mean", [square], statistics, _FP32)
        root = tape.op(f"{name} rsqrt", [mean], statistics, _FP32, saves_output=True)
        normed = tape.op(f"{name} normed", [wide, root], x.size, _FP32, saves=[wide, root], backward_bytes=full)
        if one_plus or c.norm_in_float32:  # as Gemma does, too, with 1 + weight
            scaled = tape.op(
                f"{name} scaled",
                [normed],
                x.size,
                _FP32,
                saves=[normed] if is_trained else [],
                backward_bytes=full,
                parameter_bytes=weight_bytes,
            )
            return self.cast(scaled, x.dtype, name)
        narrow = self.cast(normed, x.dtype, f"{name} normed in {x.dtype}")
        dtype = _wider(c.parameter_dtype, narrow.dtype)
        return tape.op(
            name,
            [narrow],
            x.size,
            dtype,
            saves=[narrow] if is_trained else [],
            backward_bytes=round(x.size.elements * DTYPE_BYTES[dtype]) if is_trained else 0,
            parameter_bytes=weight_bytes,
        )

    def activation(self, x: Tensor, kind: str) -> Tensor:
        """The activation function, as transformers' ACT2FN has it."""
        if kind == "relu":
            return self.point("relu", x, saves_output=True)
        if kind in ("gelu_new", "gelu_fast"):
            base = self.cast(x, _FP32) if self.c.is_autocast else x  # autocast computes powers in float32
            cube = self.point("gelu cube", base, saves=[base])
            scaled = self.point("gelu scaled cube", cube)
            inner = self.add("gelu sum", x, scaled)
            argument = self.point("gelu argument", inner)
            tanh = self.point("gelu tanh", argument, saves_output=True)
            one_plus = self.tape.op("gelu 1 + tanh", [tanh], x.size, tanh.dtype, passes_grad=True)
            half = self.point("gelu half", x)
            return self.tape.op("gelu", [half, one_plus], x.size, tanh.dtype, saves=[half, one_plus])
        return self.point(kind, x, saves=[x])

    # -- attention

    def rotary(self, x: Tensor, name: str) -> Tensor:
        """`x * cos + rotate_half(x) * sin`; cos and sin come from outside and need no gradient."""
        if self.a.positions is not Positions.ROPE:
            return x
        if self.c.rotary is Kernels.FUSED:
            return self.tape.view(x, f"{name} rotated")
        tape = self.tape
        dtype = _wider(x.dtype, self.c.parameter_dtype)
        direct = tape.op(f"{name} cos", [x], x.size, dtype)
        turned = tape.op(
            f"{name} turned",
            [x],
            x.size,
            x.dtype,
            forward_bytes=x.size_bytes // 2,
            backward_bytes=x.size_bytes,
        )
        sine = tape.op(f"{name} sin", [turned], x.size, dtype)
        return tape.op(f"{name} rotated", [direct, sine], x.size, dtype, passes_grad=True)

    @property
    def is_falcon(self) -> bool:
        """The model is transformers' own Falcon, which hands attention a mask though it is causal.

        Older ones leave one head of keys and values to broadcasting, which no kernel has; newer ones repeat theirs.
        Source: transformers 5.24, modeling_falcon.py, `_split_heads` and `create_causal_mask`.
        """
        return self.a.family == "falcon" and not self.c.expands_kv

    @property
    def broadcasts_kv(self) -> bool:
        """Keys and values are repeated by the products that read them."""
        return self.is_falcon and self.a.kv_heads == 1 < self.a.heads

    @property
    def expands_kv(self) -> bool:
        """Keys and values are repeated for the heads that share them before positions are added."""
        if self.a.kv_heads == self.a.heads:
            return False
        return self.c.expands_kv or (self.is_falcon and not self.broadcasts_kv)

    @property
    def has_no_kernel(self) -> bool:
        """No kernel of scaled_dot_product_attention serves the model's heads, so that scores are kept.

        Flash attention takes 16 bits, and the memory-efficient kernel does not group heads.
        Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, torch 2.13.
        """
        is_eager = self.c.attention is AttentionKind.EAGER
        if is_eager or self.a.kv_heads == self.a.heads or self.a.latent is not None or self.expands_kv:
            return False
        return self.broadcasts_kv or self.c.compute_dtype not in _FLASH_DTYPES

    @property
    def joins_parts(self) -> bool:
        """Queries and keys are joined of a part with positions and one without: new tensors, whose heads are apart."""
        return self.a.partial_rotary or self.a.latent is not None

    def _for_product(self, x: Tensor, name: str, *, is_joined: bool) -> Tensor:
        """What a product of each head reads: a copy, if several sequences' heads lie within their tokens.

        Source: aten/src/ATen/native/LinearAlgebra.cpp, `_matmul_impl`, which makes one batch of sequences and heads.
        """
        if is_joined or self.c.batch == 1:
            return x
        return self.tape.op(f"{name} contiguous", [x], x.size, x.dtype, passes_grad=True)

    @property
    def copied_parts(self) -> str:
        """Of one matrix's q, k and v, those that are copied rather than seen as parts of it."""
        if self.is_falcon and self.a.kv_heads != self.a.heads:
            return "kv" if self.broadcasts_kv else "qkv"
        return "qk" if self.a.positions is Positions.ROPE else ""

    def mask(self, dtype: str) -> Tensor:
        """What is added to scores: one for all sequences, but where the model makes its own."""
        c = self.c
        batch = c.batch if self.is_falcon else 1
        return self.tape.op("attention mask", [], size(batch=batch, length=c.length, keys=c.length), dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, out_size: Size | None = None) -> Tensor:
        """Softmax attention over the heads of this rank; the output is as wide as queries unless told."""
        c, tape = self.c, self.tape
        if c.is_autocast:
            q, k, v = (self.cast(t, c.compute_dtype) for t in (q, k, v))
        heads = max(1, self.a.heads // c.tensor_parallel)
        if self.expands_kv:
            v = tape.op("v expanded", [v], q.size, v.dtype)
        out_size = out_size or q.size
        start = len(tape.ops)
        out = self._attend_with_kernel(q, k, v, heads, out_size)
        tape.core = range(start, len(tape.ops))
        return out

    def _attend_with_kernel(self, q: Tensor, k: Tensor, v: Tensor, heads: int, out_size: Size) -> Tensor:
        c, tape = self.c, self.tape
        if c.attention is AttentionKind.EAGER:
            return self._attend_eagerly(q, k, v, heads, out_size)
        if self.has_no_kernel:
            return self._attend_by_math(q, k, v, heads, out_size)
        is_exchanged = c.context_parallel > 1 and c.context_method is ContextMethod.ULYSSES
        if is_exchanged:  # each rank then has all tokens of some heads: as much as before
            q, k, v = (
                tape.op(f"{name} exchanged", [t], t.size, t.dtype) for name, t in zip("qkv", (q, k, v), strict=True)
            )
        out = self._attend_fused(q, k, v, heads, out_size)
        return tape.op("attention output exchanged", [out], out.size, out.dtype) if is_exchanged else out

    def _attend_fused(self, q: Tensor, k: Tensor, v: Tensor, heads: int, out_size: Size) -> Tensor:
        """One kernel, or one for each share of keys and values that comes round.

        Source: flash_api.cpp, `mha_bwd`; Transformer Engine, attention/dot_product_attention/context_parallel.py,
        `AttnFuncWithCPAndKVP2P` (`p2p_comm_buffers`: one share is used while the next comes; in backward, with their
        gradients).
        """
        c, tape = self.c, self.tape
        around = 0
        if c.context_parallel > 1 and c.context_method is ContextMethod.RING:
            around = 2 * (k.size_bytes + v.size_bytes)
        per_head = size(tokens=c.tokens, heads=heads)
        rounded = -(-c.length // 128) * 128
        # In backward, softmax_d and a float32 accumulator of q's gradient; where heads are grouped, k's and v's
        # gradients are made for every query head first.
        width = q.size.elements // (c.tokens * heads)
        accumulator = c.batch * rounded * heads * (width + 1) * DTYPE_BYTES[_FP32]
        expanded = 2 * q.size_bytes if k.size.elements < q.size.elements else 0
        saved = [q, k, v, *([self.mask(q.dtype)] if self.is_falcon else [])]
        return tape.op(
            "attention",
            [q, k, v],
            out_size,
            q.dtype,
            saves=saved,
            saves_output=True,
            extra=[("attention logsumexp", per_head, _FP32)],
            forward_bytes=around,
            backward_bytes=round(accumulator) + expanded + 2 * around,
            is_matmul=True,
            is_random=c.dropout and self.a.attention_dropout > 0,
        )

    def _attend_eagerly(self, q: Tensor, k: Tensor, v: Tensor, heads: int, out_size: Size) -> Tensor:
        """Scores in memory, softmax in float32 where the model or autocast asks for it.

        Source: transformers, `eager_attention_forward` of modeling_llama.py and modeling_gpt2.py.
        """
        c, tape = self.c, self.tape
        if k.size.elements < q.size.elements and not self.expands_kv and self.a.latent is None:
            k = tape.op("k repeated", [k], q.size, k.dtype)
            v = tape.op("v repeated", [v], q.size, v.dtype)
        else:
            k, v = self._for_product(k, "k", is_joined=self.joins_parts), self._for_product(v, "v", is_joined=False)
        q = self._for_product(q, "q", is_joined=self.joins_parts)
        scores_size = size(batch=c.batch, heads=heads, length=c.length, keys=c.length)
        scores = tape.op("attention scores", [q, k], scores_size, q.dtype, saves=[q, k])
        scaled = self.point("attention scaled", scores)
        if self.a.attention_softcap:
            scaled = self.point("attention softcap", scaled, saves_output=True)
            scaled = self.point("attention softcap scaled", scaled)
        masked = tape.op("attention masked", [scaled], scores_size, q.dtype, passes_grad=True)
        dtype = q.dtype if self.a.family in _SOFTMAX_AS_IT_COMES and not c.is_autocast else _FP32
        # Only float16 has a kernel that reads half precision and writes float32.
        wide = masked if q.dtype == "float16" else self.cast(masked, dtype)
        softmax = tape.op("attention softmax", [wide], scores_size, dtype, saves_output=True)
        is_cast_first = self.a.family != "bert"  # which leaves it to autocast, after its dropout
        weights = self.cast(softmax, q.dtype, "attention weights") if is_cast_first else softmax
        weights = self.dropout(weights, "attention dropout", self.a.attention_dropout)
        weights = self.cast(weights, q.dtype, "attention weights")
        out = tape.op("attention output", [weights, v], out_size, q.dtype, saves=[weights, v])
        return tape.op("attention output contiguous", [out], out_size, q.dtype)

    def _attend_by_math(self, q: Tensor, k: Tensor, v: Tensor, heads: int, out_size: Size) -> Tensor:
        """What scaled_dot_product_attention does without a kernel: scores in memory, in float32.

        Source: aten/src/ATen/native/transformers/attention.cpp, `_scaled_dot_product_attention_math`.
        """
        c, tape, dtype = self.c, self.tape, q.dtype
        q, k, v = (self.cast(t, _FP32) for t in (q, k, v))
        scaled = tape.op("q scaled", [q], q.size, q.dtype)
        local = [q, scaled] if q.dtype != dtype else [scaled]
        if self.a.causal:
            local.append(self.mask(dtype))
        is_broadcast = self.broadcasts_kv  # by the products, which copy
        if k.size.elements < q.size.elements and not is_broadcast:
            k = tape.op("k repeated", [k], q.size, k.dtype)
            v = tape.op("v repeated", [v], q.size, v.dtype)
            local.append(k)
        keys = tape.op("k scaled", [k], k.size, k.dtype)
        if is_broadcast:
            keys = tape.op("k repeated", [keys], q.size, k.dtype)
        rows = self._for_product(scaled, "q", is_joined=self.joins_parts)
        scores_size = size(batch=c.batch, heads=heads, length=c.length, keys=c.length)
        scores = tape.op("attention scores", [rows, keys], scores_size, q.dtype, saves=[rows, keys])
        if self.a.causal:
            scores = tape.op("attention masked", [scores], scores_size, q.dtype, passes_grad=True)
        weights = tape.op("attention softmax", [scores], scores_size, q.dtype, saves_output=True)
        weights = self.dropout(weights, "attention dropout", self.a.attention_dropout)
        if is_broadcast:
            v = tape.op("v repeated", [v], q.size, v.dtype)
        out = tape.op("attention output", [weights, v], out_size, q.dtype, saves=[weights, v])
        out = self.cast(out, dtype)
        for tensor in local:
            tape.hold(tensor)
        return tape.op("attention output contiguous", [out], out_size, dtype)

    def attention(self, x: Tensor) -> Tensor:
        """The attention layer: projections, positions, kernel, output projection."""
        a, c = self.a, self.c
        share = c.tensor_parallel
        x = self.gathered(x)
        q_size = size(tokens=c.tokens, q_width=a.q_width // share)
        kv_size = size(tokens=c.tokens, kv_width=max(a.kv_width // share, a.head_width))
        if a.fused_qkv:
            both = size(tokens=c.tokens, qkv_width=q_size.factors[1][1] + 2 * kv_size.factors[1][1])
            qkv = self.linear(x, "qkv_proj", both, weight=a.hidden * both.factors[1][1], bias=a.attention_bias)
            q, k, v = (
                self.tape.op(n, [qkv], s, qkv.dtype) if n in self.copied_parts else self._part(qkv, n, s)
                for n, s in (("q", q_size), ("k", kv_size), ("v", kv_size))
            )
        else:
            q = self.linear(x, "q_proj", q_size, weight=a.hidden * q_size.factors[1][1], bias=a.attention_bias)
            k = self.linear(x, "k_proj", kv_size, weight=a.hidden * kv_size.factors[1][1], bias=a.attention_bias)
            v = self.linear(x, "v_proj", kv_size, weight=a.hidden * kv_size.factors[1][1], bias=a.attention_bias)
        if a.family == "opt":
            q = self.point("q scaled", q)
        if a.qk_norm:
            q, k = self._head_norm(q, "q_norm"), self._head_norm(k, "k_norm")
        if self.expands_kv:
            k = self.tape.op("k expanded", [k], q.size, k.dtype)
        q, k = self.rotary(q, "q"), self.rotary(k, "k")
        out = self.attend(q, k, v)
        if (
            a.partial_rotary and a.positions is Positions.ROPE
        ):  # joined parts have heads outside tokens, and so the output
            out = self.tape.op("attention output contiguous", [out], out.size, out.dtype)
        out = self.linear(out, "o_proj", self.full_stream(), weight=q_size.factors[1][1] * a.hidden, bias=a.output_bias)
        return self.dropout(self.scattered(out), "attention residual dropout")

    def _head_norm(self, x: Tensor, name: str) -> Tensor:
        heads = x.size.factors[1][1] // self.a.head_width
        seen = self.tape.view(x, size=size(rows=self.c.tokens * heads, head_width=self.a.head_width))
        normed = self.norm(seen, name, one_plus=self.a.family == "gemma3")
        return self.tape.view(normed, size=x.size)

    def _part(self, of: Tensor, name: str, part: Size) -> Tensor:
        """A slice that shares memory; its gradient is a tensor of its own."""
        return self.tape.view(of, name, part)

    # -- feed-forward

    def fed(self, x: Tensor) -> Tensor:
        """What the block has after attention."""
        return self.feed_forward(x, self.a.ffn)

    def feed_forward(self, x: Tensor, width: int, *, prefix: str = "") -> Tensor:
        """Up, activation, perhaps times a gate, and down."""
        a, c = self.a, self.c
        share = c.tensor_parallel
        x = self.gathered(x)
        inner = size(tokens=c.tokens, ffn=width // share)
        weight = a.hidden * (width // share)
        if a.gated:
            if a.fused_gate:
                both = size(tokens=inner.factors[0][1], gate_and_up=2 * inner.factors[1][1])
                made = self.linear(x, f"{prefix}gate_up_proj", both, weight=2 * weight, bias=a.mlp_bias)
                gate, up = self._part(made, "gate", inner), self._part(made, "up", inner)
            else:
                gate = self.linear(x, f"{prefix}gate_proj", inner, weight=weight, bias=a.mlp_bias)
                up = None
            if c.activation is Kernels.FUSED:
                up = self.linear(x, f"{prefix}up_proj", inner, weight=weight, bias=a.mlp_bias) if up is None else up
                product = self.tape.op("gated activation", [gate, up], inner, gate.dtype, saves=[gate, up])
            else:
                acted = self.activation(gate, a.activation)
                up = self.linear(x, f"{prefix}up_proj", inner, weight=weight, bias=a.mlp_bias) if up is None else up
                product = self.tape.op("gated", [acted, up], inner, gate.dtype, saves=[acted, up])
        else:
            product = self.activation(
                self.linear(x, f"{prefix}up_proj", inner, weight=weight, bias=a.mlp_bias), a.activation
            )
        out_size = size(tokens=inner.factors[0][1], hidden=a.hidden)
        out = self.linear(product, f"{prefix}down_proj", out_size, weight=weight, bias=a.mlp_bias)
        return self.dropout(self.scattered(out), "feed-forward residual dropout")


def attention_in_words(a: Architecture, c: Computation) -> str:
    """Which attention runs, such as "flash attention"."""
    writer = Writer(a, c)
    if c.attention is AttentionKind.EAGER:
        return "eager attention"
    if writer.has_no_kernel:
        return "PyTorch's math form of attention"
    takes_flash = c.compute_dtype in _FLASH_DTYPES and not writer.is_falcon
    return "flash attention" if takes_flash else "memory-efficient attention"


def block(
    a: Architecture, c: Computation, *, writer: Callable[[Architecture, Computation], Writer] = Writer
) -> Section:
    """One block, in the ops of the writer."""
    w = writer(a, c)
    x = w.tape.input("hidden states", w.stream(), _stream_dtype(a, c), needs_grad=True)
    plus = a.family.startswith("gemma")
    if not a.causal:
        attended = w.norm(w.add("attention residual", w.attention(x), x), "norm_1")
        out = w.norm(w.add("feed-forward residual", w.fed(attended), attended), "norm_2")
        return Section(tape=w.tape, entry=x, exit=out)
    first = w.norm(x, "norm_1", one_plus=plus)
    attended = w.attention(first)
    if a.parallel:
        second = first if a.norms_per_block == 1 else w.norm(x, "norm_2")
        fed = w.fed(second)
        out = w.add("residual", w.add("attention and feed-forward", attended, fed), x)
        return Section(tape=w.tape, entry=x, exit=out)
    if a.norms_per_block == 4:
        attended = w.norm(attended, "norm_2", one_plus=plus)
    middle = w.add("attention residual", x, attended)
    fed = w.fed(w.norm(middle, "norm_3" if a.norms_per_block == 4 else "norm_2", one_plus=plus))
    if a.norms_per_block == 4:
        fed = w.norm(fed, "norm_4", one_plus=plus)
    w.tape.hold(middle)
    return Section(tape=w.tape, entry=x, exit=w.add("feed-forward residual", middle, fed))


def _stream_dtype(a: Architecture, c: Computation) -> str:
    """The dtype of the residual stream: that of the embedding, which autocast does not cast."""
    return c.parameter_dtype


def passage(a: Architecture, c: Computation) -> Section:
    """Nothing: what another stage of the pipeline sends, or what goes to it."""
    w = Writer(a, c)
    x = w.tape.input("hidden states", w.stream(), _stream_dtype(a, c), needs_grad=True)
    return Section(tape=w.tape, entry=x, exit=x)


def embedding(a: Architecture, c: Computation) -> Section:
    """Token embedding, position embedding, dropout."""
    w = Writer(a, c)
    rows = -(-a.vocab // c.tensor_parallel)
    weight_bytes = round(rows * a.hidden * DTYPE_BYTES[c.gradient_dtype]) if c.trains_base else 0
    ids = w.tape.input("input ids", size(tokens=c.tokens), "int64", needs_grad=False)
    x = w.tape.op(
        "embed_tokens",
        [ids],
        w.full_stream(),
        _stream_dtype(a, c),
        saves=[ids],
        needs_grad=True,
        parameter_bytes=weight_bytes,
    )
    if a.positions is Positions.LEARNED:
        table = size(length=c.length, hidden=a.hidden)
        rows = round(a.max_positions * a.hidden * DTYPE_BYTES[c.gradient_dtype]) if c.trains_base else 0
        position = w.tape.op("embed_positions", [ids], table, x.dtype, needs_grad=True, parameter_bytes=rows)
        x = w.tape.op("embeddings", [x, position], w.full_stream(), x.dtype, passes_grad=True)
    if a.family.startswith("gemma"):
        x = w.point("embeddings scaled", x)
    if not a.causal:
        x = w.norm(x, "embed_norm")
    return Section(tape=w.tape, entry=ids, exit=w.dropout(w.scattered(x), "embedding dropout"))


def head(a: Architecture, c: Computation) -> Section:
    """Last norm, output matrix and loss."""
    w = Writer(a, c)
    tape = w.tape
    x = tape.input("last hidden states", w.stream(), _stream_dtype(a, c), needs_grad=True)
    if a.causal:
        hidden = w.norm(x, "norm", one_plus=a.family.startswith("gemma"))
    else:
        moved = w.linear(x, "transform", w.full_stream(), weight=a.hidden * a.hidden, bias=True)
        hidden = w.norm(w.activation(moved, a.activation), "transform_norm")
    hidden = w.gathered(hidden)
    vocab = -(-a.vocab // c.tensor_parallel)
    if c.loss in (Loss.CHUNKED, Loss.FUSED_LINEAR):
        return _in_chunks(w, x, hidden, vocab)
    everything = size(tokens=c.tokens, vocab=vocab)
    logits = w.linear(hidden, "lm_head", everything, weight=a.hidden * vocab, bias=a.head_bias)
    logits = _capped(w, logits)
    # Losses of causal models ask for float32; BERT's takes logits as they are, which autocast makes float32. Source:
    # transformers 5.24, loss/loss_utils.py and models/bert/modeling_bert.py.
    wide = w.cast(logits, _FP32, "logits in float32") if a.causal or c.is_autocast else logits
    output = wide if c.upcasts_in_model else logits
    if c.loss in (Loss.SHIFTED, Loss.FUSED) and a.causal:
        shifted = size(tokens=c.tokens - c.batch, vocab=vocab)
        wide = tape.op("logits shifted", [wide], shifted, wide.dtype)
    scalar = size(one=1)
    if c.loss is Loss.FUSED:  # the gradient takes the logits' place
        loss = tape.op("cross entropy", [tape.view(wide)], scalar, wide.dtype, saves=[wide])
    else:
        log_softmax = tape.op("log_softmax", [wide], wide.size, wide.dtype, saves_output=True)
        loss = tape.op("nll_loss", [log_softmax], scalar, wide.dtype, saves=[log_softmax])
    tape.hold(output)
    return Section(tape=tape, entry=x, exit=loss)


def _capped(w: Writer, logits: Tensor) -> Tensor:
    """The logits as the model returns them: where it caps them, by a tanh."""
    if not w.a.logit_softcap:
        return logits
    logits = w.point("logits scaled", logits)
    logits = w.point("logits tanh", logits, saves_output=True)
    return w.point("logits capped", logits)


def _in_chunks(w: Writer, x: Tensor, hidden: Tensor, vocab: int) -> Section:
    """Losses that never hold all logits in float32."""
    a, c, tape = w.a, w.c, w.tape
    part = size(tokens=-(-c.tokens // c.chunks), vocab=vocab)
    scalar = size(one=1)
    if c.loss is Loss.FUSED_LINEAR:
        # Source: Liger-Kernel, ops/fused_linear_cross_entropy.py: gradients of hidden states and output matrix are
        # made in forward, a chunk of logits at a time, in the logits' dtype and in float32.
        weight = a.hidden * vocab if c.trains_base else 0
        grads = [("gradient of hidden states", hidden.size, hidden.dtype)]
        if weight:
            grads.append(("gradient of lm_head", size(weight=weight), c.compute_dtype))
        chunk = round(part.elements * (DTYPE_BYTES[c.compute_dtype] + DTYPE_BYTES[_FP32]))
        loss = tape.op("fused linear cross entropy", [hidden], scalar, _FP32, extra=grads, forward_bytes=chunk)
        return Section(tape=tape, entry=x, exit=loss)
    logits = w.linear(hidden, "lm_head", size(tokens=c.tokens, vocab=vocab), weight=a.hidden * vocab, bias=a.head_bias)
    logits = _capped(w, logits)
    if c.upcasts_in_model:
        logits = w.cast(logits, c.loss_dtype, f"logits in {c.loss_dtype}")
    chunk = round(part.elements * DTYPE_BYTES[c.loss_dtype])
    log_softmax = tape.op(
        "log_softmax of all chunks",
        [logits],
        logits.size,
        c.loss_dtype,
        saves_output=True,
        forward_bytes=chunk,
        backward_bytes=chunk,
        is_piecewise=True,
    )
    small = tape.op("nll_loss", [], scalar, _FP32, saves=[log_softmax], needs_grad=True)
    del small
    loss = tape.op("loss", [log_softmax], scalar, _FP32, passes_grad=True)
    tape.hold(logits)
    return Section(tape=tape, entry=x, exit=loss, output=logits)
