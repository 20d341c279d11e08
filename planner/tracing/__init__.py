"""From a model to the op graph of one training step, without weights and without a GPU."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import networkx as nx
import torch

from planner.spec import AttentionKernel, RunSpec
from planner.tracing.build import build_inputs, build_module, default_loss, loss_function
from planner.tracing.lowering import Kernels
from planner.tracing.step import trace_step

__all__ = ["trace", "trace_module", "trace_spec"]


def trace(subject: RunSpec | torch.nn.Module, args: tuple[Any, ...] = (), kwargs: Any = None, **options: Any) -> nx.DiGraph:
    """The op graph of one training step of a spec or of a live module. See `trace_spec` and `trace_module`."""
    if isinstance(subject, RunSpec):
        return trace_spec(subject, **options)
    return trace_module(subject, args, kwargs, **options)


def trace_spec(spec: RunSpec, *, kernels: Kernels = Kernels.CUDA) -> nx.DiGraph:
    """The op graph of one step of the spec's model.

    Raises:
        SpecError: the model cannot be built from the spec.
        TraceError: a step of the model cannot run on tensors without data.
    """
    module = build_module(spec)
    parameter_dtype, compute_dtype = str(spec.precision.parameters), str(spec.precision.compute)
    fsdp = spec.parallel.fsdp
    traced_dtype = getattr(torch, compute_dtype if fsdp > 1 else parameter_dtype)
    _cast_parameters(module, traced_dtype)
    inputs = build_inputs(spec, module)
    if fsdp > 1 or parameter_dtype == compute_dtype:
        inputs = {name: item.to(traced_dtype) if item.is_floating_point() else item for name, item in inputs.items()}
    return trace_step(
        module,
        inputs,
        loss=loss_function(spec),
        kernels=kernels,
        attention=spec.attention,
        parameter_dtype=parameter_dtype,
        compute_dtype=compute_dtype,
        optimizer=_optimizer_cost_name(spec),
        fsdp=fsdp,
        name=spec.model.preset or spec.model.name,
        tokens=_tokens(spec),
    )


def trace_module(
    module: torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    optimizer: str = "adamw",
    attention: AttentionKernel = AttentionKernel.FLASH,
    kernels: Kernels = Kernels.CUDA,
) -> nx.DiGraph:
    """The op graph of one step of a live module called with the given arguments; the module is left as it is.

    Args:
        module: on any device; a copy on the meta device is traced, in the module's own training mode.
        args, kwargs: what its forward takes; tensors may be on any device and are not read.
        optimizer: which optimizer's state to count, as in the spec.

    Raises:
        TraceError: a step of the module cannot run on tensors without data.
    """
    meta = deepcopy(module.to("meta") if _is_on_meta(module) else _meta_copy(module))
    dtype = next((str(p.dtype).removeprefix("torch.") for p in meta.parameters()), "float32")
    to_meta = _to_meta((args, dict(kwargs or {})))
    return trace_step(
        meta,
        to_meta[1],
        positional=to_meta[0],
        loss=lambda output, _: default_loss(output),
        kernels=kernels,
        attention=attention,
        parameter_dtype=dtype,
        compute_dtype=dtype,
        optimizer=optimizer,
        tokens=1,
    )


def _is_on_meta(module: torch.nn.Module) -> bool:
    return all(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))


def _meta_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of the module with every parameter and buffer on the meta device; no data is copied."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = torch.nn.Parameter(
            torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
        )
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return deepcopy(module, memo)


def _to_meta(tree: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda leaf: torch.empty_like(leaf, device="meta") if isinstance(leaf, torch.Tensor) else leaf, tree
    )


def _cast_parameters(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast floating-point parameters only: FSDP's mixed precision leaves buffers alone, and tables stay exact."""
    for parameter in module.parameters():
        if parameter.is_floating_point() and parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)


def _optimizer_cost_name(spec: RunSpec) -> str:
    return "sgd-momentum" if spec.optimizer.momentum else str(spec.optimizer.name)


def _tokens(spec: RunSpec) -> int:
    return spec.batch.micro_batch * (spec.batch.sequence_length or 1)
