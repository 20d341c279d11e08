"""The casts of a trace are those of `torch.autocast` on CUDA: by its lists, and by a real CPU run where
they agree.
"""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from planner import spec as specs
from planner.graph import OpGraph, StorageKind, ops, saved_tensors, storages, values
from planner.tracing import Kernels, trace_spec
from planner.tracing.autocast import FLOAT32, FLOAT32_RESULT, LOWER_PRECISION, PROMOTE
from planner.tracing.build import default_loss
from planner.tracing.step import Step, StepSettings, trace_step

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
# Made of functions that are in the list, or in the list of those redispatched with another signature.
OURS = {"cross_entropy_loss", "norm", "scaled_dot_product_attention", "_scaled_dot_product_flash_attention"}


def header_list(name: str) -> set[str]:
    text = HEADER.read_text()
    body = re.search(rf"#define {name}\(_\)(.*?)(?=#define|#else|#endif)", text, re.DOTALL)
    assert body is not None
    return set(re.findall(r"_\((\w+)", body[1]))


@pytest.mark.skipif(not HEADER.exists(), reason="this torch comes without its headers")
@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("AT_FORALL_LOWER_PRECISION_FP", LOWER_PRECISION),
        ("AT_FORALL_FP32", FLOAT32),
        ("AT_FORALL_FP32_SET_OPT_DTYPE", FLOAT32_RESULT),
        ("AT_FORALL_PROMOTE", PROMOTE),
    ],
)
def test_the_lists_are_those_of_the_installed_torch(name: str, ours: frozenset[str]) -> None:
    assert header_list(name) - OURS == ours - OURS


class Mixed(nn.Module):
    """Uses functions that CPU and CUDA autocast treat alike."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 8, bias=False)
        self.convolution = nn.Conv1d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.gelu(self.first(x))
        y = y @ y.transpose(-1, -2) @ self.convolution(x)
        scores = torch.bmm(y, self.second(self.first(x)).transpose(-1, -2))
        return nn.functional.mse_loss(scores, torch.zeros_like(scores))


def trace_mixed(module: nn.Module, *inputs: torch.Tensor, kernels: Kernels = Kernels.CPU) -> OpGraph:
    settings = StepSettings(parameter_dtype="float32", compute_dtype="bfloat16", optimizer="none", kernels=kernels)
    return trace_step(
        Step(
            module=module.to("meta"),
            inputs={},
            positional=tuple(tensor.to("meta") for tensor in inputs),
            loss=lambda output, _: default_loss(output),
            settings=settings,
        )
    )


def test_saved_tensors_have_the_dtypes_of_a_real_run_under_autocast() -> None:
    module, x = Mixed(), torch.randn(2, 3, 8)
    real: list[tuple[tuple[int, ...], str]] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        real.append((tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")))
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16),
    ):
        module(x)

    traced = [(s.shape, s.dtype) for s in saved_tensors(trace_mixed(module, x))]

    assert real == traced


def test_each_weight_is_cast_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.linear(self.linear(x))
            return y

    graph = trace_mixed(Twice(), torch.randn(2, 4))

    casts = [op for op in ops(graph) if op.name == "aten._to_copy.default" and op.shape == (4, 4)]
    assert [("linear", "bfloat16")] == [
        (op.module_fqn, s.dtype) for op in casts[:1] for s in saved_tensors(graph) if s.shape == (4, 4)
    ][:1]
    assert 1 == sum(storages(graph)[values(graph)[op.writes[0]].storage].size_bytes == 32 for op in casts)


@pytest.mark.parametrize(
    ("module", "saved_dtype"),
    [
        (nn.LayerNorm(8), "float32"),
        (nn.RMSNorm(8), "float32"),
        (nn.GroupNorm(3, 3), "float32"),
        (nn.Softmax(dim=-1), "float32"),
        (nn.GELU(), "bfloat16"),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, nn.Module) else item,
)
def test_cuda_keeps_norms_and_softmax_in_float32(module: nn.Module, saved_dtype: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), module)

    graph = trace_mixed(model, torch.randn(2, 3, 8), kernels=Kernels.CUDA)

    large = [s for s in saved_tensors(graph) if s.module_fqn == "1" and s.shape[:2] == (2, 3) and s.shape[-1] == 8]
    assert {saved_dtype} == {s.dtype for s in large}


def test_gradients_are_in_the_parameters_dtype() -> None:
    graph = trace_mixed(nn.Linear(4, 4), torch.randn(2, 4))

    gradients = {s.name: s.size_bytes for s in storages(graph) if s.kind is StorageKind.GRADIENT}
    assert {"weight": 64, "bias": 16} == gradients


def test_with_fsdp_the_step_runs_in_the_compute_dtype_without_autocast() -> None:
    spec = specs.from_mapping(
        {
            "model": {
                "preset": "gpt2",
                "config": {"n_layer": 1, "n_embd": 64, "n_head": 4, "vocab_size": 128},
            },
            "batch": {"micro_batch": 1, "sequence_length": 16},
            "precision": {"parameters": "float32", "compute": "bfloat16"},
            "parallel": {"fsdp": 2},
        }
    )

    graph = trace_spec(spec)

    weights = [s for s in storages(graph) if s.name == "transformer.h.0.mlp.c_fc.weight"]
    assert {64 * 256 * 2} == {s.size_bytes for s in weights}
