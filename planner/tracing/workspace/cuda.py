"""Workspaces of CUDA kernels.

Only the backward of flash attention is modelled: its buffers are tensors of a fixed shape. Not modelled, and
taken as 0: the workspaces that cuDNN and cuBLAS choose at run time (convolutions, cuDNN attention), the
accumulators of memory-efficient attention, which depend on the kernel variant that is picked for the GPU, the
partial sums of layer norm's backward and the sort of embedding's. Nothing here has been measured on a GPU.
"""

from collections.abc import Mapping

import torch

from planner.tracing.workspace.call import Call, Rule, copy_bytes

# Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, `mha_bwd`.
_QUERY_BLOCK = 128
_HEAD_BLOCK = 32
_LARGEST_ROUNDED_HEAD = 192
_LARGEST_HEAD = 256


def _flash_attention_backward(call: Call) -> int:
    """The row sums of dO·O, and the gradient of the query accumulated in float32, queries and heads rounded up.

    The kernel is assumed not to be the deterministic one, which accumulates in several copies.

    Source: flash_api.cpp, `mha_bwd`: softmax_d of batch × heads × rounded queries, dq_accum of batch × rounded
    queries × heads × rounded head size, both float32; `_flash_attention_backward` in attention_backward.cu makes
    the gradient and the output contiguous as batch × queries × heads × head size.
    """
    query, gradient, output = (call.arguments[name] for name in ("query", "grad_out", "out"))
    batch, heads, queries, head = query.shape
    rounded_queries = _round_up(queries, _QUERY_BLOCK)
    rounded_head = _round_up(head, _HEAD_BLOCK) if head <= _LARGEST_ROUNDED_HEAD else _LARGEST_HEAD
    accumulated = batch * heads * rounded_queries * (1 + rounded_head)
    copies = copy_bytes(gradient.transpose(1, 2)) + copy_bytes(output.transpose(1, 2))
    return int(accumulated * torch.float32.itemsize + copies)


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


CUDA_RULES: Mapping[str, Rule] = {
    "aten._scaled_dot_product_flash_attention_backward": _flash_attention_backward,
}
