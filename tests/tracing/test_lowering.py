"""A trace shows the operators of a GPU."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from planner.errors import TraceError
from planner.graph import OpGraph, Phase, ops, saved_tensors, step_info
from planner.spec import AttentionKernel
from planner.tracing import Kernels, trace_module

FLASH = "aten._scaled_dot_product_flash_attention.default"
EFFICIENT = "aten._scaled_dot_product_efficient_attention.default"
CUDNN = "aten._scaled_dot_product_cudnn_attention.default"
MATH = "aten._safe_softmax.default"


class Attending(nn.Module):
    """Calls attention with the given keyword arguments on 4 query heads of width 16."""

    def __init__(self, key_heads: int = 4, width: int = 16, dtype: Any = torch.bfloat16, **options: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, dtype=dtype))
        self.shapes = ((2, 4, 32, width), (2, key_heads, 32, width))
        self.options = options

    def forward(self) -> torch.Tensor:
        query, key = (torch.zeros(shape, dtype=self.scale.dtype) * self.scale for shape in self.shapes)
        return nn.functional.scaled_dot_product_attention(query, key, key * 2, **self.options)


def attention_ops(graph: OpGraph) -> list[str]:
    kernels = (FLASH, EFFICIENT, CUDNN, MATH)
    return [op.name for op in ops(graph) if op.name in kernels and op.phase is Phase.FORWARD]


@pytest.mark.parametrize(
    ("module", "asked", "expected", "note"),
    [
        (Attending(is_causal=True), AttentionKernel.FLASH, FLASH, None),
        (Attending(is_causal=True), AttentionKernel.EFFICIENT, EFFICIENT, None),
        (Attending(is_causal=True), AttentionKernel.CUDNN, CUDNN, None),
        (Attending(is_causal=True), AttentionKernel.EAGER, MATH, None),
        (
            Attending(dtype=torch.float32),
            AttentionKernel.FLASH,
            EFFICIENT,
            "flash attention needs 16-bit inputs",
        ),
        (
            Attending(attn_mask=torch.ones(32, 32, dtype=torch.bool, device="meta")),
            AttentionKernel.FLASH,
            EFFICIENT,
            "flash attention takes no mask: efficient is used (1 calls)",
        ),
        (Attending(width=12), AttentionKernel.EFFICIENT, MATH, "multiples of 8: the math form is used"),
        (Attending(width=160), AttentionKernel.CUDNN, FLASH, "up to 128: flash is used"),
        (Attending(key_heads=2, enable_gqa=True), AttentionKernel.FLASH, FLASH, None),
        (
            Attending(key_heads=2, enable_gqa=True),
            AttentionKernel.EFFICIENT,
            MATH,
            "does not group query heads",
        ),
    ],
)
def test_attention_reaches_the_kernel_that_pytorch_would_choose(
    module: nn.Module, asked: AttentionKernel, expected: str, note: str | None
) -> None:
    graph = trace_module(module, attention=asked)

    assert [expected] == attention_ops(graph)
    notes = step_info(graph).notes
    assert notes == () if note is None else note in notes[0]


def test_flash_attention_keeps_grouped_keys_and_values_unexpanded() -> None:
    graph = trace_module(Attending(key_heads=2, enable_gqa=True))

    heads = [s.shape[1] for s in saved_tensors(graph) if len(s.shape) == 4 and s.module_fqn == ""]
    assert 2 == heads.count(2) - 1  # key and value, and the factor of the product that made the key
    assert FLASH in [s.op for s in saved_tensors(graph)]


def test_flash_attention_pads_widths_to_a_multiple_of_8() -> None:
    graph = trace_module(Attending(width=12))

    assert [16] == [op.shape[-1] for op in ops(graph) if op.name == FLASH]


def test_causal_attention_is_marked_and_is_not_random() -> None:
    graph = trace_module(Attending(is_causal=True))

    assert [(True, False)] == [(op.is_causal, op.is_random) for op in ops(graph) if op.name == FLASH]


def test_attention_with_dropout_is_random() -> None:
    graph = trace_module(Attending(dropout_p=0.1))

    assert [True] == [op.is_random for op in ops(graph) if op.name == FLASH]


@pytest.mark.parametrize(
    "dropout", [nn.Dropout(0.1), nn.Sequential(nn.Dropout(0.1))], ids=["module", "inside a module"]
)
def test_dropout_is_one_operator_that_keeps_its_mask(dropout: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(4, 4), dropout)

    graph = trace_module(module, (torch.randn(2, 4),))

    assert [True] == [op.is_random for op in ops(graph) if op.name == "aten.native_dropout.default"]
    assert ("aten.native_dropout.default", "bool", (2, 4)) == (
        saved_tensors(graph)[-1].op,
        saved_tensors(graph)[-1].dtype,
        saved_tensors(graph)[-1].shape,
    )
    assert not any("bernoulli" in op.name for op in ops(graph))


def test_dropout_is_nothing_in_evaluation() -> None:
    graph = trace_module(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)).eval(), (torch.randn(2, 4),))

    assert not any("dropout" in op.name for op in ops(graph))


def test_rms_norm_is_one_operator_that_saves_its_input_and_the_inverse_root() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4))

    graph = trace_module(module.bfloat16(), (torch.randn(2, 4, dtype=torch.bfloat16),))

    assert [
        ("aten.addmm.default", "bfloat16"),
        ("", "bfloat16"),
        ("aten._fused_rms_norm.default", "float32"),
    ] == [(s.op, s.dtype) for s in saved_tensors(graph) if s.module_fqn == "1"]
    assert 1 == sum(op.name == "aten._fused_rms_norm_backward.default" for op in ops(graph))


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_rms_norm_with_a_weight_of_another_dtype_stays_composite() -> None:
    module = nn.RMSNorm(4)

    graph = trace_module(module, (torch.randn(2, 4, dtype=torch.bfloat16),))

    assert "aten.rsqrt.default" in [op.name for op in ops(graph)]


def test_attention_inside_a_function_of_torch_is_seen() -> None:
    class SelfAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True, dtype=torch.bfloat16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
            return output

    graph = trace_module(SelfAttention(), (torch.randn(2, 8, 16, dtype=torch.bfloat16),))

    assert [FLASH] == attention_ops(graph)
    assert ["attention"] == [op.module_fqn for op in ops(graph) if op.name == FLASH]


@pytest.mark.parametrize("layer", [nn.LSTM(4, 4), nn.GRU(4, 4), nn.RNN(4, 4)], ids=["lstm", "gru", "rnn"])
def test_recurrent_layers_are_refused_in_one_sentence(layer: nn.Module) -> None:
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reader = layer

        def forward(self, x: torch.Tensor) -> Any:
            return self.reader(x)[0]

    with pytest.raises(TraceError, match=re.escape("in reader: a recurrent layer runs as one cuDNN kernel")):
        trace_module(Reading(), (torch.randn(3, 2, 4),))


def test_a_recurrent_layer_on_cpu_is_traced_step_by_step() -> None:
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reader = nn.GRU(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.reader(x)[0]

    graph = trace_module(Reading(), (torch.randn(3, 2, 4),), kernels=Kernels.CPU)

    assert saved_tensors(graph)
