"""The peaks of a whole step from the tapes of its parts: forward, loss, backward of every block.

Blocks are alike, so the step is followed block by block with what the earlier ones left behind. Everything here is
arithmetic on the passages of `planner.estimation.tape`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from planner.estimation.blocks import Section
from planner.estimation.tape import Alive, Passage, Tape, Tensor, backward, forward, saved_storages


class Checkpointing(StrEnum):
    """What a block keeps for backward."""

    NONE = "none"
    BLOCK = "block"
    SELECTIVE = "selective"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """What sharded parameters need besides their shards, in bytes.

    Attributes:
        always: through the whole step, such as the root's gathered parameters.
        forward: while a block's forward runs.
        backward: while a block's backward runs, its own gradients apart.
        prefetch: from the start of backward, before the first block's: the parameters it will need.
        gradient_share: of each gradient, what stays once its block is done.
        flat_gradient: the gradient of the flat parameter a block's parameters are views of; its backward joins theirs
            into it at its end, zeros for those that are frozen. Source: derivatives.yaml, `split`.
        flat_root_gradient: the same of the root, when all of backward is done.
    """

    always: int = 0
    forward: int = 0
    backward: int = 0
    prefetch: int = 0
    gradient_share: float = 1.0
    flat_gradient: int = 0
    flat_root_gradient: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """A step to follow.

    Attributes:
        embedding, head: before and after the blocks.
        blocks: of each layer, in order.
        checkpointing: what blocks keep.
        group: blocks in one checkpoint.
        replays_whole: a replay runs the whole block and holds its output, as reentrant checkpointing does.
        resident_bytes: alive throughout: parameters, optimizer state, constants.
        gradients_present: gradients are there from the start, as when accumulating; new ones are added to them.
        gathering: for sharded parameters.
        outputs_bytes: the model's outputs, held until the step ends.
        lingering_bytes: of the step before, held until the model's output is there.
        inputs_bytes: inputs and constants made from them, held throughout.
        per_block_backward_bytes: left behind by each block's backward until all are done.
        offloads_inputs: checkpoints' inputs wait in the host's memory; two are on the device.
        keeps_random: checkpoints keep what random ops made, as the runtime of `planner.apply` does; otherwise the
            generator is set back and they run again, as in torch.utils.checkpoint.
    """

    embedding: Section
    blocks: Sequence[Section]
    head: Section
    checkpointing: Checkpointing
    group: int = 1
    replays_whole: bool = False
    resident_bytes: int = 0
    gradient_bytes: int = 0
    gradients_present: bool = False
    gathering: Gathering = field(default_factory=Gathering)
    outputs_bytes: int = 0
    lingering_bytes: int = 0
    inputs_bytes: int = 0
    per_block_backward_bytes: int = 0
    offloads_inputs: bool = False
    keeps_random: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The fullest moment of a phase.

    Attributes:
        phase: its name.
        where: the op, and of which block.
        size_bytes: all that is alive.
        parts: by kind; they add up to it.
        passage: the run over a tape whose peak it is, if one is; what is alive in it is all of the working memory.
        section: of that tape.
        blocks_before: blocks whose saved tensors wait.
    """

    phase: str
    where: str
    size_bytes: int
    parts: Mapping[str, int]
    passage: Passage | None = None
    section: Section | None = None
    blocks_before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """What one block leaves, takes and gives, in bytes."""

    kept: int  # left by forward for backward
    saved: int  # what autograd saves while the block is not checkpointed
    random: int  # of that, what random ops made
    random_inner: int  # the same besides, if the next block is replayed with this one
    forward: Passage
    replay: Passage | None
    backward: Passage
    parameter_gradients: int
    entry: int  # its input, where that is not among what is kept


def _parameter_gradients(section: Section) -> int:
    return sum(op.parameter_bytes for op in section.tape.ops)


def _random_for_replay(tape: Tape, also: Sequence[int] = ()) -> set[int]:
    """What random ops made that a replay of the saved tensors, and of those in `also`, starts from."""
    wanted = {t.storage for t in saved_storages(tape)} | set(also)
    found: set[int] = set()
    for op in reversed(tape.ops):
        made = {tape.tensors[t].storage for t in op.writes} & wanted
        if not made:
            continue
        if op.is_random:
            found |= made
        else:
            wanted |= {tape.tensors[t].storage for t in op.reads}
    return found


def _kept(section: Section, mode: Checkpointing) -> set[int]:
    """The storages that forward leaves for backward."""
    tape = section.tape
    saved = {t.storage for t in saved_storages(tape)}
    if mode is Checkpointing.NONE:
        return saved
    assert section.entry is not None
    kept = {section.entry.storage}
    if mode is Checkpointing.SELECTIVE:
        written = {tape.tensors[t].storage for op in tape.ops if op.is_matmul for t in op.writes}
        kept |= saved & written
    return kept


