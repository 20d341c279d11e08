"""Workspaces of PyTorch's own convolutions on a CPU: what is used when oneDNN is off.

They unfold each patch of the input into a column and multiply matrices. Which of them runs, and whether the
columns of all samples or of one at a time are held, depends on the call.

Source: aten/src/ATen/native/Convolution.cpp (`_select_conv_backend`, `_convolution`, `convolution_backward`) for
the choice, the loop over groups and the copies; ConvolutionMM2d.cpp, ConvolutionMM3d.cpp,
NaiveDilatedConvolution.cpp, NaiveConvolutionTranspose2d.cpp and NaiveConvolutionTranspose3d.cpp for the buffers;
NNPACK.cpp for what it is used for. Read and measured in torch 2.13. Kernels of other than x86 machines, which
have a depthwise one of their own, are not described.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Any

import torch

from planner.tracing.workspace.call import Call, copy_bytes, is_channels_last, sum_bytes

# `ConvParams::use_nnpack`: what NNPACK supports, and from which batch it is thought to be worth it.
_NNPACK_MIN_BATCH = 16
_NNPACK_MAX_KERNEL = 16
# Of the weight: channels out, channels in, and space.
_LINE_DIMENSIONS = 3
_VOLUME_DIMENSIONS = 5


class Kernel(StrEnum):
    """The kernel that a convolution runs in."""

    PLANE = "slow2d"
    VOLUME = "slow3d"
    DILATED = "slow_dilated"
    TRANSPOSED_PLANE = "slow_transpose2d"
    TRANSPOSED_VOLUME = "slow_transpose3d"
    NNPACK = "nnpack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """What one call of a kernel is given, in numbers.

    Attributes:
        kernel: what it runs in.
        batch: samples.
        column_bytes: of the unfolded input of one sample; of a transposed one, of its unfolded output.
        is_pointwise: 1 × 1 with stride 1 and no padding, so that the input already is its own columns.
        input_bytes: of the input.
        bias_bytes: of the bias or its gradient.
        bias_sum_bytes: of what summing the gradient of the bias takes.
        ones_bytes: a plane of ones, as large as the output of one sample in one channel.
        copied_input_bytes, copied_weight_bytes, copied_gradient_bytes: of the copies that change the layout.
    """

    kernel: Kernel
    batch: int
    column_bytes: int
    is_pointwise: bool
    input_bytes: int
    bias_bytes: int
    bias_sum_bytes: int
    ones_bytes: int
    copied_input_bytes: int
    copied_weight_bytes: int
    copied_gradient_bytes: int


def convolution(call: Call) -> int:
    """Workspace of the forward of a convolution."""
    if not call.outputs[0].numel():
        return 0
    shape = _Shape.of(call.arguments, call.outputs[0])
    has_bias = call.arguments["bias"] is not None
    if not shape.is_split:
        return _forward(_one_group(shape), has_bias)
    in_a_group = _slice_bytes(shape.source, shape) + _forward(_one_group(shape), has_bias)
    # In the end, the outputs of all groups are joined.
    return shape.copied_input_bytes + shape.copied_weight_bytes + max(call.outputs[0].nbytes, in_a_group)


def convolution_backward(call: Call) -> int:
    """Workspace of the backward of a convolution."""
    if not call.arguments["grad_output"].numel():
        return 0
    shape = _Shape.of(call.arguments, call.arguments["grad_output"], is_backward=True)
    wants = tuple(call.arguments["output_mask"])
    sizes = tuple(output.nbytes for output in call.outputs)
    if not shape.is_split:
        return _backward(_one_group(shape), wants, sizes)
    in_a_group = (
        _slice_bytes(shape.output, shape)
        + _slice_bytes(shape.source, shape)
        + _backward(_one_group(shape), wants, tuple(size // shape.groups for size in sizes))
    )
    return shape.copied_input_bytes + shape.copied_weight_bytes + max(sum(sizes), in_a_group)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """A call in two or three dimensions, and what is copied before its groups are looked at.

    Attributes:
        kernel: what it runs in.
        layout: the order of dimensions that the kernel works in.
        source, weight: of the call, the source as it is after a copy.
        output: what forward returns, or its gradient.
        groups: of channels.
        is_transposed: as in the call.
        is_pointwise: the kernel is 1 × 1, with stride and dilation 1 and no padding.
        is_split: the groups are computed one after the other.
        copied_input_bytes, copied_weight_bytes: of the copies that change the layout.
    """

    kernel: Kernel
    layout: torch.memory_format
    source: torch.Tensor
    weight: torch.Tensor
    output: torch.Tensor
    groups: int
    is_transposed: bool
    is_pointwise: bool
    is_split: bool
    copied_input_bytes: int
    copied_weight_bytes: int

    @classmethod
    def of(cls, settings: Mapping[str, Any], output: torch.Tensor, *, is_backward: bool = False) -> "_Shape":
        """The shape of a call, given its output or the gradient of it."""
        source, weight, groups = settings["input"], settings["weight"], settings["groups"]
        kernel = _kernel(source, weight, settings)
        copied = 0
        if weight.dim() == _LINE_DIMENSIONS or kernel is Kernel.NNPACK:
            copied = copy_bytes(source)
            source = _as_copied(source, torch.contiguous_format) if copied else source
        if is_backward and kernel is Kernel.NNPACK:  # which has no backward
            kernel = Kernel.DILATED
        if weight.dim() == _LINE_DIMENSIONS:  # computed as a plane that is one pixel high
            source, weight, output = source.unsqueeze(2), weight.unsqueeze(2), output.unsqueeze(2)
        layout = _layout(kernel, source, weight)
        copied += copy_bytes(source, layout)
        return cls(
            kernel=kernel,
            layout=layout,
            source=_as_copied(source, layout) if copied else source,
            weight=weight,
            output=output,
            groups=groups,
            is_transposed=settings["transposed"],
            is_pointwise=all(size == 1 for size in (*weight.shape[2:], *settings["stride"], *settings["dilation"]))
            and not any((*settings["padding"], *settings["output_padding"])),
            is_split=groups > 1 and kernel is not Kernel.VOLUME,
            copied_input_bytes=copied,
            copied_weight_bytes=copy_bytes(weight, layout),
        )


def _kernel(source: torch.Tensor, weight: torch.Tensor, settings: Mapping[str, Any]) -> Kernel:
    """The kernel chosen for a call."""
    is_volume = weight.dim() == _VOLUME_DIMENSIONS
    is_dilated = any(step != 1 for step in settings["dilation"])
    if settings["transposed"]:
        return Kernel.TRANSPOSED_VOLUME if is_volume else Kernel.TRANSPOSED_PLANE
    if (
        not is_volume
        and not is_dilated
        and torch.backends.nnpack.is_available()  # type: ignore[no-untyped-call]
        and source.dtype is torch.float32
        and source.shape[0] >= _NNPACK_MIN_BATCH
        and all(size <= _NNPACK_MAX_KERNEL for size in weight.shape[2:])
        and all(pad < size for pad, size in zip(settings["padding"], weight.shape[2:], strict=False))
    ):
        return Kernel.NNPACK
    if is_dilated:
        return Kernel.DILATED
    return Kernel.VOLUME if is_volume else Kernel.PLANE


def _layout(kernel: Kernel, source: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Channels last if the input or the weight of a plane is, in the kernels that can.

    Source: ConvUtils.h, `thnn_conv_use_channels_last`.
    """
    can = kernel in (Kernel.PLANE, Kernel.DILATED, Kernel.TRANSPOSED_PLANE) and weight.dim() < _VOLUME_DIMENSIONS
    return torch.channels_last if can and any(map(is_channels_last, (source, weight))) else torch.contiguous_format


