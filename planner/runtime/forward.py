"""One forward under a plan: recorded, or replayable because it was recorded before."""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointFunction

from planner.blocks import BlockIndex
from planner.errors import PlanMismatchError
from planner.graph import OUTSIDE
from planner.link import LEAD, Staging
from planner.plan import Decision, Plan, Retention
from planner.runtime.host import HostArena
from planner.runtime.offload import HostCopies, Streams
from planner.runtime.program import (
    PackStep,
    Place,
    Program,
    boundary_of,
    decisions_by_place,
    make_program,
    names_read,
    retention_of,
    without,
)
from planner.runtime.state import OVERWRITTEN, ForwardState, Handle, Snapshot, Turn, kept, unpack
from planner.runtime.tape import (
    PackedTensor,
    Tape,
    TapeRecorder,
    changing_ops,
    graph_of,
    sequence_number,
    structure_difference,
)
from planner.runtime.watch import ModelWatch

# Recordings of a signature without two alike, after which each of its forwards is recorded: slow, but exact.
_MAX_RECORDINGS = 4
# Changes of a number that go with a change of the model's attributes, as a schedule makes them, are
# followed by recording again; after so many, what depends on the number is saved instead.
_MAX_ADOPTIONS = 8
# A forward that is trusted is recorded again after so many.
AUDIT_INTERVAL = 256


@dataclass(slots=True)
class Known:
    """What is known of one input signature.

    Attributes:
        tape: of the last recorded forward.
        program: for forwards that are not recorded; None until two recordings agreed.
        recordings: since they last agreed.
        forwards: since the last recording.
        host_bytes: what the program's forwards need on the host.
        largest_bytes: of the largest value that they offload.
        adoptions: how often an attribute of the model changed and with it a number in the tape.
        steps: of the ops that were called with different numbers, whose results are saved.
        is_unsteady: no two recordings agree, so every forward is recorded.
    """

    tape: Tape | None = None
    program: Program | None = None
    recordings: int = 0
    forwards: int = 0
    host_bytes: int = 0
    largest_bytes: int = 0
    adoptions: int = 0
    steps: frozenset[int] = frozenset()
    is_unsteady: bool = False


@dataclass(slots=True)
class Subject:
    """A model and the plan at work on it.

    Attributes:
        arena: host memory for what is offloaded.
        staging: see `HostCopies`.
        is_proven: a forward has matched the plan, so that what does not match later is another kind of input.
        fallbacks: how many forwards kept everything from some tensor on.
        saves_everything: the plan does, so that there is nothing to do for it.
    """

    model: torch.nn.Module
    plan: Plan
    watch: ModelWatch
    device: torch.device
    arena: HostArena
    staging: Staging | None = None
    is_proven: bool = False
    fallbacks: int = 0
    saves_everything: bool = field(init=False)
    decisions: Mapping[Place, Decision] = field(init=False)
    boundaries: frozenset[str] = field(init=False)
    finders: Mapping[str, Callable[[], torch.Tensor]] = field(init=False)
    _streams: Streams = field(default_factory=Streams)
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.saves_everything = all(decision.retention is Retention.SAVE for decision in self.plan.decisions)
        self.decisions = decisions_by_place(self.plan.decisions)
        self.boundaries = frozenset(boundary_of(anchor) for anchor in self.plan.anchors)
        self.finders = self.watch.finders()

    def new_copies(self, known: Known | None = None) -> HostCopies:
        """The host's part in a forward that begins; what it needs is known unless it is recorded."""
        return HostCopies(
            self.arena,
            self._streams,
            staging=self.staging,
            host_bytes=None if known is None else known.host_bytes,
            largest_bytes=0 if known is None else known.largest_bytes,
        )

    @property
    def lead(self) -> int:
        """See `Staging`."""
        return LEAD if self.staging is None else self.staging.lead

    def new_state(self, copies: HostCopies) -> ForwardState:
        """The memory of a forward that begins."""
        finders = self.finders
        return ForwardState(lambda name: finders[name](), self.device, self.say, copies)

    def say_no_place(self, copies: HostCopies) -> None:
        """Warn that something to offload stays on the device, if it is for want of memory."""
        if copies.reason is not None:
            self.say(f"tensors that the plan offloads stay on the device: {copies.reason}")

    def say(self, message: str) -> None:
        """Warn, once."""
        if message not in self._said:
            self._said.add(message)
            warnings.warn(message, stacklevel=2)


class Forward:
    """A forward in progress; this one is left alone."""

    def __init__(self) -> None:
        self.stack = ExitStack()

    def enter(self) -> None:
        """Begin to watch."""

    def finish(self, output: Any) -> None:
        """Forward has returned; runs after `close`."""

    def close(self) -> None:
        """Stop watching, however forward ended."""
        self.stack.close()

    def note_boundary(self, fqn: str, side: str, tensors: Any) -> None:
        """Tensors enter or leave a module."""


