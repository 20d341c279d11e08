"""From a model to the op graph of one training step, without weights and without a GPU."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch.utils._pytree import tree_map

from planner.errors import TraceError
from planner.graph import OpGraph
from planner.spec import AttentionKernel, RunSpec, check_traceable
from planner.tracing.build import (
    build_inputs,
    build_model,
    check_parameters,
    default_loss,
    located,
    loss_function,
)
from planner.tracing.lowering import Kernels
from planner.tracing.step import Step, StepSettings, trace_step

__all__ = [
    "Kernels",
    "Step",
    "located_in",
    "prepare",
    "prepare_module",
    "prepare_spec",
    "trace",
    "trace_module",
    "trace_spec",
    "trace_step",
]


def trace(
    subject: Step | RunSpec | torch.nn.Module, args: tuple[Any, ...] = (), kwargs: Any = None, **options: Any
) -> OpGraph:
    """The op graph of one training step of a prepared step, a spec or a live module; see `prepare`.

    Raises:
        SpecError: the model cannot be built from the spec.
        TraceError: the step cannot run on tensors without data.
    """
    if isinstance(subject, Step):
        return trace_step(subject)
    if isinstance(subject, RunSpec):
        return trace_spec(subject, **options)
    return trace_module(subject, args, kwargs, **options)


def prepare(subject: RunSpec | torch.nn.Module, args: tuple[Any, ...] = (), kwargs: Any = None, **options: Any) -> Step:
    """A step to trace and to rehearse plans on; see `prepare_spec` and `prepare_module`."""
    if isinstance(subject, RunSpec):
        return prepare_spec(subject, **options)
    return prepare_module(subject, args, kwargs, **options)


def trace_spec(spec: RunSpec, *, kernels: Kernels = Kernels.CUDA) -> OpGraph:
    """The op graph of one step of the spec's model.

    Raises:
        SpecError: the model cannot be built from the spec.
        TraceError: a step of the model cannot run on tensors without data.
    """
    step = prepare_spec(spec, kernels=kernels)
    with located_in(spec):
        return trace_step(step)


def prepare_spec(spec: RunSpec, *, kernels: Kernels = Kernels.CUDA) -> Step:
    """The step that a spec describes, its module on the meta device.

    Raises:
        SpecError: the model cannot be built from the spec, or a traced step cannot be the spec's.
    """
    check_traceable(spec)
    built = build_model(spec)
    parameter_dtype, compute_dtype = str(spec.precision.parameters), str(spec.precision.compute)
    is_sharded = spec.parallel.fsdp > 1
    traced_dtype = getattr(torch, compute_dtype if is_sharded else parameter_dtype)
    _cast_parameters(built.module, traced_dtype)
    inputs = build_inputs(spec, built.module)
    if is_sharded or parameter_dtype == compute_dtype:
        inputs = {name: item.to(traced_dtype) if item.is_floating_point() else item for name, item in inputs.items()}
    settings = StepSettings(
        kernels=kernels,
        attention=built.attention,
        parameter_dtype=parameter_dtype,
        compute_dtype=compute_dtype,
        optimizer="sgd-momentum" if spec.optimizer.momentum else str(spec.optimizer.name),
        fsdp=spec.parallel.fsdp,
        ddp=spec.parallel.ddp,
        name=spec.model.preset or spec.model.name,
        tokens=spec.batch.micro_batch * (spec.batch.sequence_length or 1),
        micro_batch=spec.batch.micro_batch,
        notes=built.notes,
    )
    return Step(module=built.module, inputs=inputs, loss=loss_function(spec), settings=settings)


@contextmanager
def located_in(spec: RunSpec) -> Iterator[None]:
    """Around a run of the spec's step: an error of the model's comes out with the place in the spec that chose it."""
    try:
        yield
    except TraceError as error:
        raise located(error, spec) from error.__cause__


def trace_module(
    module: torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    optimizer: str = "adamw",
    attention: AttentionKernel = AttentionKernel.FLASH,
    kernels: Kernels = Kernels.CUDA,
) -> OpGraph:
    """The op graph of one step of a live module called with the given arguments; the module is left as it is.

    Args:
        module: on any device; a copy on the meta device is traced, in the module's own training mode.
        args, kwargs: what its forward takes; tensors may be on any device and are not read.
        optimizer: which optimizer's state to count, as in the spec.
        attention: the attention kernel of the real step.
        kernels: whose operators to show.

    Raises:
        TraceError: a step of the module cannot run on tensors without data.
    """
    return trace_step(prepare_module(module, args, kwargs, optimizer=optimizer, attention=attention, kernels=kernels))


def prepare_module(
    module: torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    optimizer: str = "adamw",
    attention: AttentionKernel = AttentionKernel.FLASH,
    kernels: Kernels = Kernels.CUDA,
) -> Step:
    """The step of a live module called with the given arguments, on a copy of it; see `trace_module`.

    Raises:
        TraceError: the module has nothing to train.
    """
    check_parameters(module, type(module).__name__)
    meta = _meta_copy(module)
    dtype = next(str(p.dtype).removeprefix("torch.") for p in meta.parameters())
    meta_args, meta_kwargs = _to_meta((tuple(args), dict(kwargs or {})))
    return Step(
        module=meta,
        inputs=meta_kwargs,
        positional=meta_args,
        loss=lambda output, _: default_loss(output),
        settings=StepSettings(
            kernels=kernels,
            attention=attention,
            parameter_dtype=dtype,
            compute_dtype=dtype,
            optimizer=optimizer,
        ),
    )


def _meta_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of the module with every parameter and buffer on the meta device; no data is copied.

    Attributes that are tensors and neither are copied with their data and then moved.
    """
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = torch.nn.Parameter(
            torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
        )
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    copy = deepcopy(module, memo)
    for child in copy.modules():
        for name, item in vars(child).items():
            if isinstance(item, torch.Tensor) and not item.is_meta:
                setattr(child, name, torch.empty_like(item, device="meta"))
    return copy


def _to_meta(tree: Any) -> Any:
    return tree_map(
        lambda leaf: torch.empty_like(leaf, device="meta") if isinstance(leaf, torch.Tensor) else leaf, tree
    )


def _cast_parameters(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast floating-point parameters only: FSDP's mixed precision leaves buffers alone, and tables stay
    exact.
    """
    for parameter in module.parameters():
        if parameter.is_floating_point() and parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
