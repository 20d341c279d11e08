"""Which measured rate an op runs at, and how much work it then has. No torch.

Kinds are sorted by operator name. What no table here names is elementwise: most of what is dispatched is.
"""

from collections.abc import Mapping

from planner.device import Kind
from planner.graph import Op

_BACKWARD: Mapping[Kind, Kind] = {
    Kind.CONVOLUTION: Kind.CONVOLUTION_BACKWARD,
    Kind.ATTENTION: Kind.ATTENTION_BACKWARD,
    Kind.CAUSAL_ATTENTION: Kind.CAUSAL_ATTENTION_BACKWARD,
}
_NAMES: Mapping[Kind, str] = {
    # Exponentials, logarithms and what is made of them; backward of tanh and sigmoid is not.
    Kind.EXPONENTIAL: """
        exp exp_ expm1 log log1p log2 sin cos tanh tanh_ sigmoid sigmoid_ erf gelu gelu_backward silu silu_
        silu_backward softplus softplus_backward elu elu_backward mish mish_backward log_sigmoid_forward
        log_sigmoid_backward binary_cross_entropy_with_logits
    """,
    Kind.COPY: "clone copy copy_ cat stack _to_copy repeat constant_pad_nd roll flip contiguous slice_scatter",
    Kind.FILL: "zeros zeros_like new_zeros zero_ ones ones_like new_ones full full_like new_full fill fill_ arange",
    Kind.REDUCTION: """
        sum mean amax amin max min all any norm linalg_vector_norm var var_mean std logsumexp argmax argmin prod
        cumsum nll_loss_forward nll_loss2d_forward mse_loss
    """,
    Kind.SOFTMAX: "_softmax _log_softmax",
    Kind.SOFTMAX_BACKWARD: "_softmax_backward_data _log_softmax_backward_data",
    Kind.SAFE_SOFTMAX: "_safe_softmax",
    Kind.LAYER_NORM: "native_layer_norm native_group_norm _fused_rms_norm",
    Kind.LAYER_NORM_BACKWARD: "native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward",
    Kind.BATCH_NORM: "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit",
    Kind.BATCH_NORM_BACKWARD: "native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward",
    Kind.POOLING: """
        max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d
        _adaptive_avg_pool3d upsample_bilinear2d upsample_nearest2d
    """,
    Kind.GATHER: "embedding index gather index_select",
    Kind.SCATTER: """
        embedding_dense_backward index_put index_put_ scatter scatter_add scatter_add_ index_add index_add_
        nll_loss_backward nll_loss2d_backward slice_backward select_backward max_pool2d_with_indices_backward
        max_pool3d_with_indices_backward
    """,
}
_KIND_BY_NAME: Mapping[str, Kind] = {f"aten.{name}": kind for kind, names in _NAMES.items() for name in names.split()}
# Their operands may be much larger than what they touch of them; what they write is what they take.
_WRITERS = frozenset({Kind.GATHER, Kind.SCATTER, Kind.FILL, Kind.RANDOM})


def kind_of(op: Op) -> Kind:
    """The kind whose measured rate fits the op; elementwise where nothing fits better."""
    name = op.name.rpartition(".")[0]
    if op.flops:
        kind = Kind.PRODUCT
        if "attention" in name:
            kind = Kind.CAUSAL_ATTENTION if op.is_causal else Kind.ATTENTION
        elif "convolution" in name:
            kind = Kind.CONVOLUTION
        return _BACKWARD.get(kind, kind) if "backward" in name else kind
    if op.is_random:
        return Kind.RANDOM
    return _KIND_BY_NAME.get(name, Kind.ELEMENTWISE)


def counted_bytes(op: Op, kind: Kind) -> int:
    """Bytes that the kind's rate counts: what is read and written, or of gathers, scatters and fills what is written.

    They also stand below the FLOPs in FLOPs per byte.
    """
    return op.write_bytes if kind in _WRITERS else op.read_bytes + op.write_bytes
