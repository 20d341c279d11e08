"""Makes a trace on meta tensors show the operators that a GPU run would dispatch.

On meta tensors, composite functions choose the portable form: attention becomes the O(S²) math form, dropout becomes
`bernoulli_` and a product. `KernelLowering` catches those calls and issues the fused operator instead. Under autocast
it also casts arguments as CUDA autocast does, because `torch.autocast` does not act on meta tensors.

Python-level functions of `torch.nn.functional` hide their inner calls from a `TorchFunctionMode`, so the entries of
the table are also replaced in that module while the mode is active.
"""

from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from planner.spec import AttentionKernel
from planner.tracing.autocast import Autocast


class Kernels(StrEnum):
    """Whose operators a trace shows."""

    CUDA = "cuda"
    CPU = "cpu"


class KernelLowering(TorchFunctionMode):
    """While active, attention, dropout and autocast show the chosen device's operators.

    Args:
        kernels: whose operators to show.
        attention: the attention operator on CUDA; on CPU its own operator is used unless this is eager.
        autocast: the casts to apply, or None.
    """

    def __init__(self, *, kernels: Kernels, attention: AttentionKernel, autocast: Autocast | None) -> None:
        super().__init__()
        self._attention = attention
        self._kernels = kernels
        self._autocast = autocast
        self._originals: dict[str, Any] = {}
        self.fallbacks: dict[str, int] = {}  # reason -> calls that could not use the chosen attention kernel
        self._table: dict[Any, Callable[..., Any]] = {F.scaled_dot_product_attention: self._lower_attention}
        if kernels is Kernels.CUDA:
            self._table[F.dropout] = _fused_dropout

    def __enter__(self) -> "KernelLowering":
        for function in self._table:
            name = function.__name__
            self._originals[name] = getattr(F, name)
            setattr(F, name, self._redirected(function))
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for name, original in self._originals.items():
            setattr(F, name, original)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._autocast is not None:
            args, kwargs = self._autocast.cast(func, args, kwargs)
        return self._table.get(func, func)(*args, **kwargs)

    def _redirected(self, function: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.__torch_function__(function, (), args, kwargs)

        return call

    def _lower_attention(
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
        """The output of the chosen operator: [B, H, S, D], as `scaled_dot_product_attention` returns it."""
        if enable_gqa:  # the composite expands grouped heads before it picks a kernel
            key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
            value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
        kernel = self._choose(query, key, value, attn_mask, dropout_p)
        if kernel == "math":
            return torch.ops.aten._scaled_dot_product_attention_math.default(  # type: ignore[no-any-return]
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale
            )[0]
        if kernel == "cpu":
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(  # type: ignore[no-any-return]
                query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
            )[0]
        if kernel == AttentionKernel.FLASH:
            return torch.ops.aten._scaled_dot_product_flash_attention.default(  # type: ignore[no-any-return]
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
        bias = _attention_bias(attn_mask, query, key)
        if kernel == AttentionKernel.CUDNN:
            return torch.ops.aten._scaled_dot_product_cudnn_attention.default(  # type: ignore[no-any-return]
                query, key, value, bias, True, dropout_p, is_causal, False, scale=scale
            )[0]
        return torch.ops.aten._scaled_dot_product_efficient_attention.default(  # type: ignore[no-any-return]
            query, key, value, bias, True, dropout_p, is_causal, scale=scale
        )[0]

    def _choose(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        dropout_p: float,
    ) -> str:
        """The kernel that PyTorch's own selection would reach when asked for this one.

        Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and sdp_utils_cpp.cpp, torch 2.13.
        """
        if self._attention is AttentionKernel.EAGER:
            return "math"
        same_width = query.size(-1) == value.size(-1)
        if self._kernels is Kernels.CPU:
            masked_grad = attn_mask is not None and attn_mask.requires_grad
            return "cpu" if dropout_p == 0.0 and same_width and not masked_grad and query.dim() == 4 else "math"
        if query.dim() != 4:
            return self._fall_back("math", "attention input is not [batch, heads, length, width]")
        if self._attention is AttentionKernel.EFFICIENT:
            return AttentionKernel.EFFICIENT
        if query.dtype not in (torch.float16, torch.bfloat16):
            return self._fall_back(AttentionKernel.EFFICIENT, f"{self._attention} attention needs 16-bit inputs")
        if self._attention is AttentionKernel.FLASH and attn_mask is not None:
            return self._fall_back(AttentionKernel.EFFICIENT, "flash attention takes no mask")
        if self._attention is AttentionKernel.FLASH and not same_width:
            return self._fall_back(AttentionKernel.EFFICIENT, "flash attention needs equal key and value width")
        return self._attention

    def _fall_back(self, kernel: str, reason: str) -> str:
        text = f"{reason}: {kernel} used"
        self.fallbacks[text] = self.fallbacks.get(text, 0) + 1
        return kernel


def _attention_bias(
    mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor | None:
    """The additive bias the efficient and cuDNN kernels take, [B, H, Q, K], boolean masks converted."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), float("-inf"))
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))


def _fused_dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """Dropout as CUDA dispatches it: one operator that also returns its mask."""
    if inplace or not training or not 0.0 < p < 1.0:
        return torch.dropout_(input, p, training) if inplace else torch.dropout(input, p, training)
    return torch.ops.aten.native_dropout.default(input, p, True)[0]  # type: ignore[no-any-return]
