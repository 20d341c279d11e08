"""From a tape and decisions to a program, and the check that everything it drops can come back."""

from collections import Counter
from collections.abc import Mapping, Set

from planner.errors import ReplayError
from planner.plan import Anchor, Decision, Retention
from planner.runtime.state import Program
from planner.runtime.tape import Tape, TapeOp

Place = tuple[str, int, int]  # module path, call, ordinal
# What an op must not be, to be run twice: see `planner.problem`.
_STATE_FREE_REPLAY = frozenset({"aten.native_batch_norm", "aten.cudnn_batch_norm"})


def place_of(decision: Decision) -> Place:
    """Where the decided tensor is packed."""
    return decision.module_fqn, decision.module_call, decision.ordinal


def boundary_of(anchor: Anchor) -> str:
    """The module boundary at which the anchor passes."""
    return f"{anchor.module_fqn}:{anchor.module_call}:{anchor.side}:{anchor.position}"


def make_program(
    tape: Tape, is_dropped: tuple[bool, ...], anchors: tuple[Anchor, ...], *, final: Mapping[int, int]
) -> Program:
    """The program that drops the given packed tensors.

    Args:
        tape: what forward did.
        is_dropped: per packed tensor.
        anchors: values to hold besides.
        final: last version (value) of each value's storage when forward ended.

    Raises:
        ReplayError: a dropped tensor cannot be replayed from what remains; names it and the op in the way.
    """
    handles = Counter(
        packed.window.value for packed, dropped in zip(tape.packed, is_dropped, strict=True) if dropped
    )
    held = {tape.boundaries[boundary_of(anchor)]: boundary_of(anchor) for anchor in anchors}
    kept = {
        packed.window.value for packed, dropped in zip(tape.packed, is_dropped, strict=True) if not dropped
    }
    available = (kept | set(held) | set(tape.input_values)) & {
        value for value in (*kept, *held, *tape.input_values) if final[value] == value
    } | set(tape.static_names)
    replayed: dict[int, TapeOp] = {}
    for value in handles:
        for op in _closure(tape, value, available - set(handles), final):
            replayed[op.record.step] = op
    return Program(
        tape=tape,
        is_dropped=is_dropped,
        readers=Counter(value for op in replayed.values() for value in op.reads),
        handles=handles,
        anchors={boundary: value for value, boundary in held.items()},
    )


def _closure(tape: Tape, wanted: int, available: Set[int], final: Mapping[int, int]) -> list[TapeOp]:
    found: dict[int, TapeOp] = {}
    stack = [wanted]
    while stack:
        value = stack.pop()
        if value in available:
            continue
        op = tape.ops.get(value)
        reason = "it was there before forward and has no name" if op is None else _obstacle(op)
        if reason:
            raise ReplayError(f"{_named(tape, wanted)} cannot be replayed: {reason}")
        assert op is not None
        if op.record.step not in found:
            found[op.record.step] = op
            stack.extend(op.reads)
    return list(found.values())


def _obstacle(op: TapeOp) -> str:
    name = op.record.name
    if op.record.is_random:
        return f"{name} is random"
    if op.record.is_opaque and not op.mutates:
        return f"{name} is filled by something dispatch does not see"
    if op.record.mutates_state and name.rpartition(".")[0] not in _STATE_FREE_REPLAY:
        return f"{name} writes to a parameter, buffer or input"
    return ""


def _named(tape: Tape, value: int) -> str:
    packed = next(packed for packed in tape.packed if packed.window.value == value)
    return f"saved tensor {packed.ordinal} of {packed.module_fqn or 'the model'} ({packed.op})"


def decisions_by_place(decisions: tuple[Decision, ...]) -> Mapping[Place, Decision]:
    """The decisions, found by where the tensor is packed."""
    return {place_of(decision): decision for decision in decisions}


def is_drop(decision: Decision) -> bool:
    """Whether the tensor is to be replayed."""
    return decision.retention is Retention.RECOMPUTE
