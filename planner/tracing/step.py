"""Runs one step of a module under the recorder and turns what it saw into an op graph."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import networkx as nx
import torch

from planner.blocks import BlockIndex, block_levels
from planner.costs.static import ParameterInfo, static_memory
from planner.errors import PlannerError, TraceError
from planner.graph import ModuleInfo, Storage, StorageKind, StepInfo, Value, build_graph
from planner.spec import AttentionKernel
from planner.tracing.autocast import Autocast
from planner.tracing.lowering import KernelLowering, Kernels
from planner.tracing.recorder import Recorder
from planner.tracing.steady import assumptions

LossFunction = Callable[[Any, Mapping[str, torch.Tensor]], torch.Tensor]
_DTYPE_PREFIX = "torch."


def trace_step(
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    *,
    positional: tuple[Any, ...] = (),
    loss: LossFunction,
    kernels: Kernels = Kernels.CUDA,
    attention: AttentionKernel = AttentionKernel.FLASH,
    parameter_dtype: str,
    compute_dtype: str,
    optimizer: str,
    fsdp: int = 1,
    name: str = "",
    tokens: int = 1,
) -> nx.DiGraph:
    """The op graph of one forward and backward of a module on meta tensors.

    The caller is assumed to hold the inputs and the outputs of forward until the step ends, as a plain loop does.

    Args:
        module: on the meta device, in training mode; its parameters' gradients are set and cleared again.
        inputs: keyword arguments of forward, on the meta device.
        positional: positional arguments of forward.
        loss: scalar from forward's output and the inputs.
        kernels: whose operators to show.
        attention: the attention kernel.
        parameter_dtype, compute_dtype: as in the spec's `precision`.
        optimizer, fsdp: for static memory.
        name: what to call the model in reports.
        tokens: samples × length of one micro-batch.

    Raises:
        TraceError: forward, loss or backward failed on tensors without data; names the module.
    """
    uses_autocast = fsdp == 1 and parameter_dtype != compute_dtype
    autocast = Autocast(getattr(torch, compute_dtype)) if uses_autocast else None
    lowering = KernelLowering(kernels=kernels, attention=attention, autocast=autocast)
    named = {**inputs, **{f"argument {i}": item for i, item in enumerate(positional) if isinstance(item, torch.Tensor)}}
    recorder = Recorder(module, named)
    module.zero_grad(set_to_none=True)
    try:
        with assumptions() as notes, recorder.watching(), torch.enable_grad():
            with torch.device("meta"), lowering:
                output = module(*positional, **inputs)
                scalar = loss(output, inputs)
            if autocast is not None:
                autocast.forget()
            _check_loss(scalar)
            recorder.begin_backward()
            scalar.backward()
        recorder.finish(module)
    except PlannerError:
        raise
    except Exception as error:
        raise TraceError(
            f"{type(error).__name__}: {_first_line(error)}",
            module_fqn=recorder.current_module,
            hint="the step is traced on tensors without data: code that reads values, or moves tensors to a fixed "
            "device, cannot run",
        ) from error
    finally:
        module.zero_grad(set_to_none=True)
    del output, scalar
    return _assemble(
        recorder,
        module,
        notes=(*notes, *(f"{reason} ({count} calls)" for reason, count in lowering.fallbacks.items())),
        attention=attention,
        parameter_dtype=parameter_dtype,
        compute_dtype=compute_dtype,
        optimizer=optimizer,
        fsdp=fsdp,
        name=name,
        tokens=tokens,
    )


def _check_loss(scalar: Any) -> None:
    if not isinstance(scalar, torch.Tensor) or scalar.numel() != 1:
        found = tuple(scalar.shape) if isinstance(scalar, torch.Tensor) else type(scalar).__name__
        raise TraceError(f"the loss must be a scalar tensor, found {found}")
    if not scalar.requires_grad:
        raise TraceError("the loss does not depend on any trainable parameter")


def _assemble(
    recorder: Recorder,
    module: torch.nn.Module,
    *,
    notes: tuple[str, ...],
    attention: AttentionKernel,
    parameter_dtype: str,
    compute_dtype: str,
    optimizer: str,
    fsdp: int,
    name: str,
    tokens: int,
) -> nx.DiGraph:
    table = module_table(module)
    levels = block_levels(table)
    block_of = BlockIndex(levels[0] if levels else ())
    parameters = tuple(
        ParameterInfo(
            fqn=fqn, shape=tuple(parameter.shape), is_trainable=parameter.requires_grad, block=block_of(fqn)
        )
        for fqn, parameter in module.named_parameters()
    )
    storages = tuple(
        Storage(
            index=life.index,
            size_bytes=life.size_bytes,
            kind=life.kind,
            name=life.name,
            alloc_step=life.alloc_step,
            free_step=life.free_step,
        )
        for life in recorder.storages
    )
    if fsdp > 1:
        storages = _reduce_gradients(storages, {item.fqn: item.block for item in parameters})
    static = static_memory(
        parameters,
        buffer_bytes=sum(s.size_bytes for s in storages if s.kind is StorageKind.BUFFER),
        parameter_dtype=parameter_dtype,
        compute_dtype=compute_dtype,
        optimizer=optimizer,
        fsdp=fsdp,
    )
    traced = sum(s.size_bytes for s in storages if s.kind is StorageKind.GRADIENT)
    return build_graph(
        ops=recorder.ops,
        storages=storages,
        values=(
            Value(
                index=index,
                storage=record.storage,
                version=record.version,
                producer=record.producer,
                boundary=record.boundary,
            )
            for index, record in enumerate(recorder.values)
        ),
        saved_tensors=recorder.saved_tensors(),
        modules=table,
        step=StepInfo(
            model=name or type(module).__name__,
            torch_version=torch.__version__.partition("+")[0],
            attention=str(attention),
            steps=recorder.step,
            backward_step=recorder.backward_step,
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            static=static,
            tokens=tokens,
            notes=notes,
            sharded_gradient_ratio=static.gradients_bytes / traced if fsdp > 1 and traced else 0.0,
        ),
    )


def _reduce_gradients(
    storages: tuple[Storage, ...], block_of: Mapping[str, str | None]
) -> tuple[Storage, ...]:
    """The storages with each unsharded gradient freed once its FSDP unit has all of them.

    A unit (a block, or the root) reduces its gradients when the last of them is there; the shard that remains is
    counted by the timeline from the same step on.
    """
    last: defaultdict[str | None, int] = defaultdict(int)
    for storage in storages:
        if storage.kind is StorageKind.GRADIENT:
            unit = block_of.get(storage.name)
            last[unit] = max(last[unit], storage.alloc_step)
    return tuple(
        replace(storage, free_step=max(storage.alloc_step + 1, last[block_of.get(storage.name)] + 1))
        if storage.kind is StorageKind.GRADIENT
        else storage
        for storage in storages
    )


def module_table(module: torch.nn.Module) -> tuple[ModuleInfo, ...]:
    """The modules in registration order, the root first."""
    return tuple(
        ModuleInfo(
            fqn=fqn,
            class_name=type(child).__name__,
            is_container=isinstance(child, torch.nn.ModuleList | torch.nn.Sequential),
            is_checkpoint_unit=any(cls.__name__ == "GradientCheckpointingLayer" for cls in type(child).__mro__),
            parameters=sum(parameter.numel() for parameter in child.parameters()),
        )
        for fqn, child in module.named_modules()
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else "no message"
