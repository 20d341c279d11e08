"""The calls that stand for the ops of a training step, at several sizes.

Which op a call dispatches, and how many bytes and FLOPs that op has, is not said here but watched when it first runs,
with the records that a trace makes: so a rate counts work exactly as the costs of a step do.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch.utils._python_dispatch import TorchDispatchMode

from planner.costs.kinds import counted_bytes, kind_of
from planner.device import Kind
from planner.graph import Op, Phase
from planner.tracing.operators import (
    compute_dtype,
    is_causal,
    is_random,
    operator_of,
    tensors_in,
    traffic_bytes,
    written_tensors,
)

_KIB, _MIB = 2**10, 2**20
# Bytes of one tensor. Allocators treat large blocks differently (glibc gives those above 32 MiB back to the system at
# once, so that every use of them touches new pages): there are points on both sides.
_SIZES_BYTES = (64 * _KIB, _MIB, 4 * _MIB, 24 * _MIB, 48 * _MIB, 128 * _MIB)
_QUICK_SIZES_BYTES = (256 * _KIB, 4 * _MIB, 48 * _MIB)
# Widths of rows, as in transformers: hidden size, a vocabulary, scores of a sequence; heads × width of a head.
_WIDTH, _VOCABULARY, _SCORES, _HEADS, _HEAD_WIDTH = 768, 8192, 256, 8, 64
_LENGTH = 256
_TOKENS = 2048  # of one call of attention
_IMAGES, _CHANNELS = 4, 64
_PARAMETER_ELEMENTS = _WIDTH * _WIDTH  # of one tensor that the optimizer steps
_DROPPED = 0.1
_POOLING_STRIDE = 2
_LOOKED_UP = 8  # one row of so many of a table
_TINY_LAYERS = 8
_TINY_WIDTH = 8
# Successive calls work on different memory, this much of it before any is used again: a step, too, has touched other
# memory before it comes back to a tensor.
_FOOTPRINT_BYTES = 64 * _MIB
_ALIGNMENT_ELEMENTS = 64

# (rows, columns, inner) of products; small ones, thin ones that are bound by memory, and large ones.
_PRODUCTS = (
    (1, 1024, 1024), (4, 1024, 1024), (16, 1024, 1024), (64, 768, 768), (128, 128, 128), (256, 256, 256),
    (256, 768, 768), (512, 512, 512), (512, 2048, 512), (1024, 1024, 1024), (2048, 2048, 2048),
)  # fmt: skip
_QUICK_PRODUCTS = ((4, 1024, 1024), (128, 128, 128), (512, 512, 512), (1024, 1024, 1024))
# (batch, rows, columns, inner) of batched products, as unfused attention has them.
_BATCHED = ((32, 128, 128, 64), (32, 128, 64, 128), (12, 256, 256, 64), (12, 256, 64, 256))
# (channels in, channels out, kernel, stride, height and width), as in residual networks and U-Nets.
_CONVOLUTIONS = (
    (3, 64, 7, 2, 160), (3, 32, 3, 1, 128), (32, 32, 3, 1, 128), (64, 64, 3, 1, 56), (128, 128, 3, 1, 28),
    (256, 256, 3, 1, 14), (512, 512, 3, 1, 7), (64, 256, 1, 1, 56), (256, 64, 1, 1, 56), (256, 512, 1, 2, 56),
    (512, 128, 1, 1, 28), (256, 1024, 1, 1, 14), (1024, 256, 1, 1, 14), (1024, 2048, 1, 2, 14), (128, 128, 3, 2, 56),
    (256, 256, 3, 2, 28), (512, 512, 3, 2, 14), (2048, 512, 1, 1, 7),
)  # fmt: skip
_QUICK_CONVOLUTIONS = _CONVOLUTIONS[2:6] + _CONVOLUTIONS[8:12]
_LENGTHS = (128, 256, 512, 1024)
_QUICK_LENGTHS = (128, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One call.

    Attributes:
        name: for progress and errors.
        kind: of the op that it is meant to dispatch.
        shapes: of its floating-point inputs.
        run: from those to its result.
        backward: kind of its backward's op, if that is to be timed too.
    """

    name: str
    kind: Kind
    shapes: tuple[tuple[int, ...], ...]
    run: Callable[..., torch.Tensor]
    backward: Kind | None = None


