"""A scaled graph is the traced one in every record, or there is none."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from planner.graph import OpGraph, ops, step_info, to_node_link
from planner.scaling import Family, SharedTraces, family, is_same_step
from planner.tracing.step import Step, StepSettings, trace_step

WIDTH = 16
LENGTH = 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        query, key, value = (part.unsqueeze(1) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        x = x + nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1)
        return x + self.down(nn.functional.gelu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class Branching(Transformer):
    """Takes another way from five samples on."""

    def forward(self, x: Any) -> Any:
        return super().forward(x).relu() if len(x) > 4 else super().forward(x)


class Contrastive(Transformer):
    """Compares every sample with every other: its figures are quadratic in the batch."""

    def forward(self, x: Any) -> Any:
        means = super().forward(x).mean(dim=1)
        return means @ means.T


class Padded(Transformer):
    """Pads the batch to a multiple of four samples."""

    def forward(self, x: Any) -> Any:
        more = -len(x) % 4
        return super().forward(torch.cat([x, x.new_zeros(more, LENGTH, WIDTH)]) if more else torch.cat([x]))


class Table:
    """Traces a model at a number of samples, and counts how often."""

    def __init__(self, model: type[nn.Module]) -> None:
        with torch.device("meta"):
            self._module = model()
        self.traced: list[int] = []

    def __call__(self, micro_batch: int) -> OpGraph:
        self.traced.append(micro_batch)
        settings = StepSettings(
            parameter_dtype="float32",
            compute_dtype="float32",
            optimizer="adamw",
            tokens=micro_batch * LENGTH,
            micro_batch=micro_batch,
        )
        x = torch.empty(micro_batch, LENGTH, WIDTH, device="meta")
        return trace_step(
            Step(module=self._module, inputs={"x": x}, loss=lambda output, _: output.float().mean(), settings=settings)
        )


def found(trace: Table, one: int, other: int) -> Family:
    made = family(trace(one), trace(other))
    assert made is not None
    return made


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 5, 7, 64, 1000])
def test_every_record_of_a_transformer_is_on_the_line(micro_batch: int) -> None:
    trace = Table(Transformer)
    scaled = found(trace, 2, 4).at(micro_batch)

    assert scaled is not None
    traced = trace(micro_batch)
    assert is_same_step(scaled, traced)
    assert to_node_link(traced) == to_node_link(scaled)  # edges as well
    assert micro_batch * LENGTH == step_info(scaled).tokens


def test_a_line_may_go_down() -> None:
    trace = Table(Transformer)

    scaled = found(trace, 8, 4).at(6)

    assert scaled is not None
    assert is_same_step(scaled, trace(6))


def test_graphs_that_differ_in_kind_have_no_line() -> None:
    trace = Table(Branching)

    assert family(trace(4), trace(5)) is None
    assert family(trace(2), trace(2)) is None
    assert family(trace(2), Table(Contrastive)(4)) is None


def test_a_figure_that_is_no_whole_number_has_no_graph() -> None:
    trace = Table(Padded)  # 3 and 6 samples become 4 and 8: 4 more for 3 samples

    assert found(trace, 3, 6).at(4) is None


def test_a_figure_below_zero_has_no_graph() -> None:
    trace = Table(Contrastive)

    assert found(trace, 4, 8).at(1) is None  # 16 and 64 products: a line that starts below zero


def test_graphs_are_compared_in_every_record() -> None:
    trace = Table(Transformer)
    graph = trace(2)

    assert is_same_step(graph, trace(2))
    assert not is_same_step(graph, trace(3))
    for name in ("storages", "values", "saved_tensors", "modules", "step"):
        changed = trace(2)
        changed.graph[name] = trace(3).graph[name] if name not in ("values", "modules") else ()
        assert not is_same_step(graph, changed), name
    changed = trace(2)
    first = min(changed.nodes)
    changed.nodes[first]["op"] = trace(2).nodes[max(changed.nodes)]["op"]
    assert not is_same_step(graph, changed)


def test_three_traces_are_enough_for_a_transformer() -> None:
    trace = Table(Transformer)
    shared = SharedTraces(trace)

    graphs = {size: shared.at(size) for size in (4, 8, 16, 32, 5, 2, 3)}

    assert [4, 8, 16, 2] == trace.traced  # below the smallest it looks, and then knows
    assert [4, 8, 16, 2] == [size for size, (_, is_scaled) in graphs.items() if not is_scaled]
    for size, (graph, _) in graphs.items():
        assert is_same_step(graph, trace(size))


@pytest.mark.parametrize("model", [Contrastive, Padded])
def test_what_does_not_scale_is_traced_each_time(model: type[nn.Module]) -> None:
    trace = Table(model)
    shared = SharedTraces(trace)
    sizes = [2, 4, 9, 11, 17, 30]

    assert not any(shared.at(size)[1] for size in sizes)
    assert sizes == trace.traced


def test_a_model_that_changes_is_scaled_from_where_three_agree() -> None:
    trace = Table(Branching)
    shared = SharedTraces(trace)

    scaled = [shared.at(size)[1] for size in (2, 4, 8, 16, 32, 64)]

    assert [False, False, False, False, False, True] == scaled
    assert not shared.at(4)[1]  # below the smallest of the three


def test_flops_double_with_the_samples_and_parameters_do_not() -> None:
    trace = Table(Transformer)
    scaled = found(trace, 2, 3).at(4)

    assert scaled is not None
    assert 2 * sum(op.flops for op in ops(trace(2))) == sum(op.flops for op in ops(scaled))
    assert step_info(trace(2)).static == step_info(scaled).static
