"""A trace without data is held against a real CPU step of the same model, watched independently."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from planner.graph import OpGraph, Phase, StorageKind, ops, saved_tensors, step_info, storages, values
from planner.tracing import Kernels, trace_module

Case = tuple[torch.nn.Module, dict[str, torch.Tensor]]
_NOT_ALLOCATED_BY_THE_STEP = (StorageKind.PARAMETER, StorageKind.BUFFER, StorageKind.INPUT)


def keep_everything_curve(graph: OpGraph) -> list[int]:
    """Bytes alive at each step, parameters, buffers and inputs apart, when autograd keeps all it saves."""
    held_until: dict[int, int] = {}
    for saved in saved_tensors(graph):
        index = values(graph)[saved.value].storage
        held_until[index] = max([held_until.get(index, 0), *(release for _, release in saved.uses)])
    live = [0] * step_info(graph).steps
    for storage in storages(graph):
        if storage.kind not in _NOT_ALLOCATED_BY_THE_STEP:
            end = max(storage.free_step, held_until.get(storage.index, 0))
            for step in range(storage.alloc_step, end):
                live[step] += storage.size_bytes
    return live


def test_a_trace_shows_the_saved_tensors_of_a_real_run(case: Case, observe: Callable[..., Any]) -> None:
    model, inputs = case
    real = observe(lambda: model(**inputs).loss, model)

    graph = trace_module(model, kwargs=inputs, kernels=Kernels.CPU)

    traced = [(s.module_fqn, s.op, s.shape, s.dtype) for s in saved_tensors(graph)]
    assert real.saved == traced


def test_a_trace_shows_the_forward_operators_of_a_real_run(case: Case, observe: Callable[..., Any]) -> None:
    model, inputs = case
    real = observe(lambda: model(**inputs).loss, model)

    graph = trace_module(model, kwargs=inputs, kernels=Kernels.CPU)

    assert real.forward_ops == [op.name for op in ops(graph) if op.phase is Phase.FORWARD]


# GPT-2's are numbers of 8 bytes each; convolutions have a workspace that no dispatcher sees, oneDNN's a
# larger one.
_PEAK_TOLERANCES = {
    "llama": 0.0,
    "gpt2": 0.0001,
    "bert": 0.0,
    "vit": 0.0,
    "resnet": 0.03,
    "wide resnet": 0.001,
}


@pytest.mark.parametrize("name", _PEAK_TOLERANCES)
def test_the_traced_peak_is_the_allocators(
    name: str,
    build: Callable[[str], Case],
    unpacked: None,
    allocator_curve: Callable[[Callable[[], Any]], list[int]],
) -> None:
    model, inputs = build(name)

    def step() -> Any:
        output = model(**inputs)
        output.loss.backward()
        return output

    is_onednn_used = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(name != "wide resnet")
    try:
        step()  # what is made once, such as caches of tables
        model.zero_grad(set_to_none=True)
        real_peak = max(allocator_curve(step))
    finally:
        torch._C._set_mkldnn_enabled(is_onednn_used)

    traced = max(keep_everything_curve(trace_module(model, kwargs=inputs, kernels=Kernels.CPU)))

    assert traced == pytest.approx(real_peak, rel=_PEAK_TOLERANCES[name] or 1e-12)


@pytest.mark.parametrize("name", ["llama", "vit", "bert"])
def test_the_allocator_passes_through_every_traced_state_of_memory(
    name: str,
    build: Callable[[str], Case],
    unpacked: None,
    allocator_curve: Callable[[Callable[[], Any]], list[int]],
) -> None:
    model, inputs = build(name)

    def step() -> Any:
        output = model(**inputs)
        output.loss.backward()
        return output

    step()
    model.zero_grad(set_to_none=True)
    real = iter(allocator_curve(step))

    traced = keep_everything_curve(trace_module(model, kwargs=inputs, kernels=Kernels.CPU))

    changes = [now for before, now in zip([0, *traced], traced, strict=False) if now != before]
    assert all(level in real for level in changes)  # "in" moves the iterator on: the order counts
