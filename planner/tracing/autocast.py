"""Autocast for traces on meta tensors, where `torch.autocast` does nothing.

Source of the lists: aten/src/ATen/autocast_mode.h of torch 2.13 (AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32,
AT_FORALL_FP32_SET_OPT_DTYPE, AT_FORALL_PROMOTE), by function name. Calls made inside C++ composites are not seen, so
`cross_entropy`, whose log-softmax and nll_loss are both in the float32 list, stands in the list itself.
"""

from typing import Any

import torch

LOWER_PRECISION = frozenset(
    "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu addmm addmv "
    "addr matmul einsum mm mv vecdot linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot "
    "scaled_dot_product_attention lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell".split()
)
FLOAT32 = frozenset(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm "
    "native_layer_norm group_norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss "
    "nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss "
    "multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss cross_entropy "
    "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp prod softmax log_softmax cumprod cumsum "
    "linalg_vector_norm linalg_matrix_norm sum norm".split()
)
PROMOTE = frozenset("addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put tensordot scatter_add".split())
# Operators spelled as methods: x @ y arrives as Tensor.__matmul__.
_DUNDERS = {"__matmul__": "matmul", "__rmatmul__": "matmul", "__pow__": "pow", "__rpow__": "pow"}


class Autocast:
    """Casts arguments as CUDA autocast does, each weight once, as its cache does.

    Args:
        compute: the 16-bit dtype of the lower-precision list.
    """

    def __init__(self, compute: torch.dtype) -> None:
        self._compute = compute
        self._weights: dict[int, torch.Tensor] = {}

    def cast(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments, floating-point tensors cast if the function is in one of the lists."""
        name = getattr(func, "__name__", "")
        name = _DUNDERS.get(name, name)
        if name in LOWER_PRECISION:
            dtype = self._compute
        elif name in FLOAT32:
            dtype = torch.float32
        elif name in PROMOTE:
            dtype = _widest([*args, *kwargs.values()])
        else:
            return args, kwargs
        if name in ("softmax", "log_softmax", "sum", "prod", "cumsum", "cumprod") and (
            kwargs.get("dtype") is not None
        ):
            return args, kwargs  # an explicit output type wins
        return self._cast(args, dtype), {key: self._cast(value, dtype) for key, value in kwargs.items()}

    def forget(self) -> None:
        """Drop the cached casts, as leaving an autocast region does."""
        self._weights.clear()

    def _cast(self, item: Any, dtype: torch.dtype) -> Any:
        if isinstance(item, tuple | list):
            return type(item)(self._cast(part, dtype) for part in item) if type(item) in (tuple, list) else item
        if not isinstance(item, torch.Tensor) or not item.is_floating_point() or item.dtype == dtype:
            return item
        if item.dtype == torch.float64:
            return item  # autocast leaves double alone
        if not (dtype == self._compute and item.is_leaf and item.requires_grad and item.dtype == torch.float32):
            return item.to(dtype)
        if id(item) not in self._weights:
            self._weights[id(item)] = item.to(dtype)
        return self._weights[id(item)]


def _widest(items: list[Any]) -> torch.dtype:
    dtypes = [item.dtype for item in items if isinstance(item, torch.Tensor) and item.is_floating_point()]
    return torch.float32 if torch.float32 in dtypes or not dtypes else dtypes[0]