class RecordedForward(Forward):
    """A forward that runs under the recorder, and already drops what the plan drops."""

    def __init__(
        self, subject: Subject, known: Known, args: Any, inputs: list[torch.Tensor], changed: list[int]
    ) -> None:
        super().__init__()
        self._subject = subject
        self._known = known
        self._args = args
        self._inputs = inputs
        self._changed = changed  # attributes of the model, see `ModelWatch`
        self._copies = subject.new_copies()
        self._state = subject.new_state(self._copies)
        self._recorder = TapeRecorder(subject.model, inputs, is_sharded=bool(subject.watch.fsdp_units))
        self._anchors: dict[str, int] = {}
        self._dropped: list[bool] = []
        self._offloaded: list[bool] = []
        self._calls: Counter[tuple[str, str]] = Counter()
        self._is_strict = subject.model.training and not subject.is_proven
        self._is_off = False
        self._found: set[Place] = set()
        self._buffers = (
            [(buffer, buffer.detach().clone()) for buffer in subject.model.buffers()] if self._is_strict else []
        )

    def enter(self) -> None:
        recorder, stack = self._recorder, self.stack
        recorder.enter_module(self._subject.model, self._args)
        stack.callback(register_module_forward_pre_hook(recorder.enter_module).remove)
        stack.callback(register_module_forward_hook(recorder.leave_module).remove)
        stack.enter_context(patch.object(CheckpointFunction, "forward", staticmethod(_refuse_reentrant)))
        stack.enter_context(recorder)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, unpack))

    def _pack(self, tensor: torch.Tensor) -> Turn:
        rank = len(self._dropped)
        with self._recorder.paused():
            self._state.come_to(rank)
        return Turn(self._state, rank, self._packed(tensor))  # whose turn it is, is known in the end

    def _packed(self, tensor: torch.Tensor) -> Snapshot | Handle:
        packed = self._recorder.note_packed(tensor)
        retention = Retention.SAVE if packed.is_static or self._is_off else self._retention(packed, tensor)
        self._dropped.append(retention is Retention.RECOMPUTE)
        self._offloaded.append(retention is Retention.OFFLOAD)
        if retention is Retention.RECOMPUTE:
            return Handle(self._state, packed, self._recorder.digest(tensor))
        if retention is Retention.OFFLOAD and self._is_stored(packed, tensor):
            return Handle(self._state, packed, is_offloaded=True)
        with self._recorder.paused():
            if not packed.is_static:
                self._state.hold(packed.window.value, tensor)
            return kept(tensor)

    def _is_stored(self, packed: PackedTensor, tensor: torch.Tensor) -> bool:
        with self._recorder.paused():
            is_stored = self._state.offload(packed.window.value, tensor)
        if not is_stored:
            if self._is_strict and self._copies.reason is not None:
                raise self._copies.reason
            self._subject.say_no_place(self._copies)
        return is_stored

    def _retention(self, packed: PackedTensor, tensor: torch.Tensor) -> Retention:
        place = (packed.module_fqn, packed.module_call, packed.ordinal)
        decision = self._subject.decisions.get(place)
        difference = _difference(decision, packed)
        if difference:
            self._mismatch(difference)
            return Retention.SAVE
        self._found.add(place)
        if type(tensor) is not torch.Tensor:
            return Retention.SAVE
        retention = retention_of(decision)
        # What is on the host already stays there.
        is_here = tensor.device.type == self._subject.device.type
        return Retention.SAVE if retention is Retention.OFFLOAD and not is_here else retention

    def _mismatch(self, difference: str) -> None:
        if self._is_strict:
            raise PlanMismatchError(f"{difference}: {_other_step(self._subject.device)}")
        self._is_off = True
        self._subject.fallbacks += 1
        self._subject.say(
            f"a forward with other inputs than before does not match the plan: {difference}; "
            "everything is kept from there on"
        )

    def note_boundary(self, fqn: str, side: str, tensors: Any) -> None:
        call = self._calls[fqn, side]
        self._calls[fqn, side] += 1
        is_unit = fqn in self._subject.watch.fsdp_units
        for place, tensor in enumerate(_tensors(tensors)):
            boundary = f"{fqn}:{call}:{side}:{place}"
            if is_unit or boundary in self._subject.boundaries:
                self._anchors[boundary] = value = self._recorder.value_of(tensor)
                with self._recorder.paused():
                    self._state.hold(value, tensor)

    def finish(self, output: Any) -> None:
        subject, known = self._subject, self._known
        tape = self._recorder.tape(output, subject.watch.parameter_names())
        if self._is_strict:
            self._check_complete()
        program = make_program(tape, self._dropped, self._anchors, self._offloaded, lead=subject.lead)
        if self._is_strict and self._copies.wanted_bytes:
            # The next forwards need it: better refused now than later.
            subject.arena.give_back(subject.arena.take(self._copies.wanted_bytes))
        if subject.watch.fsdp_units:
            self._check_units(tape)
        self._state.begin(program, self._inputs)
        self._state.seal()
        subject.is_proven = subject.is_proven or self._is_strict
        self._learn(tape, known)

    def undo(self) -> None:
        """Give the buffers the values they had before a forward that turned out not to match the plan."""
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)

    def _check_complete(self) -> None:
        for place, decision in self._subject.decisions.items():
            if place not in self._found and place[0] != OUTSIDE:
                raise PlanMismatchError(
                    f"the plan expects saved tensor {decision.ordinal} of {decision.module_fqn or 'the model'} "
                    f"({decision.op}), which forward did not save: {_other_step(self._subject.device)}"
                )
        for boundary in sorted(self._subject.boundaries - set(self._anchors)):
            fqn, _, side, position = boundary.rsplit(":", 3)
            raise PlanMismatchError(
                f"the plan holds {side} {position} of {fqn or 'the model'}, which is no tensor of its own"
            )

    def _check_units(self, tape: Tape) -> None:
        """Refuse to replay with the parameters of an FSDP unit other than the one whose backward asks: they
        are not there.
        """
        units = BlockIndex([unit for unit in self._subject.watch.fsdp_units if unit])
        for packed, names in names_read(tape, self._dropped, self._anchors):
            for name in sorted(names):
                if units(name) not in (None, units(packed.module_fqn)):
                    raise PlanMismatchError(
                        f"{packed.where} would be recomputed with {name}, which FSDP has sharded again by then; make "
                        f"a plan that keeps the output of {units(name)}"
                    )

    def _learn(self, tape: Tape, known: Known) -> None:
        """Make the program of the forwards to come, once this one and the one before agree."""
        before, known.tape, known.forwards = known.tape, tape, 0
        if before is None:
            return
        difference = structure_difference(before, tape)
        if difference:
            known.program = None
            known.recordings += 1
            if known.recordings >= _MAX_RECORDINGS and not known.is_unsteady:
                known.is_unsteady = True
                self._subject.say(
                    f"forward differs from call to call for the same kind of input: {difference}; each is recorded "
                    "anew, which is exact but slow"
                )
            return
        known.recordings = 0
        changing = changing_ops(before, tape)
        is_explained = bool(changing and self._changed) and known.adoptions < _MAX_ADOPTIONS
        known.adoptions += is_explained
        steps = known.steps | {op.record.step for op in changing if not is_explained}
        if changing and not is_explained and steps != known.steps:
            first = changing[0].record
            self._subject.say(
                f"{first.name} of {first.module_fqn or 'the model'} is called with another number each time; what is "
                "computed from its result is saved instead of recomputed"
            )
        if not changing:
            self._subject.watch.forgive(self._changed)
        if known.program is None or changing or self._is_off:
            known.steps = steps
            dropped = without(tape, self._dropped, self._anchors, steps)
            known.program = make_program(tape, dropped, self._anchors, self._offloaded, lead=self._subject.lead)
            known.host_bytes, known.largest_bytes = self._copies.wanted_bytes, self._copies.largest_bytes


