"""`apply`: puts a plan on a live model, and takes it off again."""

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

from planner.errors import PlanMismatchError
from planner.plan import Plan, load_plan
from planner.runtime.program import boundary_of, decisions_by_place, is_drop, make_program
from planner.runtime.state import ForwardState, Handle, Program
from planner.runtime.tape import PackedTensor, TapeRecorder

# How many input signatures keep their tape; the least recently used one goes first.
MAX_TAPES = 16
# Recordings of a signature before it is trusted: the second must equal the first, or something changes from step to step.
_RECORDINGS = 2
_MARK = "_planner_handle"


class AppliedPlan:
    """A plan at work on a model, from `apply` until `remove`.

    Attributes:
        plan: the plan.
        forwards: how many forwards ran under it.
        fallbacks: how many of them kept everything from some tensor on, because they differed from the tape.
    """

    def __init__(self, model: torch.nn.Module, plan: Plan) -> None:
        self.plan = plan
        self.forwards = 0
        self.fallbacks = 0
        self._model = model
        self._decisions = decisions_by_place(plan.decisions)
        self._programs: OrderedDict[Hashable, list[Program]] = OrderedDict()
        self._running: list[_Forward] = []
        self._names: dict[str, Callable[[], torch.Tensor]] = dict(_static_tensors(model))
        self._hooks = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end, with_kwargs=True, always_call=True),
            *self._anchor_hooks(),
        ]

    def remove(self) -> None:
        """Take the plan off the model. A backward that is still to come keeps what it needs."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._programs.clear()
        if self._model.__dict__.get(_MARK) is self:
            del self._model.__dict__[_MARK]

    # -- one forward ----------------------------------------------------------------------------------------

    def _begin(self, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if not torch.is_grad_enabled():
            self._running.append(_Forward(None, ExitStack()))
            return
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        signature = _signature(model, args, kwargs, inputs)
        programs = self._programs.setdefault(signature, [])
        self._programs.move_to_end(signature)
        while len(self._programs) > MAX_TAPES:
            self._programs.popitem(last=False)
        state = ForwardState(lambda name: self._names[name]().untyped_storage(), _device_of(model))
        stack = ExitStack()
        self.forwards += 1
        if len(programs) < _RECORDINGS:
            forward: _Forward = _Recording(self, state, stack, model, args, inputs, programs)
        else:
            forward = _Replayable(self, state, stack, programs[-1], inputs)
        self._running.append(forward)
        forward.enter()

    def _end(self, model: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        forward = self._running.pop()
        forward.leave(is_complete=output is not None)

    def _anchor_hooks(self) -> Iterator[Any]:
        """Hooks on the modules at whose boundaries the plan holds something."""
        sides: dict[tuple[str, str], None] = {
            (anchor.module_fqn, anchor.side): None for anchor in self.plan.anchors
        }
        for fqn, side in sides:
            module = self._model.get_submodule(fqn)
            if side == "input":
                yield module.register_forward_pre_hook(
                    lambda _, args, fqn=fqn: self._pass(fqn, "input", args)
                )
            else:
                yield module.register_forward_hook(
                    lambda _, args, output, fqn=fqn: self._pass(fqn, "output", output)
                )

    def _pass(self, fqn: str, side: str, tensors: Any) -> None:
        if self._running:
            self._running[-1].note_boundary(fqn, side, tensors)


class _Forward:
    """A forward in progress; this one is left alone."""

    def __init__(self, state: ForwardState | None, stack: ExitStack) -> None:
        self.state = state
        self.stack = stack

    def enter(self) -> None:
        pass

    def leave(self, *, is_complete: bool) -> None:
        self.stack.close()

    def note_boundary(self, fqn: str, side: str, tensors: Any) -> None:
        pass


class _Recording(_Forward):
    """The first forwards of a signature: they run under the recorder, and already drop what the plan drops."""

    def __init__(
        self,
        applied: AppliedPlan,
        state: ForwardState,
        stack: ExitStack,
        model: torch.nn.Module,
        args: Any,
        inputs: list[torch.Tensor],
        programs: list[Program],
    ) -> None:
        super().__init__(state, stack)
        self._applied = applied
        self._model = model
        self._args = args
        self._programs = programs
        self._inputs = inputs
        self._recorder = TapeRecorder(model, {str(place): tensor for place, tensor in enumerate(inputs)})
        self._dropped: list[bool] = []
        self._wanted = {boundary_of(anchor) for anchor in applied.plan.anchors}
        self._calls: Counter[tuple[str, str]] = Counter()

    def enter(self) -> None:
        recorder, stack = self._recorder, self.stack
        recorder.enter_module(self._model, self._args)
        stack.callback(register_module_forward_pre_hook(recorder.enter_module).remove)
        stack.callback(register_module_forward_hook(recorder.leave_module).remove)
        stack.enter_context(recorder)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack))

    def _pack(self, tensor: torch.Tensor) -> Any:
        packed = self._recorder.note_packed(tensor)
        assert self.state is not None
        is_dropped = not packed.is_static and self._is_dropped(packed)
        self._dropped.append(is_dropped)
        if is_dropped:
            return Handle(self.state, packed.window)
        if not packed.is_static:
            self.state.hold(packed.window.value, tensor)
            self.state.see(packed.window.value, tensor)
        return tensor

    def _is_dropped(self, packed: PackedTensor) -> bool:
        decision = self._applied._decisions.get((packed.module_fqn, packed.module_call, packed.ordinal))
        where = f"saved tensor {packed.ordinal} of {packed.module_fqn or 'the model'}"
        if decision is None:
            raise PlanMismatchError(f"the plan says nothing of {where} ({packed.op}): it is for another model")
        dtype = str(packed.window.dtype).removeprefix("torch.")
        if (decision.op, decision.dtype) != (packed.op, dtype):
            raise PlanMismatchError(
                f"the plan expects {where} to be {decision.op} in {decision.dtype}, found {packed.op} in {dtype}"
            )
        return is_drop(decision)

    def note_boundary(self, fqn: str, side: str, tensors: Any) -> None:
        call = self._calls[fqn, side]
        self._calls[fqn, side] += 1
        for place, tensor in enumerate(_tensors(tensors)):
            if f"{fqn}:{call}:{side}:{place}" in self._wanted:
                assert self.state is not None
                self.state.hold(self._recorder.value_of(tensor), tensor)

    def leave(self, *, is_complete: bool) -> None:
        self.stack.close()
        if not is_complete:
            return
        assert self.state is not None
        tape = self._recorder.tape()
        program = make_program(
            tape, tuple(self._dropped), self._applied.plan.anchors, final=self._recorder.final_values()
        )
        for value, tensor in zip(tape.input_values, self._inputs, strict=True):
            self.state.hold(value, tensor)
            self.state.see(value, tensor)
        self.state.start(program)
        self._programs.append(program)


class _Replayable(_Forward):
    """A forward of a known signature: a counter, a comparison and a decision for each saved tensor."""

    def __init__(
        self,
        applied: AppliedPlan,
        state: ForwardState,
        stack: ExitStack,
        program: Program,
        inputs: list[torch.Tensor],
    ) -> None:
        super().__init__(state, stack)
        self._applied = applied
        self._program = program
        self._place = 0
        self._is_off = False
        self._calls: Counter[tuple[str, str]] = Counter()
        state.start(program)
        for value, tensor in zip(program.tape.input_values, inputs, strict=True):
            state.hold(value, tensor)
            state.see(value, tensor)

    def enter(self) -> None:
        self.stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack))

    def _pack(self, tensor: torch.Tensor) -> Any:
        place = self._place
        self._place += 1
        if self._is_off:
            return tensor
        packed = self._program.tape.packed
        if (
            place >= len(packed)
            or tensor.shape != packed[place].window.shape
            or tensor.dtype != packed[place].window.dtype
        ):
            self._fall_back(place, tensor)
            return tensor
        expected = packed[place]
        if expected.is_static:
            return tensor
        assert self.state is not None
        if self._program.is_dropped[place]:
            return Handle(self.state, expected.window)
        value = expected.window.value
        if self._program.readers.get(value):
            self.state.hold(value, tensor)
            self.state.see(value, tensor)
        return tensor

    def _fall_back(self, place: int, tensor: torch.Tensor) -> None:
        self._is_off = True
        self._applied.fallbacks += 1
        packed = self._program.tape.packed
        if place < len(packed):
            expected = packed[place]
            what = (
                f"saved tensor {expected.ordinal} of {expected.module_fqn or 'the model'} should be "
                f"{tuple(expected.window.shape)} in {expected.window.dtype}, found {tuple(tensor.shape)} in "
                f"{tensor.dtype}"
            )
        else:
            what = f"forward saved more than the {len(packed)} tensors it saved before"
        warnings.warn(
            f"this forward differs from the one recorded for the same inputs: {what}; everything is kept from there on",
            stacklevel=2,
        )

    def note_boundary(self, fqn: str, side: str, tensors: Any) -> None:
        call = self._calls[fqn, side]
        self._calls[fqn, side] += 1
        for place, tensor in enumerate(_tensors(tensors)):
            value = self._program.anchors.get(f"{fqn}:{call}:{side}:{place}")
            if value is not None and self._program.readers.get(value):
                assert self.state is not None
                self.state.hold(value, tensor)


def _unpack(packed: Any) -> torch.Tensor:
    return packed.state.restore(packed.window) if isinstance(packed, Handle) else packed


def apply(model: torch.nn.Module, plan: Plan | str | Path) -> AppliedPlan:
    """Put a plan on a live model. Training goes on as before; `remove` takes the plan off.

    Parameters, buffers and state_dict keys are untouched. The plan acts on forwards with gradients enabled.

    Args:
        model: the module whose forward the plan was made for.
        plan: a plan, or the path of a plan file.

    Raises:
        PlanFileError: the file cannot be read.
        PlanMismatchError: the plan is for another model, or one is applied already.
    """
    loaded = plan if isinstance(plan, Plan) else load_plan(plan)
    if _MARK in model.__dict__:
        raise PlanMismatchError("a plan is applied to this model already; remove it first")
    _check_model(model, loaded)
    applied = AppliedPlan(model, loaded)
    model.__dict__[_MARK] = applied
    return applied


def _check_model(model: torch.nn.Module, plan: Plan) -> None:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters != plan.model.parameters:
        raise PlanMismatchError(
            f"the plan is for {plan.model.name} with {plan.model.parameters:,} parameters, the model has {parameters:,}"
        )
    known = {name for name, _ in model.named_modules()}
    for item in (*plan.decisions, *plan.anchors):
        if item.module_fqn not in known and not item.module_fqn.startswith("("):
            raise PlanMismatchError(f"the plan speaks of module {item.module_fqn}, which the model does not have")


def _static_tensors(model: torch.nn.Module) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """A way to each parameter and buffer that finds the one in place when it is called."""
    for fqn, module in model.named_modules():
        for table in ("_parameters", "_buffers"):
            for name in getattr(module, table):
                path = f"{fqn}.{name}" if fqn else name
                yield path, lambda module=module, table=table, name=name: getattr(module, table)[name]


def _signature(model: torch.nn.Module, args: Any, kwargs: Any, inputs: list[torch.Tensor]) -> Hashable:
    """What must be equal for a tape to hold: layouts of the inputs, other arguments, modes."""
    leaves = tree_leaves((args, kwargs))
    return (
        tuple((tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in inputs),
        tuple(repr(leaf) for leaf in leaves if isinstance(leaf, int | float | str | bool | None)),
        tuple(sorted(kwargs)),
        tuple(module.training for module in model.modules()),
        tuple((parameter.requires_grad, parameter.dtype) for parameter in model.parameters()),
        torch.is_autocast_enabled(_device_of(model).type),
        torch.get_autocast_dtype(_device_of(model).type),
    )


def _device_of(model: torch.nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