class Pool:
    """Numbers in one block of memory, to cut inputs from; successive cuts do not overlap until all has been used."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        generator = torch.Generator().manual_seed(0)
        self._seed = torch.randn(_MIB, generator=generator).to(dtype=dtype, device=device)
        self._block = self._seed
        self._cursor = 0

    def cut(self, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor of the shape that shares the pool's memory."""
        elements = 1
        for size in shape:
            elements *= size
        least = max(elements, _FOOTPRINT_BYTES // self.dtype.itemsize)
        if self._block.numel() < least:
            self._block = self._seed.repeat(-(-least // self._seed.numel()))
        if self._cursor + elements > self._block.numel():
            self._cursor = 0
        start = self._cursor
        self._cursor += -(-elements // _ALIGNMENT_ELEMENTS) * _ALIGNMENT_ELEMENTS
        return self._block[start : start + elements].view(shape)


def probes(device: torch.device, dtype: torch.dtype, *, is_quick: bool) -> tuple[Probe, ...]:
    """The calls to time in a dtype."""
    sizes = _QUICK_SIZES_BYTES if is_quick else _SIZES_BYTES
    found = [*_products(is_quick), *_convolutions(is_quick), *_attention(is_quick)]
    for size_bytes in sizes:
        found += _traffic(size_bytes // dtype.itemsize, device)
    return tuple(found)


def _products(is_quick: bool) -> Iterator[Probe]:
    for rows, columns, inner in _QUICK_PRODUCTS if is_quick else _PRODUCTS:
        name = f"product {rows}x{inner}x{columns}"
        shapes = ((rows, inner), (columns, inner))
        turned = ((inner, rows), (inner, columns))
        yield Probe(name=name, kind=Kind.PRODUCT, shapes=shapes, run=_linear)
        yield Probe(name=f"{name}, as for weights", kind=Kind.PRODUCT, shapes=turned, run=_weight_gradient)
    for batch, rows, columns, inner in _BATCHED:
        both = ((batch, rows, inner), (batch, inner, columns))
        yield Probe(name=f"{batch} products", kind=Kind.PRODUCT, shapes=both, run=torch.bmm)


def _convolutions(is_quick: bool) -> Iterator[Probe]:
    for entering, leaving, kernel, stride, side in _QUICK_CONVOLUTIONS if is_quick else _CONVOLUTIONS:
        yield Probe(
            name=f"convolution {kernel}x{kernel}, {entering} to {leaving} channels",
            kind=Kind.CONVOLUTION,
            shapes=((_IMAGES, entering, side, side), (leaving, entering, kernel, kernel)),
            run=_Convolution(stride=stride, padding=kernel // 2),
            backward=Kind.CONVOLUTION_BACKWARD,
        )


def _attention(is_quick: bool) -> Iterator[Probe]:
    for length in _QUICK_LENGTHS if is_quick else _LENGTHS:
        shapes = ((_TOKENS // length, _HEADS, length, _HEAD_WIDTH),) * 3
        yield Probe(
            name=f"attention over {length}",
            kind=Kind.ATTENTION,
            shapes=shapes,
            run=F.scaled_dot_product_attention,
            backward=Kind.ATTENTION_BACKWARD,
        )
        yield Probe(
            name=f"causal attention over {length}",
            kind=Kind.CAUSAL_ATTENTION,
            shapes=shapes,
            run=_causal_attention,
            backward=Kind.CAUSAL_ATTENTION_BACKWARD,
        )


def _traffic(elements: int, device: torch.device) -> Iterator[Probe]:
    """Calls whose tensors have about so many elements."""
    wide = (max(1, elements // _WIDTH), _WIDTH)
    scores = (max(1, elements // _SCORES), _SCORES)
    words = (max(1, elements // _VOCABULARY), _VOCABULARY)
    side = max(4, math.isqrt(elements // (_IMAGES * _CHANNELS)))
    image = (_IMAGES, _CHANNELS, side, side)
    tokens = max(1, elements // (_HEADS * _HEAD_WIDTH))
    heads = (max(1, tokens // _LENGTH), min(_LENGTH, tokens), _HEADS, _HEAD_WIDTH)
    random = _dropout if device.type == "cuda" else _bernoulli
    unary = (wide,)
    exponential = Kind.EXPONENTIAL
    of_rows, of_channels = (wide, wide[1:], wide[1:]), (image, image[1:2], image[1:2])
    yield Probe(name="elementwise", kind=Kind.ELEMENTWISE, shapes=(wide, wide), run=torch.mul)
    yield Probe(name="elementwise, one operand", kind=Kind.ELEMENTWISE, shapes=unary, run=F.relu)
    yield Probe(name="gelu", kind=exponential, shapes=unary, run=F.gelu, backward=exponential)
    yield Probe(name="silu", kind=exponential, shapes=unary, run=F.silu, backward=exponential)
    yield Probe(name="copy", kind=Kind.COPY, shapes=(heads,), run=_transposed_copy)
    yield Probe(name="fill", kind=Kind.FILL, shapes=unary, run=torch.zeros_like)
    yield Probe(name="random", kind=Kind.RANDOM, shapes=unary, run=random)
    yield Probe(name="sum of columns", kind=Kind.REDUCTION, shapes=unary, run=_sum_columns)
    yield Probe(name="mean of rows", kind=Kind.REDUCTION, shapes=unary, run=_mean_rows)
    yield Probe(name="softmax", kind=Kind.SOFTMAX, shapes=(words,), run=_log_softmax, backward=Kind.SOFTMAX_BACKWARD)
    yield Probe(name="softmax of scores", kind=Kind.SAFE_SOFTMAX, shapes=(scores,), run=_safe_softmax)
    yield Probe(
        name="layer norm", kind=Kind.LAYER_NORM, shapes=of_rows, run=_layer_norm, backward=Kind.LAYER_NORM_BACKWARD
    )
    yield Probe(
        name="batch norm", kind=Kind.BATCH_NORM, shapes=of_channels, run=_batch_norm, backward=Kind.BATCH_NORM_BACKWARD
    )
    for kernel in (2, 3):
        pooling = _Pooling(kernel=kernel, padding=kernel // 3)
        yield Probe(
            name=f"pooling of {kernel}x{kernel}",
            kind=Kind.POOLING,
            shapes=(image,),
            run=pooling,
            backward=Kind.SCATTER,
        )
    yield Probe(name="embedding", kind=Kind.GATHER, shapes=unary, run=_Embedding(rows=wide[0]), backward=Kind.SCATTER)


def empty_probe() -> Probe:
    """A call with hardly any work."""
    return Probe(name="dispatch", kind=Kind.ELEMENTWISE, shapes=((1,), (1,)), run=torch.mul, backward=Kind.ELEMENTWISE)


def optimizer_elements(is_quick: bool) -> tuple[int, ...]:
    """Elements of the tensors that the optimizer steps, at each size, all together."""
    counts = (4, 16) if is_quick else (1, 8, 32, 64)
    return tuple(count * _PARAMETER_ELEMENTS for count in counts)


def optimizer_for(elements: int, pool: Pool) -> torch.optim.Optimizer:
    """Adam, as PyTorch runs it on many tensors, over so many elements with gradients."""
    parameters = []
    for _ in range(max(1, elements // _PARAMETER_ELEMENTS)):
        parameter = torch.nn.Parameter(pool.cut((_PARAMETER_ELEMENTS,)).clone())
        parameter.grad = pool.cut((_PARAMETER_ELEMENTS,)).clone()
        parameters.append(parameter)
    return torch.optim.AdamW(parameters, lr=0.0, foreach=True)


def tiny_step(device: torch.device, dtype: torch.dtype) -> tuple[Callable[[], None], int]:
    """A training step of layers with hardly any work, and how many ops that are no views it dispatches."""
    layers: list[torch.nn.Module] = []
    for _ in range(_TINY_LAYERS):
        layers += [torch.nn.Linear(_TINY_WIDTH, _TINY_WIDTH), torch.nn.GELU(), torch.nn.LayerNorm(_TINY_WIDTH)]
    module = torch.nn.Sequential(*layers).to(device=device, dtype=dtype)
    entering = torch.zeros(2, _TINY_WIDTH, device=device, dtype=dtype)

    def step() -> None:
        module(entering).sum().backward()
        module.zero_grad(set_to_none=True)

    with Watch() as watch:
        step()
    return step, sum(not op.is_view for op in watch.ops)


def _linear(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.mm(rows, weight.t())


def _weight_gradient(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return torch.mm(rows.t(), columns)


def _causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def _transposed_copy(heads: torch.Tensor) -> torch.Tensor:
    return heads.transpose(1, 2).contiguous()


def _bernoulli(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like).bernoulli_(1 - _DROPPED)


def _dropout(entering: torch.Tensor) -> torch.Tensor:
    return F.dropout(entering, _DROPPED)


def _sum_columns(entering: torch.Tensor) -> torch.Tensor:
    return entering.sum(0)


def _mean_rows(entering: torch.Tensor) -> torch.Tensor:
    return entering.mean(-1)


def _log_softmax(entering: torch.Tensor) -> torch.Tensor:
    return F.log_softmax(entering, -1)


def _safe_softmax(entering: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._safe_softmax.default(entering, -1)  # type: ignore[no-any-return]


def _layer_norm(entering: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(entering, weight.shape, weight, bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Convolution:
    stride: int
    padding: int

    def __call__(self, entering: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(entering, weight, stride=self.stride, padding=self.padding)


def _batch_norm(entering: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    mean, variance = torch.zeros_like(weight), torch.ones_like(weight)
    return F.batch_norm(entering, mean, variance, weight, bias, training=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pooling:
    kernel: int
    padding: int

    def __call__(self, entering: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(entering, self.kernel, _POOLING_STRIDE, self.padding)


class _Embedding:
    """Looks up some of a table's rows, in an order in which no neighbours follow each other."""

    def __init__(self, *, rows: int) -> None:
        self._rows = rows
        self._indices: torch.Tensor | None = None

    def __call__(self, table: torch.Tensor) -> torch.Tensor:
        if self._indices is None:
            generator = torch.Generator().manual_seed(0)
            order = torch.randperm(self._rows, generator=generator)
            self._indices = order[: max(1, self._rows // _LOOKED_UP)].to(table.device)
        return F.embedding(self._indices, table)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps a record of every op that is dispatched meanwhile, as a trace would."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Op] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator, kwargs = operator_of(func), kwargs or {}
        result = func(*args, **kwargs)
        if operator.is_ignored:
            return result
        inputs, outputs = tensors_in((args, kwargs)), tensors_in(result)
        known = {tensor.untyped_storage()._cdata for tensor in inputs}
        makes = any(tensor.untyped_storage()._cdata not in known for tensor in outputs)
        self.ops.append(
            Op(
                step=len(self.ops),
                name=operator.name,
                phase=Phase.FORWARD,
                module_fqn="",
                module_call=0,
                reads=(),
                writes=(),
                read_bytes=traffic_bytes(inputs),
                write_bytes=traffic_bytes(outputs),
                flops=0 if operator.flops is None else int(operator.flops(*args, **kwargs, out_val=result)),
                dtype=compute_dtype(inputs, outputs),
                shape=(),
                is_view=not makes and not written_tensors(operator, args, kwargs),
                is_random=is_random(operator, args, kwargs),
                is_causal=is_causal(operator, args, kwargs),
                mutates_state=False,
                is_opaque=operator.is_opaque,
            )
        )
        return result

    def main_op(self, kind: Kind) -> Op | None:
        """The op of a kind with the most work; None if there was none."""
        found = [op for op in self.ops if not op.is_view and not op.is_opaque and kind_of(op) is kind]
        return max(found, key=lambda op: (op.flops, counted_bytes(op, kind)), default=None)
