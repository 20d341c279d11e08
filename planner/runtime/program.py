"""From a tape and decisions to a program, and the check that everything it drops can come back."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from planner.errors import ReplayError
from planner.graph import StorageKind
from planner.link import LEAD
from planner.plan import Anchor, Decision, Retention
from planner.problem import STATE_FREE_REPLAY
from planner.runtime.replay import Replay, made_by, make_replays
from planner.runtime.tape import FINDABLE, PackedTensor, Tape, TapeOp

Place = tuple[str, int, int]  # module path, call, ordinal


@dataclass(frozen=True, slots=True, kw_only=True)
class PackStep:
    """What a forward is expected to pack next, and what becomes of it.

    Attributes:
        packed: as recorded.
        layout: dtype, shape, strides, and how many autograd nodes forward has made by then.
        offset: where it begins in its storage; None for what lies on a parameter, buffer, input or constant.
        parameter: name of the parameter or buffer that it lies on.
        argument: place of the input that it lies on.
        is_dropped: it is replayed instead of kept.
        is_offloaded: it goes to the host.
        is_source: replays start from it.
        is_turn: when it is unpacked, the first values begin to come back from the host.
        due: its place among all, if something goes to the host here, or has left long enough before for its source to
            go; otherwise None.
        is_overwritten: forward overwrites it later, so that backward must not read it.
        is_kept_only: it is kept as it is, and that is all: its history does not refer to the node that saves it.
    """

    packed: PackedTensor
    layout: tuple[Any, ...]
    offset: int | None
    parameter: str | None
    argument: int | None
    is_dropped: bool
    is_offloaded: bool
    is_source: bool
    is_turn: bool
    due: int | None
    is_overwritten: bool
    is_kept_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A tape with decisions: what each pack does, and how often each value will be asked for.

    Attributes:
        tape: what forward does.
        steps: per packed tensor, in order.
        replays: the replayed ops, by the values they make.
        readers: per value, how many replayed ops read it.
        sources: the values that replays start from and that each forward has to hold, on the host or here.
        offloaded: the values that go to the host.
        turn: place in `steps` of the one that is the turn; None if nothing goes to the host.
        statics: names of the parameters and buffers that replays read, in order.
        anchors: by module, call and side, the position and value of each tensor that is held only to start from.
    """

    tape: Tape
    steps: tuple[PackStep, ...]
    replays: Mapping[int, Replay]
    readers: Mapping[int, int]
    sources: frozenset[int]
    offloaded: frozenset[int]
    turn: int | None
    statics: tuple[str, ...]
    anchors: Mapping[tuple[str, int, str], Sequence[tuple[int, int]]]


def place_of(decision: Decision) -> Place:
    """Where the decided tensor is packed."""
    return decision.module_fqn, decision.module_call, decision.ordinal


def boundary_of(anchor: Anchor) -> str:
    """The module boundary at which the anchor passes."""
    return f"{anchor.module_fqn}:{anchor.module_call}:{anchor.side}:{anchor.position}"


def make_program(
    tape: Tape,
    is_dropped: Sequence[bool],
    anchors: Mapping[str, int],
    is_offloaded: Sequence[bool] = (),
    *,
    lead: int = LEAD,
) -> Program:
    """The program that drops and offloads the given packed tensors.

    Args:
        tape: what forward did.
        is_dropped: per packed tensor.
        anchors: value by module boundary, for values that are held besides.
        is_offloaded: per packed tensor; none if empty.
        lead: sources go so many packings after their values have left, at the latest; and the first values begin to
            come back when the tensor is unpacked that was packed so many packings after them, or when the last one is.

    Raises:
        ReplayError: a dropped tensor cannot be replayed from what remains; names it and the op in the way.
    """
    dropped = _dropped_values(tape, is_dropped)
    offloaded = _offloaded_values(tape, is_offloaded)
    held = _held_values(tape, is_dropped, anchors) | offloaded
    producers = _producers(tape)
    replayed: dict[int, TapeOp] = {}
    for value in dropped:
        for op in _closure(tape, producers, value, held | set(tape.static_names)):
            replayed[op.record.step] = op
    readers = Counter(value for op in replayed.values() for value in op.reads)
    sources = frozenset(held & {*readers, *dropped})
    leaves = [
        flag and packed.window.value in offloaded
        for packed, flag in zip(tape.packed, is_offloaded or [False] * len(is_dropped), strict=True)
    ]
    last = max((place for place, flag in enumerate(leaves) if flag), default=None)
    due = {place + later for place, flag in enumerate(leaves) if flag for later in (0, lead + 1)}
    turn = None if last is None else min(last + lead, len(leaves) - 1)
    return Program(
        tape=tape,
        steps=tuple(
            _pack_step(
                packed,
                is_dropped=drop,
                is_offloaded=flag,
                is_source=packed.window.value in sources,
                is_turn=place == turn,
                due=place if place in due else None,
                is_overwritten=not packed.is_static and tape.last_versions[packed.window.value] != packed.window.value,
            )
            for place, (packed, drop, flag) in enumerate(zip(tape.packed, is_dropped, leaves, strict=True))
        ),
        replays=make_replays(replayed.values(), held, tape.static_names),
        readers=readers,
        sources=sources,
        offloaded=offloaded,
        turn=turn,
        statics=tuple(sorted({tape.static_names[value] for value in readers if value in tape.static_names})),
        anchors=_by_side({boundary: value for boundary, value in anchors.items() if value in sources - offloaded}),
    )


