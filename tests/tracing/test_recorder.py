"""What a trace says of the things modules do: each is held against a real run, and against a literal."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from planner.graph import Op, OpGraph, Phase, SavedTensor, StorageKind, ops, saved_tensors, storages, values
from planner.tracing import Kernels, trace_module

Observe = Callable[..., Any]


def traced_like_a_real_run(module: nn.Module, *args: torch.Tensor, observe: Observe) -> OpGraph:
    """The trace, after checking its saved tensors and forward operators against a real CPU run."""
    real = observe(lambda: module(*args).mean(), module)
    graph = trace_module(module, args, kernels=Kernels.CPU)
    assert real.saved == [(s.module_fqn, s.op, s.shape, s.dtype) for s in saved_tensors(graph)]
    assert real.forward_ops == [op.name for op in ops(graph) if op.phase is Phase.FORWARD]
    return graph


def kind_of(graph: OpGraph, saved: SavedTensor) -> StorageKind:
    return storages(graph)[values(graph)[saved.value].storage].kind


class Wrapped(nn.Module):
    """Runs a function of its one linear layer and the input."""

    def __init__(self, function: Callable[[nn.Linear, torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear, x)


def test_a_module_called_twice_numbers_its_calls(observe: Observe) -> None:
    module = Wrapped(lambda linear, x: linear(torch.tanh(linear(x))))

    graph = traced_like_a_real_run(module, torch.randn(2, 4), observe=observe)

    in_linear = [s for s in saved_tensors(graph) if s.module_fqn == "linear"]
    assert [(0, 0), (1, 0), (1, 1)] == [(s.module_call, s.ordinal) for s in in_linear]


def test_a_tied_weight_is_one_storage_with_one_gradient(observe: Observe) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(8, 4)
            self.head = nn.Linear(4, 8, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(self.embedding(tokens))
            return scores

    graph = traced_like_a_real_run(Tied(), torch.tensor([1, 2]), observe=observe)

    assert [("embedding.weight", 128)] == [
        (s.name, s.size_bytes) for s in storages(graph) if s.kind is StorageKind.PARAMETER
    ]
    assert [("embedding.weight", 128)] == [
        (s.name, s.size_bytes) for s in storages(graph) if s.kind is StorageKind.GRADIENT
    ]


def test_what_only_a_frozen_weights_gradient_needs_is_not_saved(observe: Observe) -> None:
    module = Wrapped(lambda linear, x: linear(linear(x)))
    module.linear.weight.requires_grad_(False)

    graph = traced_like_a_real_run(module, torch.randn(2, 4), observe=observe)

    assert [StorageKind.PARAMETER] == [kind_of(graph, s) for s in saved_tensors(graph)]
    assert ["linear.bias"] == [s.name for s in storages(graph) if s.kind is StorageKind.GRADIENT]


def test_nothing_is_saved_without_gradients(observe: Observe) -> None:
    def half_without(linear: nn.Linear, x: torch.Tensor) -> Any:
        with torch.no_grad():
            x = torch.tanh(linear(x))
        y: torch.Tensor = linear(x)
        return y

    graph = traced_like_a_real_run(Wrapped(half_without), torch.randn(2, 4), observe=observe)

    assert [("linear", 1, "aten.tanh.default")] == [(s.module_fqn, s.module_call, s.op) for s in saved_tensors(graph)]


def test_a_node_holds_what_it_saved_until_its_gradients_have_their_shapes(observe: Observe) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))

    graph = traced_like_a_real_run(module, torch.randn(3, 4), observe=observe)

    # Autograd sums the gradient of a bias over the batch when the node's formula has ended.
    (summed,) = (op.step for op in ops(graph) if op.module_fqn == "2" and op.name == "aten.sum.dim_IntList")
    (saved,) = (s for s in saved_tensors(graph) if s.module_fqn == "2" and s.op == "aten.tanh.default")
    assert [True] == [release > summed for _, release in saved.uses]


def test_a_parameter_is_not_held_but_is_unpacked_before_what_reads_it(observe: Observe) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))

    graph = traced_like_a_real_run(module, torch.randn(3, 4), observe=observe)

    table = saved_tensors(graph)
    (weight,) = (s for s in table if s.module_fqn == "2" and kind_of(graph, s) is StorageKind.PARAMETER)
    (saved,) = (s for s in table if s.module_fqn == "2" and s.op == "aten.tanh.default")
    ((unpack, _),) = saved.uses
    read = next(op.step for op in ops(graph) if op.phase is Phase.BACKWARD and weight.value in op.reads)
    assert () == weight.uses
    assert unpack == saved.unpack_step
    assert weight.unpack_step is not None
    assert unpack <= weight.unpack_step <= read


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        square = x * x
        ctx.save_for_backward(square)
        return square * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (square,) = ctx.saved_tensors
        return 3 * square * grads[0]


def test_a_function_of_ones_own_saves_what_it_says(observe: Observe) -> None:
    module = Wrapped(lambda linear, x: _Cube.apply(linear(x)))  # type: ignore[no-untyped-call]

    graph = traced_like_a_real_run(module, torch.randn(2, 4), observe=observe)

    assert [("linear", ""), ("", "aten.mul.Tensor")] == [(s.module_fqn, s.op) for s in saved_tensors(graph)]


def test_an_in_place_op_makes_a_new_version_of_its_storage(observe: Observe) -> None:
    module = Wrapped(lambda linear, x: torch.relu_(linear(x)))

    graph = traced_like_a_real_run(module, torch.randn(2, 4), observe=observe)

    written = next(op for op in ops(graph) if op.name == "aten.relu_.default")
    (version,) = (values(graph)[index] for index in written.writes)
    assert (1, False, False) == (version.version, written.is_view, written.mutates_state)
    assert "aten.relu_.default" == saved_tensors(graph)[-1].op


def test_a_view_owns_nothing(observe: Observe) -> None:
    module = Wrapped(lambda linear, x: linear(x)[:, :2].transpose(0, 1) * 2)

    graph = traced_like_a_real_run(module, torch.randn(2, 4), observe=observe)

    views = [op for op in ops(graph) if op.name == "aten.slice.Tensor"]
    assert [True] == [op.is_view for op in views]
    assert {(0, 0)} == {(op.read_bytes, op.write_bytes) for op in views}


def test_an_expanded_tensor_is_as_large_as_its_storage(observe: Observe) -> None:
    def scaled(linear: nn.Linear, x: torch.Tensor) -> Any:
        return linear(x) * x[:, :1].tanh().expand(2, 4)

    graph = traced_like_a_real_run(Wrapped(scaled), torch.randn(2, 4), observe=observe)

    expanded = next(s for s in saved_tensors(graph) if s.op == "aten.tanh.default")
    assert (2, 4) == expanded.shape
    assert 2 * 4 == storages(graph)[values(graph)[expanded.value].storage].size_bytes
    product = next(op for op in ops(graph) if op.name == "aten.mul.Tensor")
    assert 2 * 4 * 4 + 2 * 4 == product.read_bytes


def test_each_output_of_an_op_is_a_value(observe: Observe) -> None:
    module = Wrapped(lambda linear, x: nn.functional.layer_norm(linear(x), (4,)))

    graph = traced_like_a_real_run(module, torch.randn(2, 4), observe=observe)

    norm = next(op for op in ops(graph) if op.name == "aten.native_layer_norm.default")
    assert 3 == len(norm.writes)


def test_backward_ops_belong_to_the_module_whose_forward_they_differentiate() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    graph = trace_module(module, (torch.randn(2, 4),))

    backward = [op for op in ops(graph) if op.phase is Phase.BACKWARD]
    assert [("aten.tanh_backward.default", "1")] == [(op.name, op.module_fqn) for op in backward if "tanh" in op.name]
    assert ["2", "2", "0"] == [op.module_fqn for op in backward if op.name == "aten.mm.default"]


def backward_sums(function: Callable[[nn.Linear, torch.Tensor], Any]) -> tuple[OpGraph, list[Op]]:
    graph = trace_module(Wrapped(function), (torch.randn(2, 4),), kernels=Kernels.CPU)
    return graph, [op for op in ops(graph) if op.name.startswith("aten.add") and op.phase is Phase.BACKWARD]


def test_gradients_of_one_tensor_add_up_in_place() -> None:
    def residual(linear: nn.Linear, x: torch.Tensor) -> Any:
        y = torch.tanh(x * linear.weight[0])
        return y + torch.tanh(y)

    graph, sums = backward_sums(residual)

    assert ["aten.add_.Tensor"] == [op.name for op in sums]
    (total,) = (values(graph)[index] for index in sums[0].writes)
    assert 1 == total.version  # of the first gradient's storage


def test_nothing_is_added_in_place_to_an_expanded_gradient() -> None:
    def residual(linear: nn.Linear, x: torch.Tensor) -> Any:
        y = torch.tanh(x * linear.weight[0])
        return torch.tanh(y).sum() + y.sum()

    _, sums = backward_sums(residual)

    assert ["aten.add.Tensor"] == [op.name for op in sums]


def test_sums_inside_a_backward_formula_stay_as_they_are() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return torch.add(grads[0] * x, grads[0] * 2)

    _, sums = backward_sums(lambda linear, x: Twice.apply(linear(x)))  # type: ignore[no-untyped-call]

    assert ["aten.add.Tensor"] == [op.name for op in sums]


def test_batch_norm_writes_to_its_statistics(observe: Observe) -> None:
    graph = traced_like_a_real_run(nn.BatchNorm1d(4), torch.randn(3, 4), observe=observe)

    assert [True] == [op.mutates_state for op in ops(graph) if op.name == "aten.add_.Tensor"]


def test_tracing_leaves_the_module_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    trace_module(module, (torch.randn(3, 4),))

    assert all(torch.equal(state[name], tensor) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_transformer_layer_of_torch_is_traced_as_it_runs(batch_first: bool, observe: Observe) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first).train()

    traced_like_a_real_run(layer, torch.randn(3, 5, 8), observe=observe)
