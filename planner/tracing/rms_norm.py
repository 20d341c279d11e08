"""RMS norm as CUDA dispatches it: one operator, which exists only there, with its own backward.

Source: aten/src/ATen/native/layer_norm.cpp (`rms_norm_symint`) and tools/autograd/derivatives.yaml
(`_fused_rms_norm`), torch 2.13. The stand-ins below have the same arguments, results and saved tensors; a
trace shows them under the names of the real ones.
"""

import math
from typing import Any

import torch

_LIBRARY: Any = torch.library.Library("planner_cuda", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)")
_LIBRARY.define(
    "_fused_rms_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd, "
    "Tensor? weight, bool[2] output_mask) -> (Tensor, Tensor)"
)


def _forward_on_meta(
    input: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    kept = input.dim() - len(normalized_shape)
    statistics = torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype
    shape = [*input.shape[:kept], *([1] * len(normalized_shape))]
    output = torch.empty_like(input, memory_format=torch.contiguous_format)
    return output, input.new_empty(shape, dtype=statistics)


def _backward_on_meta(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: list[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    output_mask: list[bool],
) -> tuple[torch.Tensor, torch.Tensor]:
    of_input = torch.empty_like(input) if output_mask[0] else input.new_empty(0)
    of_weight = torch.empty_like(weight) if weight is not None and output_mask[1] else input.new_empty(0)
    return of_input, of_weight


_LIBRARY.impl("_fused_rms_norm", _forward_on_meta, "Meta")
_LIBRARY.impl("_fused_rms_norm_backward", _backward_on_meta, "Meta")


class _FusedRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Any, normalized_shape: Any, weight: Any, eps: Any) -> Any:
        output, rstd = torch.ops.planner_cuda._fused_rms_norm.default(input, normalized_shape, weight, eps)
        ctx.normalized_shape = normalized_shape
        ctx.save_for_backward(input, weight, rstd)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        input, weight, rstd = ctx.saved_tensors
        of_input, of_weight = torch.ops.planner_cuda._fused_rms_norm_backward.default(
            grads[0],
            input,
            ctx.normalized_shape,
            rstd,
            weight,
            [ctx.needs_input_grad[0], ctx.needs_input_grad[2]],
        )
        return (
            of_input if ctx.needs_input_grad[0] else None,
            None,
            of_weight if ctx.needs_input_grad[2] else None,
            None,
        )


def lower_rms_norm(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """RMS norm by the fused operator, or by the composite form where CUDA takes that."""
    is_channels_last = input.dim() in (4, 5) and not input.is_contiguous()
    is_mixed = weight is not None and weight.dtype != input.dtype
    if is_channels_last or is_mixed or input.is_complex() or not math.prod(input.shape):
        return torch.rms_norm(input, normalized_shape, weight, eps)
    return _FusedRmsNorm.apply(input, list(normalized_shape), weight, eps)  # type: ignore[no-any-return,no-untyped-call]
