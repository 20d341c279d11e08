"""Issues the operator that `scaled_dot_product_attention` reaches on the device a trace stands for.

On meta tensors the composite function chooses the portable O(S²) form. Here the choice is made as PyTorch
makes it on a GPU of compute capability 8.0 or later, or on a CPU.

Source: aten/src/ATen/native/transformers/{attention.cpp, sdp_utils_cpp.h, cuda/sdp_utils.cpp}, torch 2.13.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name

from planner.spec import AttentionKernel


class Kernels(StrEnum):
    """Whose operators a trace shows."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """The arguments of one call, [batch, heads, length, width]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    is_causal: bool
    scale: float | None
    is_grouped: bool  # fewer key and value heads than query heads


# What is tried, in order, when a kernel is asked for.
_ORDERS: Mapping[AttentionKernel, tuple[AttentionKernel, ...]] = {
    AttentionKernel.FLASH: (AttentionKernel.FLASH, AttentionKernel.EFFICIENT),
    AttentionKernel.EFFICIENT: (AttentionKernel.EFFICIENT,),
    AttentionKernel.CUDNN: (AttentionKernel.CUDNN, AttentionKernel.FLASH, AttentionKernel.EFFICIENT),
    AttentionKernel.EAGER: (),
}
_MATH = "the math form"
_MAX_FLASH_WIDTH = 256
_MAX_CUDNN_WIDTH = 128
_FLASH_WIDTH_MULTIPLE = 8
_MASK_MULTIPLE = 16  # of the key length, for the efficient kernel's bias


class Attention:
    """Lowers attention calls, and counts those for which another kernel than the chosen one had to serve.

    Args:
        kernels: whose operators to show.
        attention: the kernel asked for on CUDA; on CPU there is one, which "eager" declines.
    """

    def __init__(self, kernels: Kernels, attention: AttentionKernel) -> None:
        self._kernels = kernels
        self._attention = attention
        self.fallbacks: dict[str, int] = {}  # sentence -> calls

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """What `scaled_dot_product_attention` returns: [batch, heads, length, width]."""
        call = AttentionCall(
            query=query,
            key=key,
            value=value,
            mask=attn_mask,
            dropout=dropout_p,
            is_causal=is_causal,
            scale=scale,
            is_grouped=enable_gqa,
        )
        if self._kernels is Kernels.CPU:
            is_fused = self._attention is not AttentionKernel.EAGER and not _cpu_obstacle(call)
            return _cpu(call) if is_fused else _math(call)
        return _ISSUERS[self._choose(call)](call)

    def _choose(self, call: AttentionCall) -> str:
        first_obstacle = ""
        for kernel in _ORDERS[self._attention]:
            obstacle = _OBSTACLES[kernel](call)
            if not obstacle:
                self._note(kernel, first_obstacle)
                return kernel
            first_obstacle = first_obstacle or f"{kernel} attention {obstacle}"
        self._note(_MATH, first_obstacle)
        return _MATH

    def _note(self, kernel: str, obstacle: str) -> None:
        if obstacle:
            sentence = f"{obstacle}: {kernel} is used"
            self.fallbacks[sentence] = self.fallbacks.get(sentence, 0) + 1


# -- what keeps a kernel from serving a call; empty if nothing does
# -----------------------------------------------


def _shape_obstacle(call: AttentionCall) -> str:
    tensors = (call.query, call.key, call.value)
    if any(tensor.dim() != 4 for tensor in tensors):
        return "needs inputs of shape [batch, heads, length, width]"
    if len({tensor.size(0) for tensor in tensors}) > 1:
        return "needs equal batch sizes"
    if not call.is_grouped and len({tensor.size(1) for tensor in tensors}) > 1:
        return "needs equal numbers of heads"
    if any(tensor.stride(-1) != 1 and tensor.size(-1) > 1 for tensor in tensors):
        return "needs contiguous rows"
    return ""


def _half_obstacle(call: AttentionCall) -> str:
    return "" if call.query.dtype in (torch.float16, torch.bfloat16) else "needs 16-bit inputs"


def _flash_obstacle(call: AttentionCall) -> str:
    obstacle = _shape_obstacle(call) or _half_obstacle(call)
    if obstacle:
        return obstacle
    if call.mask is not None:
        return "takes no mask"
    width = call.query.size(-1)
    if not width == call.key.size(-1) == call.value.size(-1) <= _MAX_FLASH_WIDTH:
        return f"needs equal widths up to {_MAX_FLASH_WIDTH}"
    if call.is_causal and call.query.size(-2) != call.key.size(-2):
        return "needs equal lengths to be causal"
    return ""


