"""Runs one step of a module under the recorder and turns what it saw into an op graph."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from planner.blocks import BlockIndex, block_levels
from planner.costs.static import ParameterInfo, static_memory
from planner.errors import PlannerError, TraceError
from planner.graph import (
    ModuleInfo,
    OpGraph,
    StaticMemory,
    StepInfo,
    Storage,
    StorageKind,
    Value,
    build_graph,
)
from planner.spec import AttentionKernel
from planner.tracing.accumulation import merge_accumulations
from planner.tracing.autocast import Autocast
from planner.tracing.build import brief
from planner.tracing.lowering import KernelLowering, Kernels
from planner.tracing.recorder import Recorder
from planner.tracing.sharding import Sharding, shard_storages
from planner.tracing.steady import assumptions
from planner.units import DTYPE_BYTES

_GROUPED_PRODUCT = "aten._grouped_mm"

LossFunction = Callable[[Any, Mapping[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """How a step is run, apart from the module and what it is called with.

    Attributes:
        parameter_dtype, compute_dtype: as in the spec's `precision`.
        optimizer: a key of `planner.costs.static.OPTIMIZER_COSTS`.
        kernels: whose operators to show.
        attention: the attention kernel.
        fsdp: over how many devices the static memory is sharded.
        ddp: on how many devices the model is replicated.
        name: what to call the model in reports; its class name if empty.
        tokens: samples × length of one micro-batch.
        micro_batch: its samples; None where nothing says which axis they are.
        notes: what the reader should know of how the model was made.
    """

    parameter_dtype: str
    compute_dtype: str
    optimizer: str
    kernels: Kernels = Kernels.CUDA
    attention: AttentionKernel = AttentionKernel.FLASH
    fsdp: int = 1
    ddp: int = 1
    name: str = ""
    tokens: int = 1
    micro_batch: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step that can be run on tensors without data, any number of times.

    Attributes:
        module: on the meta device, in training mode; running the step sets its parameters' gradients and clears them.
        inputs: keyword arguments of forward, on the meta device.
        positional: positional arguments of forward.
        loss: scalar from forward's output and the inputs.
        settings: everything else.
    """

    module: torch.nn.Module
    inputs: Mapping[str, Any]
    positional: tuple[Any, ...] = ()
    loss: LossFunction
    settings: StepSettings

    @property
    def named_inputs(self) -> dict[str, torch.Tensor]:
        """The tensors the caller holds, by the name under which a report shows them."""
        named = {**self.inputs, **{f"argument {position}": item for position, item in enumerate(self.positional)}}
        return {name: item for name, item in named.items() if isinstance(item, torch.Tensor)}


class StepRunner:
    """Runs forwards of a step with the operators of the device and the kernels that its settings name."""

    def __init__(self, step: Step) -> None:
        settings = step.settings
        self._step = step
        self._autocast = None
        if settings.fsdp == 1 and settings.parameter_dtype != settings.compute_dtype:
            self._autocast = Autocast(getattr(torch, settings.compute_dtype))
        self._lowering = KernelLowering(kernels=settings.kernels, attention=settings.attention, autocast=self._autocast)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know of the kernels chosen."""
        return self._lowering.notes

    def forward(self) -> tuple[Any, torch.Tensor]:
        """What forward returned, and the loss; the casts of autocast are forgotten.

        Raises:
            TraceError: the loss is not a scalar, or depends on no parameter.
        """
        step = self._step
        with torch.device("meta"), self._lowering:
            output = step.module(*step.positional, **step.inputs)
            scalar = step.loss(output, step.inputs)
        if self._autocast is not None:
            self._autocast.forget()
        _check_loss(scalar)
        return output, scalar


def trace_step(step: Step) -> OpGraph:
    """The op graph of one forward and backward of a module on meta tensors.

    The caller is assumed to hold the inputs and the outputs of forward until the step ends, as a plain loop
    does.

    Raises:
        TraceError: forward, loss or backward failed on tensors without data; names the module.
    """
    module, runner = step.module, StepRunner(step)
    recorder = Recorder(module, step.named_inputs, kernels=step.settings.kernels)
    module.zero_grad(set_to_none=True)
    try:
        with explained(recorder), assumptions() as notes, recorder.watching(), torch.enable_grad():
            output, scalar = runner.forward()
            recorder.begin_backward()
            scalar.backward()  # type: ignore[no-untyped-call]
        with explained(recorder):
            recorder.finish(module)
    finally:
        module.zero_grad(set_to_none=True)
    del output, scalar
    merge_accumulations(recorder)
    notes = [*step.settings.notes, *notes, *runner.notes, *_routing_notes(recorder)]
    return _assemble(recorder, module, replace(step.settings, notes=tuple(notes)))


@contextmanager
def explained(recorder: Recorder | None = None) -> Iterator[None]:
    """Around what the model runs: any error comes out as the planner's own.

    Args:
        recorder: knows which module was running.

    Raises:
        TraceError: the model's code failed on tensors without data.
    """
    try:
        yield
    except PlannerError as error:
        raise _in_module(error, recorder.current_module if recorder else "") from error.__cause__
    except Exception as error:
        raise _trace_error(error, recorder.current_module if recorder else "") from error


def _routing_notes(recorder: Recorder) -> list[str]:
    """What is assumed of a mixture of experts, whose routing depends on values."""
    if not any(op.name.startswith(_GROUPED_PRODUCT) for op in recorder.ops):
        return []
    return ["experts are assumed to share the tokens evenly: sizes and FLOPs do not depend on it, times do"]


def _check_loss(scalar: Any) -> None:
    if not isinstance(scalar, torch.Tensor) or scalar.numel() != 1:
        found = tuple(scalar.shape) if isinstance(scalar, torch.Tensor) else type(scalar).__name__
        raise TraceError(f"the loss must be a scalar tensor, found {found}")
    if not scalar.requires_grad:
        raise TraceError("the loss does not depend on any trainable parameter")


def _in_module(error: PlannerError, module_fqn: str) -> PlannerError:
    """The same error, with the module's path where it could not know it."""
    if isinstance(error, TraceError) and not error.module_fqn and module_fqn:
        return TraceError(error.message, module_fqn=module_fqn, hint=error.hint)
    return error