class ReplayableForward(Forward):
    """A forward of a known signature: a counter, a comparison and a decision for each saved tensor."""

    def __init__(self, subject: Subject, known: Known, program: Program, inputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._subject = subject
        self._known = known
        self._program = program
        self._inputs = inputs
        self._finders = subject.finders
        self._steps = iter(program.steps)
        self._is_off = False
        self._has_dropped = False
        self._last_node = 0  # number of the autograd node that saved the first tensor not as recorded
        self._first_sequence = sequence_number()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._copies = subject.new_copies(known)
        self._state = subject.new_state(self._copies)
        self._state.begin(program, inputs)

    def enter(self) -> None:
        self.stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, unpack))

    def _pack(self, tensor: torch.Tensor) -> Snapshot | Handle | Turn:
        step = next(self._steps, None)
        if step is None or not self._is_expected(step, tensor):
            return self._fall_back(step, tensor)
        if step.is_kept_only:
            return tensor, tensor._version
        if step.is_turn:
            assert self._program.turn is not None
            return Turn(self._state, self._program.turn, self._packed(step, tensor))
        return self._packed(step, tensor)

    def _packed(self, step: PackStep, tensor: torch.Tensor) -> Snapshot | Handle:
        if step.due is not None:
            self._state.come_to(step.due)
        if step.is_dropped:
            self._has_dropped = True
            return Handle(self._state, step.packed)
        if step.is_offloaded:
            if self._state.offload(step.packed.window.value, tensor):
                return Handle(self._state, step.packed, is_offloaded=True)
            if self._copies.reason is None:
                return self._fall_back(step, tensor)
            self._subject.say_no_place(self._copies)
        if step.is_source:
            self._state.hold(step.packed.window.value, tensor)
        if step.is_overwritten:
            return kept(tensor)[0], OVERWRITTEN
        return kept(tensor)

    def _is_expected(self, step: PackStep, tensor: torch.Tensor) -> bool:
        nodes = sequence_number() - self._first_sequence
        if (tensor.dtype, tensor.shape, tensor.stride(), nodes) != step.layout:
            return False
        if step.offset is not None:
            return tensor.storage_offset() == step.offset
        if step.parameter is not None:
            return _is_on(tensor, self._finders[step.parameter]())
        return step.argument is None or _is_on(tensor, self._inputs[step.argument])

    def _fall_back(self, step: PackStep | None, tensor: torch.Tensor) -> Snapshot:
        """What to pack for a tensor that is not the expected one; it and all that follow are kept."""
        if not self._is_off:
            self._note_difference(step, "is not the one recorded")
        return kept(tensor)

    def _note_difference(self, step: PackStep | None, found: str) -> None:
        self._is_off = True
        self._steps = iter(())
        self._subject.fallbacks += 1
        self._known.program = None  # the next forwards are recorded
        self._last_node = sequence_number() - self._first_sequence - 1
        if step is not None:
            packed = step.packed
            self._last_node = min(self._last_node, packed.sequence - 1)
            what = f"{packed.where} ({packed.op}) {found}"
        else:
            what = f"forward saves more than the {len(self._program.steps)} tensors it saved before"
        self._subject.say(
            f"a forward differs from the one recorded for the same kind of input: {what}; everything is "
            "kept from there on"
        )

    def note_boundary(self, fqn: str, side: str, tensors: Any) -> None:
        call = self._calls[fqn, side]
        self._calls[fqn, side] = call + 1
        held = self._program.anchors.get((fqn, call, side))
        if held:
            found = _tensors(tensors)
            for place, value in held:
                if place < len(found):
                    self._state.hold(value, found[place])

    def finish(self, output: Any) -> None:
        self._known.forwards += 1
        missing = next(self._steps, None)
        if missing is not None:
            self._note_difference(missing, "is missing")
        self._state.seal()
        if self._has_dropped and not self._took_the_recorded_path(output):
            self._known.program = None
            self._state.fail(
                "this forward took another path through the model than the ones recorded for the same kind of input, "
                "after tensors had been dropped: its gradients cannot be computed. Later forwards are recorded anew"
            )

    def _took_the_recorded_path(self, output: Any) -> bool:
        """Whether the autograd graph is the recorded one, up to where this forward was seen to differ, if it was."""
        expected = self._program.tape.graph
        found = graph_of(output, self._first_sequence, self._subject.watch.parameter_names())
        if not self._is_off:
            return found == expected
        common = [number for number in expected if number <= self._last_node and number in found]
        # The node at which the difference showed may have another parameter; what was dropped before it does not.
        return all(
            found[number] == expected[number] if number < self._last_node else found[number][0] == expected[number][0]
            for number in common
        )