def _efficient_obstacle(call: AttentionCall) -> str:
    multiple = 8 if call.query.dtype in (torch.float16, torch.bfloat16) else 4
    obstacle = _shape_obstacle(call)
    if obstacle:
        return obstacle
    if call.query.size(1) != call.key.size(1):
        return "does not group query heads"
    if call.query.size(-1) % multiple or call.value.size(-1) % multiple:
        return f"needs widths that are multiples of {multiple}"
    return "" if call.query.dtype in (torch.float16, torch.bfloat16, torch.float32) else "needs 16- or 32-bit inputs"


def _cudnn_obstacle(call: AttentionCall) -> str:
    obstacle = _shape_obstacle(call) or _half_obstacle(call)
    if obstacle:
        return obstacle
    widths = (call.query.size(-1), call.value.size(-1))
    if max(widths) > _MAX_CUDNN_WIDTH or any(width % 8 for width in widths):
        return f"needs widths that are multiples of 8 up to {_MAX_CUDNN_WIDTH}"
    return "takes no mask that requires a gradient" if call.mask is not None and call.mask.requires_grad else ""


def _cpu_obstacle(call: AttentionCall) -> str:
    obstacle = _shape_obstacle(call)
    if obstacle:
        return obstacle
    if call.dropout > 0.0:
        return "has no dropout"
    if call.mask is not None and (call.mask.requires_grad or call.mask.dim() not in (2, 4)):
        return "takes no such mask"
    return "" if call.query.size(-1) == call.key.size(-1) == call.value.size(-1) else "needs equal widths"


_OBSTACLES = {
    AttentionKernel.FLASH: _flash_obstacle,
    AttentionKernel.EFFICIENT: _efficient_obstacle,
    AttentionKernel.CUDNN: _cudnn_obstacle,
}


# -- the operators
# ------------------------------------------------------------------------------------------------


def _math(call: AttentionCall) -> torch.Tensor:
    return torch.ops.aten._scaled_dot_product_attention_math.default(  # type: ignore[no-any-return]
        call.query,
        call.key,
        call.value,
        _additive(call.mask, call.query.dtype),
        call.dropout,
        call.is_causal,
        scale=call.scale,
        enable_gqa=call.is_grouped,
    )[0]


def _cpu(call: AttentionCall) -> torch.Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(  # type: ignore[no-any-return]
        call.query,
        call.key,
        call.value,
        call.dropout,
        call.is_causal,
        attn_mask=_additive(call.mask, call.query.dtype),
        scale=call.scale,
    )[0]


def _flash(call: AttentionCall) -> torch.Tensor:
    """Grouped heads are the kernel's own business; widths are padded to a multiple of 8."""
    width = call.query.size(-1)
    missing = -width % _FLASH_WIDTH_MULTIPLE
    padded = [F.pad(t, (0, missing)) if missing else t for t in (call.query, call.key, call.value)]
    scale = width**-0.5 if call.scale is None else call.scale
    output: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention.default(
        *padded, call.dropout, call.is_causal, False, scale=scale
    )[0]
    return output[..., :width] if missing else output


def _efficient(call: AttentionCall) -> torch.Tensor:
    return torch.ops.aten._scaled_dot_product_efficient_attention.default(  # type: ignore[no-any-return]
        call.query, call.key, call.value, _bias(call), True, call.dropout, call.is_causal, scale=call.scale
    )[0]


def _cudnn(call: AttentionCall) -> torch.Tensor:
    mask = _additive(call.mask, call.query.dtype)
    return torch.ops.aten._scaled_dot_product_cudnn_attention.default(  # type: ignore[no-any-return]
        call.query, call.key, call.value, mask, True, call.dropout, call.is_causal, False, scale=call.scale
    )[0]


_ISSUERS = {
    _MATH: _math,
    AttentionKernel.FLASH: _flash,
    AttentionKernel.EFFICIENT: _efficient,
    AttentionKernel.CUDNN: _cudnn,
}


def _additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """The mask as numbers to add to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    lowest = torch.scalar_tensor(float("-inf"), dtype=dtype, device=mask.device)
    return torch.where(mask, 0.0, lowest)


def _bias(call: AttentionCall) -> torch.Tensor | None:
    """The bias of the efficient kernel, [batch, heads, query length, key length], rows padded for
    alignment.
    """
    mask = _additive(call.mask, call.query.dtype)
    if mask is None:
        return None
    length = call.key.size(-2)
    missing = -length % _MASK_MULTIPLE
    if missing and mask.size(-1) == length:
        mask = F.pad(mask, (0, missing))[..., :length]
    return mask.expand(call.query.size(0), call.query.size(1), call.query.size(2), length)
