"""Makes a trace on meta tensors show the operators that a GPU run would dispatch.

On meta tensors, composite functions choose the portable form: dropout becomes `bernoulli_` and a product,
RMS norm a chain of products. `KernelLowering` catches those calls and issues the fused operator instead.
Under autocast it also casts arguments as CUDA autocast does, because `torch.autocast` does not act on meta
tensors.

Functions of `torch.nn.functional` that are written in Python would hide their inner calls from a
`TorchFunctionMode`: while this one is active they do not look for one, so that it sees each call that
reaches C++.
"""

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch.overrides import TorchFunctionMode

from planner.errors import TraceError
from planner.spec import AttentionKernel
from planner.tracing.attention import Attention, Kernels
from planner.tracing.autocast import Autocast
from planner.tracing.rms_norm import lower_rms_norm

__all__ = ["KernelLowering", "Kernels"]

_LOOKUPS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class KernelLowering(TorchFunctionMode):
    """While active, attention, dropout, RMS norm and autocast show the chosen device's operators.

    Args:
        kernels: whose operators to show.
        attention: the attention kernel on CUDA; on CPU its own is used unless this is eager.
        autocast: the casts to apply, or None.
    """

    def __init__(self, *, kernels: Kernels, attention: AttentionKernel, autocast: Autocast | None) -> None:
        super().__init__()
        self._autocast = autocast
        self._attention = Attention(kernels, attention)
        self._patches = ExitStack()
        self._table: dict[Any, Callable[..., Any]] = {F.scaled_dot_product_attention: self._attention}
        if kernels is Kernels.CUDA:
            self._table |= {torch.dropout: _fused_dropout, torch.rms_norm: lower_rms_norm}
            self._table |= dict.fromkeys(_RECURRENT, _refuse_recurrent)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know of the choices made."""
        return tuple(f"{sentence} ({count} calls)" for sentence, count in self._attention.fallbacks.items())

    def __enter__(self) -> "KernelLowering":
        with ExitStack() as stack:
            for name in _LOOKUPS:
                stack.enter_context(patch.object(F, name, _finds_nothing))
            self._patches = stack.pop_all()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._patches:
            super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._autocast is not None:
            args, kwargs = self._autocast.cast(func, args, kwargs)
        return self._table.get(func, func)(*args, **kwargs)


def _finds_nothing(*_: Any) -> bool:
    return False


def _fused_dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout as CUDA dispatches it: one operator that also returns its mask."""
    if not train or not 0.0 < p < 1.0 or not input.numel():
        return torch.dropout(input, p, train)
    return torch.ops.aten.native_dropout.default(input, p, True)[0]  # type: ignore[no-any-return]


def _refuse_recurrent(*_: Any, **__: Any) -> Any:
    raise TraceError(
        "a recurrent layer runs as one cuDNN kernel, whose reserve buffer has no size known without a GPU: "
        "LSTM, GRU and RNN layers are not supported"
    )