def _by_side(anchors: Mapping[str, int]) -> Mapping[tuple[str, int, str], Sequence[tuple[int, int]]]:
    found: dict[tuple[str, int, str], list[tuple[int, int]]] = {}
    for boundary, value in anchors.items():
        fqn, call, side, position = boundary.rsplit(":", 3)
        found.setdefault((fqn, int(call), side), []).append((int(position), value))
    return found


def _pack_step(
    packed: PackedTensor,
    *,
    is_dropped: bool,
    is_offloaded: bool,
    is_source: bool,
    is_turn: bool,
    due: int | None,
    is_overwritten: bool,
) -> PackStep:
    window = packed.window
    is_detached = packed.is_result or is_overwritten
    return PackStep(
        packed=packed,
        layout=(window.dtype, window.shape, window.stride, packed.sequence),
        offset=None if packed.is_static else window.offset,
        parameter=packed.name if packed.kind in FINDABLE else None,
        argument=int(packed.name) if packed.kind is StorageKind.INPUT else None,
        is_dropped=is_dropped,
        is_offloaded=is_offloaded,
        is_source=is_source,
        is_turn=is_turn,
        due=due,
        is_overwritten=is_overwritten,
        is_kept_only=not (is_dropped or is_offloaded or is_source or is_turn or due is not None or is_detached),
    )


def without(tape: Tape, is_dropped: Sequence[bool], anchors: Mapping[str, int], steps: Set[int]) -> tuple[bool, ...]:
    """The packed tensors to drop, less those whose replay would run one of the given ops."""
    available = _held_values(tape, is_dropped, anchors) | set(tape.static_names)
    producers = _producers(tape)
    blocked = {
        value
        for value in _dropped_values(tape, is_dropped)
        if any(op.record.step in steps for op in _closure(tape, producers, value, available))
    }
    return tuple(
        dropped and packed.window.value not in blocked for packed, dropped in zip(tape.packed, is_dropped, strict=True)
    )


def _dropped_values(tape: Tape, is_dropped: Sequence[bool]) -> dict[int, None]:
    """In order."""
    return {packed.window.value: None for packed, dropped in zip(tape.packed, is_dropped, strict=True) if dropped}


def _offloaded_values(tape: Tape, is_offloaded: Sequence[bool]) -> frozenset[int]:
    """Less those that forward overwrites later, which backward must not read."""
    values = {packed.window.value for packed, flag in zip(tape.packed, is_offloaded, strict=bool(is_offloaded)) if flag}
    return frozenset(value for value in values if tape.last_versions[value] == value)


def names_read(
    tape: Tape, is_dropped: Sequence[bool], anchors: Mapping[str, int]
) -> list[tuple[PackedTensor, frozenset[str]]]:
    """For each dropped tensor, the parameters and buffers that its replay may read."""
    available = _held_values(tape, is_dropped, anchors) | set(tape.static_names)
    producers = _producers(tape)
    names: dict[int, frozenset[str]] = {}
    for value in _dropped_values(tape, is_dropped):
        ops = _closure(tape, producers, value, available)
        reads = {read for op in ops for read in op.reads}
        names[value] = frozenset(tape.static_names[read] for read in reads if read in tape.static_names)
    return [
        (packed, names[packed.window.value]) for packed, dropped in zip(tape.packed, is_dropped, strict=True) if dropped
    ]


def _held_values(tape: Tape, is_dropped: Sequence[bool], anchors: Mapping[str, int]) -> set[int]:
    """What is at hand in backward, parameters and buffers apart: what nothing overwrites later."""
    held = {
        packed.window.value
        for packed, dropped in zip(tape.packed, is_dropped, strict=True)
        if not dropped and not packed.is_static
    }
    held -= set(_dropped_values(tape, is_dropped))
    held |= set(anchors.values())
    held |= set(tape.input_values)
    return {value for value in held if tape.last_versions[value] == value}


def _producers(tape: Tape) -> dict[int, TapeOp]:
    return {value: op for op in tape.ops for value in made_by(op)}


def _closure(tape: Tape, producers: Mapping[int, TapeOp], wanted: int, available: Set[int]) -> list[TapeOp]:
    """The ops to run to have a value."""
    found: dict[int, TapeOp] = {}
    stack = [wanted]
    while stack:
        value = stack.pop()
        if value in available:
            continue
        op = producers.get(value)
        obstacle = "it starts from a tensor that has no name" if op is None else _obstacle(op)
        if op is None or obstacle:
            raise ReplayError(f"{_named(tape, wanted)} cannot be recomputed: {obstacle}")
        if op.record.step not in found:
            found[op.record.step] = op
            stack.extend(op.reads)
    return list(found.values())


def _obstacle(op: TapeOp) -> str:
    """Why an op must not run twice; empty if it may. `planner.problem` has the same rules."""
    name = op.record.name
    if op.record.is_random:
        return f"{name} is random"
    if op.record.is_opaque:
        return f"{name} is filled by something that dispatch does not see"
    if op.record.mutates_state and name.rpartition(".")[0] not in STATE_FREE_REPLAY:
        return f"{name} writes to a parameter, buffer or input"
    return ""


def _named(tape: Tape, value: int) -> str:
    packed = next(packed for packed in tape.packed if packed.window.value == value)
    return f"{packed.where} ({packed.op})"


def decisions_by_place(decisions: Sequence[Decision]) -> Mapping[Place, Decision]:
    """The decisions, found by where the tensor is packed."""
    return {place_of(decision): decision for decision in decisions}


def retention_of(decision: Decision | None) -> Retention:
    """What is to happen to the tensor; without a decision it is kept."""
    return Retention.SAVE if decision is None else decision.retention
