"""What the workspace rules are given, and what several of them need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of an operator.

    Attributes:
        arguments: by the names of the operator's schema, defaults included.
        outputs: the tensors it returned, in order.
        threads: how many a kernel's parallel loops use.
    """

    arguments: Mapping[str, Any]
    outputs: tuple[torch.Tensor, ...]
    threads: int


REDUCED = (torch.bfloat16, torch.float16)
FLOAT_BYTES = torch.float32.itemsize
# Of an image and of a volume, from the dimension that varies fastest to the one that varies slowest.
_CHANNELS_LAST_ORDERS = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}

Rule = Callable[[Call], int]


def copy_bytes(tensor: torch.Tensor | None, memory_format: torch.memory_format = torch.contiguous_format) -> int:
    """Bytes of the copy that `tensor.contiguous(memory_format=...)` makes: 0 where it returns the tensor itself."""
    if tensor is None or tensor.is_contiguous(memory_format=memory_format):
        return 0
    return tensor.nbytes


def sum_bytes(tensor: torch.Tensor, dims: Sequence[int]) -> int:
    """Bytes that a sum over some dimensions takes on a CPU beside its result.

    The loop of a reduction runs over two dimensions. Where both are summed and others follow, reduced precision
    would be accumulated in itself: the tensor is converted to float32 first, and so is the result.

    Source: aten/src/ATen/native/ReduceOps.cpp, `sum_out` and `should_use_acc_buffer`.
    """
    if tensor.dtype not in REDUCED:
        return 0
    reduced = sorted(
        (tensor.stride(dim), tensor.size(dim)) for dim in {dim % tensor.dim() for dim in dims} if tensor.size(dim) > 1
    )
    # Dimensions that follow on each other in memory are one to the loop.
    loops = sum(
        place == 0 or stride != reduced[place - 1][0] * reduced[place - 1][1]
        for place, (stride, _) in enumerate(reduced)
    )
    if loops <= 1:
        return 0
    results = tensor.numel() // prod(size for _, size in reduced)
    return (tensor.numel() + results) * FLOAT_BYTES


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether the strides of an image or a volume say that channels vary fastest, also where a size of 1 leaves it
    open.

    Source: c10/core/MemoryFormat.h, `is_channels_last_strides_2d_s4` and `_3d_s5`, which `suggest_memory_format` asks.
    """
    if tensor.dim() not in _CHANNELS_LAST_ORDERS or not tensor.stride(1):
        return False
    least = 0
    for dim in _CHANNELS_LAST_ORDERS[tensor.dim()]:
        size, stride = tensor.size(dim), tensor.stride(dim)
        if not size or stride < least or (dim == 0 and least == tensor.stride(1)):
            return False
        least = stride * size
    return True