def _other_step(device: torch.device) -> str:
    """What a plan is for that expects other saved tensors, and the way out."""
    found = "the plan is for another model, or for other inputs, precision or attention"
    if device.type == "cpu":
        found += (
            ". Plans of specs name a GPU's operators; for a model on a CPU, make one from "
            "planner.prepare(model, ..., kernels=planner.tracing.Kernels.CPU)"
        )
    return found


def _refuse_reentrant(*_: Any) -> Any:
    raise PlanMismatchError(
        "torch.utils.checkpoint with use_reentrant=True runs inside the model, which hides what it saves: remove it, "
        "the plan takes its place"
    )


def _is_on(tensor: torch.Tensor, other: torch.Tensor | None) -> bool:
    if tensor is other:
        return True
    return other is not None and tensor.untyped_storage()._cdata == other.untyped_storage()._cdata


def _difference(decision: Decision | None, packed: PackedTensor) -> str:
    """How a packed tensor differs from what the plan expects; empty if it does not. Sizes may differ."""
    if decision is None:
        return f"{packed.where} ({packed.op}) is not in the plan"
    dtype, shape = str(packed.window.dtype).removeprefix("torch."), packed.window.shape
    if (decision.op, decision.dtype, len(decision.shape)) == (packed.op, dtype, len(shape)):
        return ""
    return (
        f"{packed.where} is {packed.op} of shape {shape} in {dtype}, expected {decision.op} of shape "
        f"{decision.shape} in {decision.dtype}"
    )


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
