"""Workspaces against what the CPU allocator gives out while the operator runs."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints at each start and stop

from itertools import accumulate
from typing import Any

import pytest
import torch

from planner.tracing.attention import Kernels
from planner.tracing.operators import tensors_in
from planner.tracing.workspace import workspace_bytes, workspace_rule

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def measured(func: Any, args: tuple[Any, ...]) -> tuple[int, Any]:
    """Bytes allocated at the height of the call beside what it returns, and what it returns."""
    with (
        torch.backends.mkldnn.flags(enabled=False),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile,
    ):
        result = func(*args)
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    peak = max(accumulate((event.nbytes() for event in events), initial=0))
    return peak - sum(tensor.untyped_storage().nbytes() for tensor in tensors_in(result)), result


def predicted(func: Any, args: tuple[Any, ...], result: Any, kernels: Kernels = Kernels.CPU) -> int:
    rule = workspace_rule(func, str(func), kernels)
    return 0 if rule is None else workspace_bytes(rule, func, args, {}, tensors_in(result))


CONVOLUTIONS = {
    "a plane": ((3, 4, 9, 7), (6, 4, 3, 3), {}),
    "1 x 1": ((3, 4, 9, 7), (6, 4, 1, 1), {"padding": 0}),
    "1 x 1 with a stride": ((3, 4, 9, 7), (6, 4, 1, 1), {"padding": 0, "stride": 2}),
    "a line": ((3, 4, 11), (6, 4, 3), {}),
    "a volume": ((2, 4, 5, 6, 7), (6, 4, 3, 3, 3), {}),
    "dilated": ((3, 4, 9, 7), (6, 4, 3, 3), {"dilation": 2}),
    "two groups": ((3, 4, 9, 7), (6, 2, 3, 3), {"groups": 2}),
    "depthwise": ((3, 6, 9, 7), (6, 1, 3, 3), {"groups": 6}),
    "transposed": ((3, 4, 5, 7), (4, 6, 2, 2), {"padding": 0, "stride": 2, "transposed": True}),
    "a batch for NNPACK": ((17, 4, 9, 7), (6, 4, 3, 3), {}),
}


def convolution_arguments(name: str, layout: str, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    shape, kernel, options = CONVOLUTIONS[name]
    source, weight = torch.randn(shape).to(dtype), torch.randn(kernel).to(dtype)
    if layout == "channels last":
        source = source.movedim(1, -1).contiguous().movedim(-1, 1)
    count = len(shape) - 2
    is_transposed = bool(options.get("transposed", False))
    groups = int(options.get("groups", 1))
    channels = kernel[1] * groups if is_transposed else kernel[0]
    each = {key: [int(options.get(key, default))] * count for key, default in _DEFAULTS.items()}
    return (
        source,
        weight,
        torch.randn(channels).to(dtype),
        each["stride"],
        each["padding"],
        each["dilation"],
        is_transposed,
        [0] * count,
        groups,
    )


_DEFAULTS = {"stride": 1, "padding": 1, "dilation": 1}


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_take_what_is_predicted_to_the_byte(name: str, layout: str) -> None:
    args = convolution_arguments(name, layout)
    found, output = measured(aten.convolution.default, args)
    assert predicted(aten.convolution.default, args, output) == found

    for wants in ([True, True, True], [True, False, False], [False, True, True]):
        gradient = torch.randn_like(output)
        backward = (gradient, *args[:2], [args[2].shape[0]], *args[3:], wants)
        found, result = measured(aten.convolution_backward.default, backward)
        assert predicted(aten.convolution_backward.default, backward, result) == found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [(24, 24), (100, 300), (200, 600), (800, 1000)])
def test_attention_takes_blocks_of_scores_for_each_thread(dtype: torch.dtype, lengths: tuple[int, int]) -> None:
    query, key = (torch.randn(2, 2, length, 16).to(dtype) for length in lengths)
    args = (query, key, key, 0.0, False)
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    found, result = measured(forward, args)
    assert predicted(forward, args, result) == found

    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    output, sums = result
    more = (torch.randn_like(output), query, key, key, output, sums, 0.0, False)
    found, result = measured(backward, more)
    assert predicted(backward, more, result) == found


def elementwise() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    single, half = torch.randn(4, 6, 7), torch.randn(4, 6, 7).bfloat16()
    mask, indices = torch.ones(4, 6, 7, dtype=torch.bool), torch.zeros(5, 4, dtype=torch.int64).t()
    image, scale = torch.randn(3, 8, 6, 5), torch.randn(8)
    statistics = (torch.randn(8), torch.rand(8))
    rows, norm = torch.randn(3, 5, 64), (torch.randn(3, 5, 1), torch.rand(3, 5, 1))
    return {
        "product of dtypes": (aten.mul.Tensor, (half, single)),
        "comparison of dtypes": (aten.gt.Tensor, (single, half)),
        "broadcast": (aten.add.Tensor, (single, half[0])),
        "equal dtypes": (aten.mul.Tensor, (single, single)),
        "selection": (aten.where.self, (mask, single, half)),
        "masked": (aten.masked_fill.Scalar, (single, mask, 0.0)),
        "count": (aten.sum.dim_IntList, (mask, [1])),
        "sum over two strides": (aten.sum.dim_IntList, (half, [0, 2])),
        "softmax over a transposed dimension": (aten._softmax.default, (single.transpose(0, 2), -1, False)),
        "embedding of transposed indices": (aten.embedding.default, (torch.randn(10, 8), indices)),
        "expanded matrix": (aten.mm.default, (torch.randn(6, 1).expand(6, 7), torch.randn(7, 8))),
        "transposed matrices": (aten.mm.default, (torch.randn(7, 6).t(), torch.randn(8, 7).t())),
        "batch norm": (aten.native_batch_norm.default, (image, scale, scale, *statistics, True, 0.1, 1e-5)),
        "batch norm backward": (
            aten.native_batch_norm_backward.default,
            (image, image.clone(), scale, *statistics, *statistics, True, 1e-5, [True] * 3),
        ),
        "layer norm backward": (
            aten.native_layer_norm_backward.default,
            (rows, rows.clone(), [64], *norm, torch.randn(64), torch.randn(64), [True] * 3),
        ),
    }


@pytest.mark.parametrize("name", elementwise())
def test_other_operators_take_what_is_predicted_to_the_byte(name: str) -> None:
    func, args = elementwise()[name]
    found, result = measured(func, args)

    assert predicted(func, args, result) == found


def test_flash_attention_on_cuda_accumulates_the_gradient_of_the_query_in_float32() -> None:
    shape = (2, 4, 100, 72)
    tensor = torch.empty(shape, dtype=torch.bfloat16, device="meta").transpose(1, 2).contiguous().transpose(1, 2)
    func = aten._scaled_dot_product_flash_attention_backward.default
    rule = workspace_rule(func, str(func), Kernels.CUDA)
    assert rule is not None
    args = (tensor,) * 5

    # 100 queries round up to 128, and 72 elements of a head to 96; one more for the row sums.
    assert 2 * 4 * 128 * (96 + 1) * 4 == workspace_bytes(rule, func, args, {}, (tensor,))