def kept_tensors(section: Section, mode: Checkpointing) -> tuple[Tensor, ...]:
    """What a block's forward leaves for backward; its output is the next block's input, and counted there."""
    return tuple(section.tape.tensors[t] for t in sorted(_kept(section, mode)) if t != section.exit.storage)


def _measure(section: Section, parts: StepParts) -> _Block:
    tape, mode = section.tape, parts.checkpointing
    assert section.entry is not None
    saved = saved_storages(tape)
    entry = section.entry.storage
    random = _random_for_replay(tape) if parts.keeps_random else set()
    inner = _random_for_replay(tape, [section.exit.storage]) if parts.keeps_random else set()
    kept = _kept(section, mode) | (set() if mode is Checkpointing.NONE else random)
    # The block's output is the next one's input, and counted there.
    kept_bytes = sum(tape.tensors[t].size_bytes for t in kept if t != section.exit.storage)
    autograd = {t.storage for t in saved}
    beside = sum(tape.tensors[t].size_bytes for t in kept - autograd if t != section.exit.storage)
    back = backward(
        tape,
        output=section.exit,
        gradient_share=1.0,
        gradients_stay=not parts.gradients_present,
        also_bytes=beside,
    )
    replay = None
    if mode is not Checkpointing.NONE:
        replay = forward(tape, output=section.exit, drop_output=not parts.replays_whole)
    return _Block(
        kept=kept_bytes,
        saved=sum(t.size_bytes for t in saved),
        random=sum(tape.tensors[t].size_bytes for t in random if t != section.exit.storage),
        random_inner=sum(tape.tensors[t].size_bytes for t in inner - random),
        forward=forward(tape, kept=kept, output=section.exit),
        replay=replay,
        backward=back,
        parameter_gradients=_parameter_gradients(section),
        entry=0 if entry in kept else section.entry.size_bytes,
    )