def _as_copied(tensor: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    """A tensor without data of the same shape in another layout."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta", memory_format=layout)


def _one_group(shape: _Shape) -> Convolution:
    """The numbers of what the kernel is called with: one group if they are computed one after the other."""
    count = shape.groups if shape.is_split else 1
    source, weight, output = shape.source, shape.weight, shape.output
    channels, folded = (weight.shape[1], source) if shape.is_transposed else (source.shape[1] // count, output)
    size_bytes = source.dtype.itemsize
    gradient = output.narrow(1, 0, output.shape[1] // count)
    if shape.is_split and _slice_bytes(output, shape):
        gradient = _as_copied(gradient, _own_layout(output))
    return Convolution(
        kernel=shape.kernel,
        batch=source.shape[0],
        column_bytes=channels * prod(weight.shape[2:]) * prod(folded.shape[2:]) * size_bytes,
        is_pointwise=shape.is_pointwise and (shape.is_split or shape.groups == 1),
        input_bytes=source.nbytes // count,
        bias_bytes=output.shape[1] // count * size_bytes,
        bias_sum_bytes=sum_bytes(gradient, tuple(dim for dim in range(gradient.dim()) if dim != 1)),
        ones_bytes=prod(output.shape[2:]) * size_bytes,
        copied_input_bytes=0 if shape.is_split else shape.copied_input_bytes,
        copied_weight_bytes=0 if shape.is_split else shape.copied_weight_bytes,
        copied_gradient_bytes=copy_bytes(gradient, shape.layout),
    )


def _slice_bytes(tensor: torch.Tensor, shape: _Shape) -> int:
    """Bytes of the copy that makes one group's channels contiguous, in the layout that the tensor has.

    Source: Convolution.cpp, `subtensor`.
    """
    return copy_bytes(tensor.narrow(1, 0, tensor.shape[1] // shape.groups), _own_layout(tensor))


def _own_layout(tensor: torch.Tensor) -> torch.memory_format:
    if not is_channels_last(tensor):
        return torch.contiguous_format
    return torch.channels_last_3d if tensor.dim() == _VOLUME_DIMENSIONS else torch.channels_last


def _forward(group: Convolution, has_bias: bool) -> int:
    """The most at once in the forward of one group: copies and columns, beside the output."""
    copied = group.copied_input_bytes + group.copied_weight_bytes
    everyone = group.batch * group.column_bytes
    match group.kernel:
        case Kernel.NNPACK:  # allocates outside PyTorch's allocator, but wants a bias
            return copied + (0 if has_bias else group.bias_bytes)
        case Kernel.PLANE | Kernel.VOLUME:
            return copied + (0 if group.is_pointwise else everyone)
        case Kernel.TRANSPOSED_PLANE:  # its columns are there even where they are not used
            return copied + everyone
        case Kernel.DILATED:
            return copied + group.column_bytes
        case Kernel.TRANSPOSED_VOLUME:
            # What is as large as the input is dropped before the columns are there.
            return copied + max(group.input_bytes, group.column_bytes + (group.ones_bytes if has_bias else 0))


def _backward(group: Convolution, wants: tuple[bool, ...], output_bytes: tuple[int, ...]) -> int:
    """The most at once in the backward of one group.

    Args:
        group: its numbers.
        wants: whether gradients of input, weight and bias are computed.
        output_bytes: of the gradients that are, in this order.
    """
    held = group.copied_input_bytes + group.copied_weight_bytes
    for_input, for_weight, for_bias = wants
    # The bias is summed before there is a gradient of the weight.
    bias_sum_bytes = group.bias_sum_bytes - (output_bytes[-2] if for_weight else 0) if for_bias else 0
    if not for_input and not for_weight:
        return held + bias_sum_bytes
    match group.kernel:
        case Kernel.PLANE:
            # The gradient of the input unfolds one sample at a time, outside PyTorch's allocator.
            columns = 0 if group.is_pointwise or not for_weight else group.batch * group.column_bytes
            return held + max(group.copied_gradient_bytes + columns, bias_sum_bytes)
        case Kernel.VOLUME:
            everyone = group.batch * group.column_bytes
            # It unfolds twice, the first time while the gradients of weight and bias do not exist yet.
            later = sum(output_bytes[1:]) if for_input else 0
            first = everyone - later if for_input else 0
            second = (0 if group.is_pointwise else everyone) + group.copied_input_bytes if for_weight else 0
            working = group.copied_gradient_bytes + max(0, first, second)
            return group.copied_weight_bytes + max(working, bias_sum_bytes)
        case Kernel.DILATED | Kernel.NNPACK:
            return held + group.copied_gradient_bytes + group.column_bytes + (group.bias_bytes if for_bias else 0)
        case Kernel.TRANSPOSED_PLANE | Kernel.TRANSPOSED_VOLUME:
            columns = 0 if group.is_pointwise else group.column_bytes
            return held + max(group.copied_gradient_bytes + columns, bias_sum_bytes)
