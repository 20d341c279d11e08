"""Autocast for traces on meta tensors, where `torch.autocast` does nothing.

Source of the lists: ATen/autocast_mode.h of torch 2.13 (AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32,
AT_FORALL_FP32_SET_OPT_DTYPE, AT_FORALL_PROMOTE), as CUDA applies them, by function name. Calls made inside
C++ composites are not seen, so `cross_entropy_loss`, which is made of two functions of the float32 list,
stands there itself.
"""

from typing import Any

import torch

LOWER_PRECISION = frozenset(
    {
        *(
            "conv1d",
            "conv2d",
            "conv3d",
            "conv_tbc",
            "conv_transpose1d",
            "conv_transpose2d",
            "conv_transpose3d",
        ),
        *("convolution", "_convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv"),
        *("linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot"),
        *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell"),
        *("rnn_relu_cell", "_scaled_dot_product_flash_attention", "scaled_dot_product_attention"),
    }
)
FLOAT32 = frozenset(
    {
        *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal"),
        *("rsqrt", "sinh", "tan", "pow", "softplus", "layer_norm", "native_layer_norm", "rms_norm"),
        *("group_norm", "frobenius_norm", "nuclear_norm", "cosine_similarity", "poisson_nll_loss"),
        *("cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss"),
        *("smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss"),
        *("soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits"),
        *("dist", "pdist", "cdist", "renorm", "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d"),
        *("upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_nearest3d"),
        *("_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa"),
        *("upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa"),
        *("cross_entropy_loss", "norm"),  # norm: redispatched with dtype=float32
    }
)
# Not cast: they are asked for a float32 result unless the caller asks for another one.
FLOAT32_RESULT = frozenset(
    {
        *("prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm"),
        "sum",
    }
)
PROMOTE = frozenset(
    {
        *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put"),
        *("tensordot", "scatter_add"),
    }
)
# Operators spelled as methods: x @ y arrives as Tensor.__matmul__.
_SPELLINGS = {"__matmul__": "matmul", "__rmatmul__": "matmul", "__pow__": "pow", "__rpow__": "pow"}


class Autocast:
    """Casts arguments as CUDA autocast does, each weight once, as its cache does.

    Args:
        compute: the 16-bit dtype of the lower-precision list.
    """

    def __init__(self, compute: torch.dtype) -> None:
        self._compute = compute
        self._weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def cast(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments, floating-point tensors cast if the function is in one of the lists."""
        name = getattr(func, "__name__", "")
        name = _SPELLINGS.get(name, name)
        if name in FLOAT32_RESULT:
            return args, _with_result_dtype(name, args, kwargs)
        if name in LOWER_PRECISION:
            dtype = self._compute
        elif name in FLOAT32:
            dtype = torch.float32
        elif name in PROMOTE:
            dtype = _widest([*args, *kwargs.values()])
        else:
            return args, kwargs
        return self._cast(args, dtype), {key: self._cast(value, dtype) for key, value in kwargs.items()}

    def forget(self) -> None:
        """Drop the cached casts, as leaving an autocast region does."""
        self._weights.clear()

    def _cast(self, item: Any, dtype: torch.dtype) -> Any:
        if type(item) in (tuple, list):
            return type(item)(self._cast(part, dtype) for part in item)
        if not _is_eligible(item) or item.dtype == dtype:
            return item
        is_weight = item.dtype == torch.float32 and item.is_leaf and item.requires_grad and not item._is_view()
        if dtype != self._compute or not is_weight:
            return item.to(dtype)
        if id(item) not in self._weights:
            self._weights[id(item)] = (item, item.to(dtype))
        return self._weights[id(item)][1]


def _is_eligible(item: Any) -> bool:
    """Whether autocast touches it: double and integers it leaves alone."""
    return isinstance(item, torch.Tensor) and item.is_floating_point() and item.dtype != torch.float64


def _with_result_dtype(name: str, args: Any, kwargs: Any) -> Any:
    asked = kwargs.get("dtype") is not None or any(isinstance(item, torch.dtype) for item in args)
    first = args[0] if args else kwargs.get("input")
    # A plain float32 or integer input keeps its own rules, so that nothing changes in what is dispatched.
    if asked or not _is_eligible(first) or first.dtype == torch.float32:
        return kwargs
    return {**kwargs, "dtype": torch.float32}


def _widest(items: list[Any]) -> torch.dtype:
    dtypes = [item.dtype for item in items if isinstance(item, torch.Tensor) and item.is_floating_point()]
    return torch.float32 if torch.float32 in dtypes or not dtypes else dtypes[0]