def moments(parts: StepParts) -> tuple[Moment, ...]:
    """The fullest moment of forward, of the loss, and of backward."""
    cache: dict[int, _Block] = {}
    blocks = [cache.setdefault(id(s), _measure(s, parts)) if id(s) not in cache else cache[id(s)] for s in parts.blocks]
    gathering = parts.gathering
    base = parts.resident_bytes + gathering.always + parts.inputs_bytes
    base += parts.gradient_bytes if parts.gradients_present else 0
    fixed = {
        "resident": parts.resident_bytes + (parts.gradient_bytes if parts.gradients_present else 0),
        "inputs": parts.inputs_bytes,
        "gathered": gathering.always,
    }
    found: list[Moment] = []

    def note(
        phase: str, where: str, size_bytes: int, at: tuple[Passage, Section], before: int = 0, **kinds: int
    ) -> None:
        known = {**fixed, **kinds}
        known["working memory"] = size_bytes - sum(known.values())
        passage, section = at
        found.append(
            Moment(
                phase=phase,
                where=where,
                size_bytes=size_bytes,
                parts=known,
                passage=passage,
                section=section,
                blocks_before=before,
            )
        )

    # Forward
    embedded = forward(parts.embedding.tape, output=parts.embedding.exit)
    left = embedded.end_bytes - parts.embedding.exit.size_bytes
    note("forward", f"embedding, {embedded.peak_op}", base + embedded.peak_bytes, (embedded, parts.embedding))
    embedding_left = left
    kept_before: list[int] = []
    stays = _offloaded_stays(parts, blocks)
    for place, one in enumerate(blocks):
        kept_before.append(left)
        size_bytes = base + left + one.forward.peak_bytes + gathering.forward
        note(
            "forward",
            f"block {place}, {one.forward.peak_op}",
            size_bytes,
            (one.forward, parts.blocks[place]),
            place,
            saved=left,
            **{"gathered now": gathering.forward},
        )
        keeps = one.kept if place % parts.group == 0 else one.random
        if (place + 1) % parts.group and place + 1 < len(blocks):
            keeps += one.random_inner
        left += keeps if not parts.offloads_inputs or place >= len(blocks) - stays else 0
    if parts.lingering_bytes:
        output = _up_to_output(parts.head)
        note(
            "forward",
            f"the model's output, {output.peak_op}",
            base + left + parts.lingering_bytes + output.peak_bytes,
            (output, parts.head),
            len(blocks),
            saved=left,
            outputs=parts.lingering_bytes,
        )
    # Loss
    head_forward = forward(parts.head.tape, output=parts.head.exit)
    note(
        "loss",
        head_forward.peak_op,
        base + left + head_forward.peak_bytes,
        (head_forward, parts.head),
        len(blocks),
        saved=left,
    )
    head_back = backward(parts.head.tape, output=parts.head.exit, gradients_stay=not parts.gradients_present)
    held = parts.outputs_bytes
    note(
        "backward",
        f"loss, {head_back.peak_op}",
        base + left + held + gathering.prefetch + head_back.peak_bytes,
        (head_back, parts.head),
        len(blocks),
        saved=left,
        outputs=held,
        **{"gathered now": gathering.prefetch},
    )
    made = 0 if parts.gradients_present else round(_parameter_gradients(parts.head) * gathering.gradient_share)
    behind = 0
    # Backward, block by block from the last
    group = parts.group
    place = len(blocks) - 1
    while place >= 0:
        start = place - place % group if group > 1 else place
        members = blocks[start : place + 1]
        earlier = kept_before[start]
        seed = parts.blocks[place].exit.size_bytes
        running = 0  # what replayed blocks of the group hold
        if group > 1:
            for one in members:
                assert one.replay is not None
                note(
                    "backward",
                    "replay",
                    base + earlier + held + made + behind + running + one.replay.peak_bytes + seed + gathering.backward,
                    (one.replay, parts.blocks[place]),
                    start,
                    saved=earlier,
                    outputs=held,
                    gradients=made,
                    **{"left by blocks": behind, "gathered now": gathering.backward},
                )
                running += blocks[place].saved
        for offset in range(len(members) - 1, -1, -1):
            one = members[offset]
            index = start + offset
            own = one.saved
            running = max(0, running - own)
            first = earlier + (members[0].kept if group > 1 and offset else 0) + running
            common = base + first + held + made + behind + gathering.backward
            kinds = {"outputs": held, "gradients": made, "left by blocks": behind, "gathered now": gathering.backward}
            if group == 1 and one.replay is not None:
                note(
                    "backward",
                    f"replay of block {index}, {one.replay.peak_op}",
                    common + one.replay.peak_bytes + seed,
                    (one.replay, parts.blocks[index]),
                    start,
                    saved=first,
                    **kinds,
                )
            note(
                "backward",
                f"block {index}, {one.backward.peak_op}",
                common + one.backward.peak_bytes,
                (one.backward, parts.blocks[index]),
                start,
                saved=first,
                **kinds,
            )
            if gathering.flat_gradient:
                joined = _joining(parts.blocks[index].entry, gathering.flat_gradient)
                where = f"block {index}, {joined.peak_op}"
                at = (joined, parts.blocks[index])
                note("backward", where, common + joined.peak_bytes, at, start, saved=first, **kinds)
            if not parts.gradients_present:
                made += round((gathering.flat_gradient or one.parameter_gradients) * gathering.gradient_share)
            behind += parts.per_block_backward_bytes
        place = start - 1
    embedding_back = backward(
        parts.embedding.tape, output=parts.embedding.exit, gradients_stay=not parts.gradients_present
    )
    note(
        "backward",
        f"embedding, {embedding_back.peak_op}",
        base + held + made + behind + embedding_back.peak_bytes,
        (embedding_back, parts.embedding),
        outputs=held,
        gradients=made,
    )
    if gathering.flat_root_gradient:
        joined = _joining(None, gathering.flat_root_gradient)
        at = (joined, parts.embedding)
        size_bytes = base + held + made + joined.peak_bytes
        note("backward", f"embedding, {joined.peak_op}", size_bytes, at, outputs=held, gradients=made)
    del embedding_left
    best: dict[str, Moment] = {}
    for moment in found:
        if moment.phase not in best or moment.size_bytes > best[moment.phase].size_bytes:
            best[moment.phase] = moment
    return tuple(best.values())


def _up_to_output(head: Section) -> Passage:
    """Forward over the head until the model returns."""
    assert head.output is not None
    tape, output = head.tape, head.output
    last = max(place for place, op in enumerate(tape.ops) if output.index in op.writes)
    return forward(Tape(tensors=tape.tensors, ops=tape.ops[: last + 1], inputs=tape.inputs), output=output)


def _joining(entry: Tensor | None, flat_bytes: int) -> Passage:
    """The end of a unit's backward, when the gradients of its parameters become one flat gradient."""
    op = "joining the flat gradient"
    joined = Alive(kind="parameter gradient", tensor=None, op=op, size_bytes=2 * flat_bytes)
    entry_bytes = entry.size_bytes if entry is not None else 0
    incoming = [Alive(kind="gradient", tensor=entry.index, op="", size_bytes=entry_bytes)] if entry is not None else []
    return Passage(
        start_bytes=entry_bytes,
        peak_bytes=entry_bytes + 2 * flat_bytes,
        peak_op=op,
        end_bytes=entry_bytes + flat_bytes,
        parts={},
        alive=(joined, *incoming),
    )


def _offloaded_stays(parts: StepParts, blocks: Sequence[_Block]) -> int:
    """Blocks whose inputs are on the device although they are offloaded: the last ones, whose backward comes first."""
    return min(2, len(blocks)) if parts.offloads_inputs else len(blocks)


def total_parts(parts: Mapping[str, int]) -> Counter[str]:
    """The parts as a counter."""
    return Counter(parts)
