"""Workspaces of PyTorch's CPU kernels, convolutions apart. Read and measured in torch 2.13.

Operators are listed that take noticeable memory in a training step. Many kernels start by making their
arguments contiguous, which costs a copy where they are not.
"""

from collections.abc import Mapping
from functools import reduce

import torch

from planner.tracing.workspace.call import FLOAT_BYTES, REDUCED, Call, Rule, copy_bytes, is_channels_last, sum_bytes
from planner.tracing.workspace.convolution import convolution, convolution_backward

# Sizes in which attention is computed: (queries from, query block). Source:
# aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, `flash_attention_kernel_impl`, forward and backward alike.
_QUERY_BLOCKS = ((768, 256), (192, 64), (0, 32))
_KEY_BLOCK = 512
# Arguments of pointwise operators that select and take no part in the arithmetic.
_SELECTORS = frozenset({"condition", "mask"})
_NO_REDUCTION = 0


def pointwise(call: Call) -> int:
    """Operands converted to the dtype that is computed in, and a result converted back from it.

    Source: aten/src/ATen/TensorIterator.cpp, `TensorIteratorBase::build`: on a CPU, operands of another dtype than
    the common one are replaced by converted copies; CUDA kernels convert while they load.
    """
    given = {name: item for name, item in call.arguments.items() if isinstance(item, torch.Tensor)}
    operands = [item for name, item in given.items() if name not in _SELECTORS and item.dim()]
    if not operands or not call.outputs:
        return 0
    output = call.outputs[0]
    is_in_place = any(item is output for item in given.values())
    if is_in_place or output.dtype is torch.bool:
        common = reduce(torch.promote_types, (item.dtype for item in operands))
    else:
        common = output.dtype
    converted = sum(item.numel() for item in operands if item.dtype is not common)
    if is_in_place and output.dtype is not common:
        converted += output.numel()
    return int(converted * common.itemsize)


def _reduction(call: Call) -> int:
    """The input converted to the dtype of the result. Source: ReduceOpsUtils.h, `make_reduction`."""
    source, output = call.arguments["self"], call.outputs[0]
    return int(source.numel() * output.dtype.itemsize) if source.dtype is not output.dtype else 0


def _sum(call: Call) -> int:
    """As any reduction, and what reduced precision costs."""
    source, dims = call.arguments["self"], call.arguments.get("dim") or tuple(range(call.arguments["self"].dim()))
    return _reduction(call) or sum_bytes(source, dims)


def _mean(call: Call) -> int:
    """Reduced precision is summed in float32. Source: ReduceOps.cpp, `mean_out` on a CPU."""
    source, output = call.arguments["self"], call.outputs[0]
    if source.dtype in REDUCED:
        return int((source.numel() + output.numel()) * FLOAT_BYTES)
    return _reduction(call)


def _copies(*names: str) -> Rule:
    """The rule of a kernel that needs no more than contiguous arguments."""
    return lambda call: sum(copy_bytes(call.arguments[name]) for name in names)


def _product(*names: str) -> Rule:
    """The rule of a matrix product: operands that BLAS cannot address are copied.

    Source: aten/src/ATen/native/LinearAlgebra.cpp, `addmm_impl_cpu_`.
    """
    return lambda call: sum(_unaddressable_bytes(call.arguments[name]) for name in names)


def _unaddressable_bytes(matrix: torch.Tensor) -> int:
    rows, columns = matrix.shape
    by_row, by_column = matrix.stride()
    is_addressable = (by_row == 1 and by_column >= max(1, rows)) or (by_column == 1 and by_row >= max(1, columns))
    return 0 if is_addressable else matrix.nbytes


def _safe_softmax(call: Call) -> int:
    """The mask of what is −∞, where rows are so throughout, and a zero. Source: SoftMax.cpp, `_safe_softmax`."""
    source, dim = call.arguments["self"], call.arguments["dim"]
    rows = source.numel() // max(1, source.shape[dim])
    return int(source.numel() + rows + source.dtype.itemsize)


def _query_block(queries: int) -> int:
    return min(queries, next(block for least, block in _QUERY_BLOCKS if queries >= least))


def _attention(call: Call) -> int:
    """Scores, maxima, sums and a block of output per thread; scores again in reduced precision.

    Source: FlashAttentionKernel.cpp, `cpu_flash_attention`, without the packing that only oneDNN does.
    """
    query, key = call.arguments["query"], call.arguments["key"]
    queries, keys = _query_block(query.shape[2]), min(key.shape[2], _KEY_BLOCK)
    accumulated = queries * keys + 2 * queries + queries * query.shape[3]
    reduced = queries * keys * query.dtype.itemsize if query.dtype in REDUCED else 0
    return int(call.threads * (accumulated * _accumulated_bytes(query.dtype) + reduced))


