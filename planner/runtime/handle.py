"""`apply`: puts a plan on a live model, and takes it off again."""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from planner.errors import HostMemoryError, PlanMismatchError, ReplayError
from planner.graph import OUTSIDE
from planner.link import Staging
from planner.plan import Plan, Retention, load_plan
from planner.runtime.forward import (
    AUDIT_INTERVAL,
    Forward,
    Known,
    RecordedForward,
    ReplayableForward,
    Subject,
)
from planner.runtime.host import HostArena, default_limit_bytes
from planner.runtime.watch import ModelWatch

# How many input signatures keep their tape; the least recently used one goes first.
MAX_TAPES = 16

_APPLIED: "weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[AppliedPlan]]" = weakref.WeakKeyDictionary()


class AppliedPlan:
    """A plan at work on a model, from `apply` until `remove`.

    Attributes:
        plan: the plan.
        forwards: how many forwards with gradients ran under it.
        recordings: how many of them were recorded, which is slower.
        host: the memory that offloaded tensors go to, and its ledger.
        is_watched: someone follows saved tensors through the hooks, so that these are kept even where the plan saves
            everything and they have nothing to do.
    """

    def __init__(self, model: torch.nn.Module, plan: Plan, *, host_limit_bytes: int, staging: Staging | None) -> None:
        self.plan = plan
        self.forwards = 0
        self.recordings = 0
        self.is_watched = False
        self._model = model
        self._is_paused = False
        device = _device_of(model)
        self.host = HostArena(host_limit_bytes, is_pinned=device.type == "cuda", is_fake=device.type == "meta")
        self._subject = Subject(model, plan, ModelWatch(model), device, self.host, staging)
        self._known: OrderedDict[Hashable, Known] = OrderedDict()
        self._threads = threading.local()
        self._hooks = [
            model.register_forward_pre_hook(_Hook(self._begin), with_kwargs=True),
            *self._anchor_hooks(),
            model.register_forward_hook(_Hook(self._end), with_kwargs=True, always_call=True),
        ]
        self._call = self._guarded
        # Module hooks are not told of a KeyboardInterrupt. This is where Module.compile puts its own wrapper, which
        # __call__ prefers, and which copies and pickles of the module leave out.
        model._compiled_call_impl = self._call

    @property
    def fallbacks(self) -> int:
        """How many forwards kept everything from some tensor on, because they differed from the plan or the tape."""
        return self._subject.fallbacks

    def remove(self) -> None:
        """Take the plan off the model. A backward that is still to come keeps what it needs."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._known.clear()
        self.host.close()
        if self._model.__dict__.get("_compiled_call_impl") is self._call:
            del self._model.__dict__["_compiled_call_impl"]
        _APPLIED.pop(self._model, None)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While active, forwards run as without the plan."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    # -- one forward ----------------------------------------------------------------------------------------

    @property
    def _running(self) -> list[Forward]:
        """The forwards of this thread that are in progress, the innermost last."""
        running: list[Forward] = self._threads.__dict__.setdefault("running", [])
        return running

    def _guarded(self, *args: Any, **kwargs: Any) -> Any:
        running = self._running
        depth = len(running)
        try:
            return self._model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        except (HostMemoryError, PlanMismatchError, ReplayError):
            if not self._subject.is_proven:
                self._give_up(running[depth:])
            raise
        finally:
            while len(running) > depth:
                running.pop().close()

    def _begin(self, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if model is not self._model:
            raise PlanMismatchError("a replica of the model runs: torch.nn.DataParallel is not supported")
        if self._running or self._is_paused or not torch.is_grad_enabled():
            self._running.append(Forward())
            return
        if model._compiled_call_impl is not self._call:
            raise PlanMismatchError("the model was compiled after the plan was applied, which is not supported")
        subject = self._subject
        subject.watch.check()
        if subject.saves_everything and subject.is_proven and not self.is_watched:
            self.forwards += 1
            self._running.append(Forward())
            return
        signature, inputs = subject.watch.signature(subject.device, args, kwargs)
        known = self._known_of(signature)
        changed = subject.watch.changed_attributes()
        self.forwards += 1
        if known.program is None or changed or known.forwards >= AUDIT_INTERVAL:
            self.recordings += 1
            forward: Forward = RecordedForward(subject, known, args, inputs, changed)
        else:
            forward = ReplayableForward(subject, known, known.program, inputs)
        self._running.append(forward)
        forward.enter()

    def _end(self, model: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self._running:
            return
        forward = self._running[-1]
        forward.close()
        if output is not None:
            forward.finish(output)
        self._running.pop()

    def _give_up(self, forwards: list[Forward]) -> None:
        """The plan does not fit: leave the model as it was found."""
        for forward in forwards:
            forward.close()
            if isinstance(forward, RecordedForward):
                forward.undo()
        self.remove()

    def _known_of(self, signature: Hashable) -> Known:
        known = self._known.setdefault(signature, Known())
        self._known.move_to_end(signature)
        while len(self._known) > MAX_TAPES:
            self._known.popitem(last=False)
        return known

    def _anchor_hooks(self) -> Iterator[Any]:
        """Hooks on the modules at whose boundaries the plan holds something."""
        # FSDP shards a unit's parameters again after its forward, so that each replay has to stay within its unit.
        sides = dict.fromkeys(
            [
                *((anchor.module_fqn, anchor.side) for anchor in self.plan.anchors),
                *((unit, side) for unit in self._subject.watch.fsdp_units if unit for side in ("input", "output")),
            ]
        )
        for fqn, side in sides:
            module = self._model.get_submodule(fqn)
            if side == "input":
                yield module.register_forward_pre_hook(_Hook(lambda _, args, fqn=fqn: self._pass(fqn, "input", args)))
            else:
                yield module.register_forward_hook(
                    _Hook(lambda _, args, output, fqn=fqn: self._pass(fqn, "output", output))
                )

    def _pass(self, fqn: str, side: str, tensors: Any) -> None:
        if self._running:
            self._running[0].note_boundary(fqn, side, tensors)


class _Hook:
    """A module hook. In a copy of the model, or in a pickle, it does nothing."""

    def __init__(self, run: Callable[..., None]) -> None:
        self._run = run

    def __call__(self, *args: Any) -> None:
        self._run(*args)

    def __deepcopy__(self, memo: Any) -> "_Hook":
        return _Hook(_nothing)

    def __reduce__(self) -> Any:
        return _Hook, (_nothing,)


def _nothing(*_: Any) -> None:
    pass


def apply(
    model: torch.nn.Module,
    plan: Plan | str | Path,
    *,
    host_limit_bytes: int | None = None,
    staging: Staging | None = None,
) -> AppliedPlan:
    """Put a plan on a live model. Training goes on as before; `remove` takes the plan off.

    Parameters, buffers and state_dict keys are untouched. The plan acts on forwards with gradients enabled.
    The first two forwards of each input signature are recorded, which is slower; if the first one does not
    match the plan, the plan is taken off and the error is raised from that forward. Once one has matched a
    plan that saves everything, the others are left alone. Copies and pickles of the model carry no plan.

    What a forward computes may depend on its arguments, on parameters and buffers, and on plain attributes
    of its modules. A number that comes from elsewhere, such as a global variable, is noticed if it changes
    between the first two forwards, and otherwise only at the next of the recordings that check each
    signature again after every 256 forwards.

    Args:
        model: the module whose forward the plan was made for.
        plan: a plan, or the path of a plan file.
        host_limit_bytes: the most host memory that offloaded tensors may have, those of all forwards in flight
            together; half of the machine's if not given, so that several processes on one need a number. One
            forward's is taken when the first one has been recorded; recorded forwards use ordinary memory. If
            there is none left for another forward in flight, its tensors stay on the device.
        staging: what may be on its way to the host at a time, and on its way back before backward asks for it, and
            how early the first tensors come back. If not given, that of the plan; if it has none, what
            `planner.link.Staging.of` says for the largest offloaded storage, in a recorded forward the largest so far.

    Raises:
        HostMemoryError: the plan offloads more than the limit; also raised from the first forward in
            training mode, which knows exactly.
        PlanFileError: the file cannot be read.
        PlanMismatchError: the plan is for another model or another PyTorch, one is applied already, or the
            model is of a kind on which no plan works.
    """
    loaded = plan if isinstance(plan, Plan) else load_plan(plan)
    _check_free(model)
    _check_kind(model)
    _check_plan(model, loaded)
    limit_bytes = default_limit_bytes() if host_limit_bytes is None else host_limit_bytes
    _check_host(loaded, limit_bytes)
    applied = AppliedPlan(model, loaded, host_limit_bytes=limit_bytes, staging=staging or loaded.staging)
    _APPLIED[model] = weakref.ref(applied)
    return applied


def _check_free(model: torch.nn.Module) -> None:
    parts = set(model.modules())
    for other in list(_APPLIED):
        if other is model:
            raise PlanMismatchError("a plan is applied to this model already; remove it first")
        if other in parts or model in set(other.modules()):
            raise PlanMismatchError("a plan is applied to a part of this model, or to a model that it is part of")


# Class names, so that nothing has to be imported to look.
_WRAPPERS = {
    "DataParallel": "torch.nn.DataParallel runs copies of the model; use DistributedDataParallel",
    "DistributedDataParallel": "apply the plan to the model inside DistributedDataParallel: model.module",
    "OptimizedModule": "a compiled model decides itself what it saves; apply the plan instead of torch.compile",
}


def _check_kind(model: torch.nn.Module) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise PlanMismatchError("a scripted model cannot be planned")
    for fqn, module in model.named_modules():
        where = fqn or "the model"
        for cls in type(module).__mro__:
            if cls.__module__.startswith("torch.") and cls.__name__ in _WRAPPERS:
                raise PlanMismatchError(f"{where} is a {cls.__name__}: {_WRAPPERS[cls.__name__]}")
        if module._compiled_call_impl is not None:
            raise PlanMismatchError(f"{where} is compiled: {_WRAPPERS['OptimizedModule']}")
        if getattr(module, "gradient_checkpointing", False) is True:
            raise PlanMismatchError(
                f"gradient checkpointing is on in {where}; the plan takes its place: call "
                "gradient_checkpointing_disable()"
            )


def _check_plan(model: torch.nn.Module, plan: Plan) -> None:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters != plan.model.parameters:
        raise PlanMismatchError(
            f"the plan is for {plan.model.name} with {plan.model.parameters:,} parameters, the model has {parameters:,}"
        )
    installed = torch.__version__.partition("+")[0]
    if installed != plan.model.torch:
        raise PlanMismatchError(
            f"the plan was made with PyTorch {plan.model.torch}, this is {installed}: make it again"
        )
    known = {name for name, _ in model.named_modules()}
    for fqn in (*(item.module_fqn for item in plan.decisions), *(item.module_fqn for item in plan.anchors)):
        if fqn not in known and fqn != OUTSIDE:
            raise PlanMismatchError(f"the plan speaks of module {fqn}, which the model does not have")
    for decision in plan.decisions:
        if decision.module_fqn == OUTSIDE and decision.retention is not Retention.SAVE:
            raise PlanMismatchError(
                f"the plan does not save {decision.op}, which is saved outside the model, where it cannot act"
            )


def _check_host(plan: Plan, limit_bytes: int) -> None:
    needed_bytes = plan.predicted.host_bytes
    if needed_bytes > limit_bytes:
        raise HostMemoryError(
            f"the plan offloads {needed_bytes:,} bytes, over the limit of {limit_bytes:,}; raise host_limit_bytes, or "
            "make a plan that offloads less",
            needed_bytes=needed_bytes,
            limit_bytes=limit_bytes,
        )


def _device_of(model: torch.nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