# Parts of what PyTorch says, and what to try then.
_HINTS = (
    (
        ("meta tensor", "item()", "cannot copy out", "expected device meta", "_local_scalar_dense"),
        "the step is traced on tensors without data: code that reads values, or that puts tensors on a "
        "fixed device, cannot run",
    ),
    (("sparse",), "sparse tensors cannot be planned: use dense ones"),
    (
        ("required positional argument", "'nonetype' object"),
        "describe every tensor that forward needs under `inputs`",
    ),
)
_LONGEST_MESSAGE = 240


def _trace_error(error: Exception, module_fqn: str) -> TraceError:
    text = brief(error).partition(". ")[0][:_LONGEST_MESSAGE]
    hint = next((hint for signs, hint in _HINTS if any(sign in text.lower() for sign in signs)), None)
    return TraceError(text, module_fqn=module_fqn, hint=hint)


def _assemble(recorder: Recorder, module: torch.nn.Module, settings: StepSettings) -> OpGraph:
    # Ops by the hundred thousand survive each pass of the cyclic collector, which finds nothing: none is
    # cyclic.
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        return _graph(recorder, module, settings)
    finally:
        if was_collecting:
            gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """What a finished recording comes to in memory.

    Attributes:
        storages: with the lives they have under the settings: with FSDP, unsharded gradients die once reduced.
        static: what is counted apart from the storages.
        sharded_gradient_ratio: see `StepInfo`.
    """

    storages: tuple[Storage, ...]
    static: StaticMemory
    sharded_gradient_ratio: float


def accounts(recorder: Recorder, module: torch.nn.Module, settings: StepSettings) -> Accounts:
    """The memory of a finished recording of a step of the module."""
    parameters = _parameters(module, module_table(module))
    storages = _storages(recorder)
    static = static_memory(
        parameters,
        buffer_bytes=sum(s.size_bytes for s in storages if s.kind is StorageKind.BUFFER),
        parameter_dtype=settings.parameter_dtype,
        compute_dtype=settings.compute_dtype,
        optimizer=settings.optimizer,
        fsdp=settings.fsdp,
        ddp=settings.ddp,
    )
    ratio = _sharded_gradient_ratio(static, storages, settings.fsdp)
    if settings.fsdp > 1:
        levels = block_levels(module_table(module))
        storages = shard_storages(
            storages,
            parameters,
            recorder.ops,
            recorder.saved_tensors(),
            Sharding(
                devices=settings.fsdp,
                block_of=BlockIndex(levels[0] if levels else ()),
                element_bytes=DTYPE_BYTES[settings.compute_dtype],
            ),
            backward_step=recorder.backward_step,
            steps=recorder.step,
        )
    return Accounts(storages=storages, static=static, sharded_gradient_ratio=ratio)


def _graph(recorder: Recorder, module: torch.nn.Module, settings: StepSettings) -> OpGraph:
    memory = accounts(recorder, module, settings)
    return build_graph(
        ops=recorder.ops,
        storages=memory.storages,
        values=_values(recorder),
        saved_tensors=recorder.saved_tensors(),
        modules=module_table(module),
        step=StepInfo(
            model=settings.name or type(module).__name__,
            torch_version=torch.__version__.partition("+")[0],
            attention=str(settings.attention),
            steps=recorder.step,
            backward_step=recorder.backward_step,
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            static=memory.static,
            tokens=settings.tokens,
            micro_batch=settings.micro_batch,
            parameter_dtype=settings.parameter_dtype,
            notes=settings.notes,
            sharded_gradient_ratio=memory.sharded_gradient_ratio,
        ),
    )


def _parameters(module: torch.nn.Module, table: tuple[ModuleInfo, ...]) -> tuple[ParameterInfo, ...]:
    levels = block_levels(table)
    block_of = BlockIndex(levels[0] if levels else ())
    return tuple(
        ParameterInfo(
            fqn=fqn,
            shape=tuple(parameter.shape),
            is_trainable=parameter.requires_grad,
            block=block_of(fqn),
        )
        for fqn, parameter in module.named_parameters()
    )


def _storages(recorder: Recorder) -> tuple[Storage, ...]:
    return tuple(
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


def _values(recorder: Recorder) -> tuple[Value, ...]:
    return tuple(
        Value(
            index=index,
            storage=record.storage,
            version=record.version,
            producer=record.producer,
            boundary=record.boundary,
        )
        for index, record in enumerate(recorder.values)
    )


def _sharded_gradient_ratio(static: StaticMemory, storages: tuple[Storage, ...], fsdp: int) -> float:
    traced = sum(s.size_bytes for s in storages if s.kind is StorageKind.GRADIENT)
    return static.gradients_bytes / traced if fsdp > 1 and traced else 0.0


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
