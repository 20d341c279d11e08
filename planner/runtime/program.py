"""From a tape and decisions to a program, and the check that everything it drops can come back."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from planner.errors import ReplayError
from planner.plan import Anchor, Decision, Retention
from planner.problem import STATE_FREE_REPLAY
from planner.runtime.tape import PackedTensor, Tape, TapeOp

Place = tuple[str, int, int]  # module path, call, ordinal


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A tape with decisions: what each pack does, and how often each value will be asked for.

    Attributes:
        tape: what forward does.
        is_dropped: per packed tensor, whether it is replayed instead of kept.
        is_offloaded: per packed tensor, whether it goes to the host.
        is_overwritten: per packed tensor, whether forward later overwrites it, so that backward must not read it.
        producers: the replayed ops, by the values they make.
        readers: per value, how many replayed ops read it.
        sources: the values that replays start from and that each forward has to hold, on the host or here.
        offloaded: the values that go to the host.
        statics: names of the parameters and buffers that replays read, in order.
        anchors: value by module boundary, for values held only as starting points.
    """

    tape: Tape
    is_dropped: tuple[bool, ...]
    is_offloaded: tuple[bool, ...]
    is_overwritten: tuple[bool, ...]
    producers: Mapping[int, TapeOp]
    readers: Mapping[int, int]
    sources: frozenset[int]
    offloaded: frozenset[int]
    statics: tuple[str, ...]
    anchors: Mapping[str, int]


def place_of(decision: Decision) -> Place:
    """Where the decided tensor is packed."""
    return decision.module_fqn, decision.module_call, decision.ordinal


def boundary_of(anchor: Anchor) -> str:
    """The module boundary at which the anchor passes."""
    return f"{anchor.module_fqn}:{anchor.module_call}:{anchor.side}:{anchor.position}"


def make_program(
    tape: Tape, is_dropped: Sequence[bool], anchors: Mapping[str, int], is_offloaded: Sequence[bool] = ()
) -> Program:
    """The program that drops and offloads the given packed tensors.

    Args:
        tape: what forward did.
        is_dropped: per packed tensor.
        anchors: value by module boundary, for values that are held besides.
        is_offloaded: per packed tensor; none if empty.

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
    return Program(
        tape=tape,
        is_dropped=tuple(is_dropped),
        is_offloaded=tuple(
            packed.window.value in offloaded and flag for packed, flag in zip(tape.packed, is_offloaded, strict=True)
        )
        if is_offloaded
        else (False,) * len(tape.packed),
        is_overwritten=tuple(
            not packed.is_static and tape.last_versions[packed.window.value] != packed.window.value
            for packed in tape.packed
        ),
        producers={value: op for op in replayed.values() for value in made_by(op) if value not in held},
        readers=readers,
        sources=frozenset(held & {*readers, *dropped}),
        offloaded=offloaded,
        statics=tuple(sorted({tape.static_names[value] for value in readers if value in tape.static_names})),
        anchors=dict(anchors),
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


def made_by(op: TapeOp) -> list[int]:
    """The values an op writes."""
    return [*(value for value, _ in op.outputs), *(new for _, new in op.mutates)]


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