def _attention_backward(call: Call) -> int:
    """Scores and their gradient per thread, row sums, and the output's gradient laid out by position.

    Source: FlashAttentionKernel.cpp, `cpu_flash_attention_backward`.
    """
    query, key, gradient = (call.arguments[name] for name in ("query", "key", "grad_out"))
    queries, keys = _query_block(query.shape[2]), min(key.shape[2], _KEY_BLOCK)
    element_bytes = _accumulated_bytes(query.dtype)
    reduced = query.dtype.itemsize if query.dtype in REDUCED else 0
    scores = call.threads * 2 * queries * keys * (element_bytes + reduced)
    return int(scores + queries * element_bytes + copy_bytes(gradient.transpose(1, 2)))


def _accumulated_bytes(dtype: torch.dtype) -> int:
    return FLOAT_BYTES if dtype in REDUCED else dtype.itemsize


def _layer_norm_backward(call: Call) -> int:
    """Copies, and the sums of each thread for weight and bias. Source: cpu/layer_norm_kernel.cpp."""
    source, copied = call.arguments["input"], _copies("grad_out", "input")(call)
    _, for_weight, for_bias = call.arguments["output_mask"]
    if not for_weight and not for_bias:
        return copied
    width = 1
    for size in call.arguments["normalized_shape"]:
        width *= size
    return int(copied + 2 * call.threads * width * source.dtype.itemsize)


def _group_norm(call: Call) -> int:
    """With channels last, scale and shift of each channel of each sample. Source: cpu/group_norm_kernel.cpp."""
    source = call.arguments["input"]
    channels = call.arguments["N"] * call.arguments["C"]
    return int(2 * channels * _accumulated_bytes(source.dtype)) if is_channels_last(source) else 0


def _group_norm_backward(call: Call) -> int:
    """Two sums for each channel of each sample. Source: cpu/group_norm_kernel.cpp."""
    source = call.arguments["input"]
    return int(2 * call.arguments["N"] * call.arguments["C"] * _accumulated_bytes(source.dtype))


def _batch_norm(call: Call) -> int:
    """Sums, then scale and shift, of each channel; with channels last those of each thread before.

    Source: Normalization.cpp, `batch_norm_cpu_transform_input_template`; cpu/batch_norm_kernel.cpp.
    """
    source = call.arguments["input"]
    channels, accumulated = source.shape[1], _accumulated_bytes(source.dtype)
    scale = 2 * channels * accumulated
    if not call.arguments["training"] or not is_channels_last(source):
        return int(scale)
    return int(max(scale, 2 * channels * source.dtype.itemsize + call.threads * channels * accumulated))


def _batch_norm_backward(call: Call) -> int:
    """A second gradient of the input, which is dropped before anything is computed; else sums of each channel.

    Source: Normalization.cpp, `batch_norm_backward_cpu_template`: `grad_input` is allocated, and once more where
    input and gradient have the same layout.
    """
    source, gradient = call.arguments["input"], call.arguments["grad_out"]
    if is_channels_last(source) is not is_channels_last(gradient) or not (_is_dense(source) and _is_dense(gradient)):
        return int(source.shape[1] * source.dtype.itemsize)
    return int(source.nbytes) if call.arguments["output_mask"][0] else 0


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor is contiguous in either order of its dimensions."""
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    return any(tensor.is_contiguous(memory_format=chosen) for chosen in formats)


def _mse_loss(call: Call) -> int:
    """The squared differences before they are reduced. Source: Loss.cpp, `mse_loss_out`."""
    source, reduction = call.arguments["self"], call.arguments["reduction"]
    return int(source.nbytes) if reduction != _NO_REDUCTION else 0


CPU_RULES: Mapping[str, Rule] = {
    "aten.convolution": convolution,
    "aten.convolution_backward": convolution_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten.native_layer_norm": _copies("input"),
    "aten.native_layer_norm_backward": _layer_norm_backward,
    "aten.native_group_norm": _group_norm,
    "aten.native_group_norm_backward": _group_norm_backward,
    "aten.native_batch_norm": _batch_norm,
    "aten.native_batch_norm_backward": _batch_norm_backward,
    "aten._safe_softmax": _safe_softmax,
    "aten._softmax": _copies("self"),
    "aten._log_softmax": _copies("self"),
    "aten._softmax_backward_data": _copies("grad_output", "output"),
    "aten._log_softmax_backward_data": _copies("grad_output", "output"),
    "aten.embedding": _copies("indices"),
    "aten.embedding_dense_backward": _copies("grad_output", "indices"),
    "aten.mm": _product("self", "mat2"),
    "aten.addmm": _product("mat1", "mat2"),
    "aten.sum": _sum,
    "aten.cumsum": _reduction,
    "aten.mean": _mean,
    "aten.mse_loss": _mse_loss,
    # These select, and compute nothing.
    "aten.masked_fill": lambda _: 0,
    "aten.clone": lambda _: 0,
}
