"""The peaks of a whole step from the tapes of its parts: forward, loss, backward of every block.

Blocks are alike, so the step is followed block by block with what the earlier ones left behind. Everything here is
arithmetic on the passages of `planner.estimation.tape`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from planner.estimation.blocks import Section
from planner.estimation.tape import Alive, Passage, Tape, Tensor, backward, core_storages, forward, saved_storages


class Checkpointing(StrEnum):
    """What a block keeps for backward.

    NONE: all that autograd saves. BLOCK: its input. SELECTIVE: its input, and the results of matrix products that
    autograd saves. ATTENTION: all but what attention's core makes, as Megatron's selective recomputation has it.
    """

    NONE = "none"
    BLOCK = "block"
    SELECTIVE = "selective"
    ATTENTION = "attention"


# Blocks whose offloaded inputs are on the device at the end of forward: the last ones, whose backward comes first.
_ON_THE_DEVICE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """What sharded parameters need besides their shards, in bytes.

    Attributes:
        always: through the whole step, such as the root's gathered parameters.
        forward: while a block's forward runs.
        backward: while a block's backward runs, its own gradients apart.
        prefetch: from the start of backward, before the first block's: the parameters it will need.
        gradient_share: of each gradient, what stays once its block is done.
        root_waits: gradients of what is in no block stay whole until all of backward is done. Source:
            torch/distributed/fsdp/_fully_shard/_fsdp_state.py, `_root_post_backward_final_callback`; with FSDP1 the
            root's flat parameter has one gradient, which the embedding completes.
        flat_gradient: the gradient of the flat parameter a block's parameters are views of; its backward joins theirs
            into it at its end, zeros for those that are frozen. Source: derivatives.yaml, `split`.
        flat_root_gradient: the same of the root, when all of backward is done.
    """

    always: int = 0
    forward: int = 0
    backward: int = 0
    prefetch: int = 0
    gradient_share: float = 1.0
    root_waits: bool = False
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
        keeps_random: checkpoints keep what random ops made, as the runtime of `planner.apply` does, and let go of what
            only replays read when they have; otherwise the generator is set back and they run again, and inputs stay
            until backward is through, as in torch.utils.checkpoint.
        keeps_inputs: a group of blocks keeps the input of each, not only of the first.
        waiting_bytes: what other micro-batches left for their backward, in a pipeline, and its buffers.
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
    keeps_inputs: bool = False
    waiting_bytes: int = 0


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
    beside: int  # of that, what autograd does not save and what stays while the block goes backward
    saved: int  # what autograd saves while the block is not checkpointed
    random: int  # of that, what random ops made
    random_inner: int  # the same besides, if the next block is replayed with this one
    forward: Passage
    replay: Passage | None
    backward: Passage
    parameter_gradients: int


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
    if mode is Checkpointing.ATTENTION:
        return saved - core_storages(tape)
    assert section.entry is not None
    kept = {section.entry.storage}
    if mode is Checkpointing.SELECTIVE:
        written = {tape.tensors[t].storage for op in tape.ops if op.is_matmul for t in op.writes}
        kept |= saved & written
    return kept


def kept_tensors(section: Section, mode: Checkpointing) -> tuple[Tensor, ...]:
    """What a block's forward leaves for backward; its output is the next block's input, and counted there."""
    return tuple(section.tape.tensors[t] for t in sorted(_kept(section, mode)) if t != section.exit.storage)


def places_kept(parts: StepParts, before: int) -> tuple[int, ...]:
    """Of the blocks before one, those whose forward left on the device what `kept_tensors` says."""
    return tuple(place for place in range(before) if _is_entered(parts, place) and not _waits_on_the_host(parts, place))


def _is_entered(parts: StepParts, place: int) -> bool:
    """Whether the block's input is kept: a checkpoint begins with it, or all are."""
    return parts.keeps_inputs or place % parts.group == 0


def _waits_on_the_host(parts: StepParts, place: int) -> bool:
    return parts.offloads_inputs and place < len(parts.blocks) - _ON_THE_DEVICE


def _measure(section: Section, parts: StepParts) -> _Block:
    tape, mode = section.tape, parts.checkpointing
    assert section.entry is not None
    saved = saved_storages(tape)
    random = _random_for_replay(tape) if parts.keeps_random else set()
    inner = _random_for_replay(tape, [section.exit.storage]) if parts.keeps_random else set()
    kept = _kept(section, mode) | (set() if mode is Checkpointing.NONE else random)
    # The block's output is the next one's input, and counted there.
    kept_bytes = sum(tape.tensors[t].size_bytes for t in kept if t != section.exit.storage)
    autograd = {t.storage for t in saved}
    only_replays = kept - autograd if not parts.keeps_random else set()
    beside = sum(tape.tensors[t].size_bytes for t in only_replays if t != section.exit.storage)
    back = backward(
        tape,
        output=section.exit,
        gradients_stay=not parts.gradients_present,
        also_bytes=beside,
        replays_core=mode is Checkpointing.ATTENTION,
    )
    replay = None
    if mode not in (Checkpointing.NONE, Checkpointing.ATTENTION):
        replay = forward(tape, output=section.exit, drop_output=not parts.replays_whole)
    return _Block(
        kept=kept_bytes,
        beside=beside,
        saved=sum(t.size_bytes for t in saved),
        random=sum(tape.tensors[t].size_bytes for t in random if t != section.exit.storage),
        random_inner=sum(tape.tensors[t].size_bytes for t in inner - random),
        forward=forward(tape, kept=kept, output=section.exit),
        replay=replay,
        backward=back,
        parameter_gradients=_parameter_gradients(section),
    )


def moments(parts: StepParts) -> tuple[Moment, ...]:
    """The fullest moment of forward, of the loss, and of backward."""
    follower = _Follower(parts)
    follower.run_forward()
    follower.run_head()
    follower.run_backward()
    return tuple(follower.fullest.values())


class _Follower:
    """Walks through a step, with what is there at each time, and notes the fullest moment of each phase."""

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts
        alike = {id(section): section for section in parts.blocks}  # most blocks are one object
        measured = {key: _measure(section, parts) for key, section in alike.items()}
        self._blocks = [measured[id(section)] for section in parts.blocks]
        present = parts.gradient_bytes if parts.gradients_present else 0
        self._fixed = {
            "waiting": parts.waiting_bytes,
            "resident": parts.resident_bytes + present,
            "inputs": parts.inputs_bytes,
            "gathered": parts.gathering.always,
        }
        self._saved = 0  # left by forward so far
        self._saved_before: list[int] = []  # the same before each block
        self._made = 0  # gradients of parameters that are done
        self._root_made = 0  # the same of the root, where they wait for the end
        self._behind = 0  # left behind by blocks' backward
        self.fullest: dict[str, Moment] = {}

    # -- forward

    def run_forward(self) -> None:
        """The embedding, every block, and the way to the model's output where the last step's still lingers."""
        parts = self._parts
        embedded = forward(parts.embedding.tape, output=parts.embedding.exit)
        self._note("forward", "embedding", embedded, parts.embedding)
        self._saved = embedded.end_bytes - parts.embedding.exit.size_bytes
        for place, one in enumerate(self._blocks):
            self._saved_before.append(self._saved)
            kinds = {"saved": self._saved, "gathered now": parts.gathering.forward}
            self._note("forward", f"block {place}", one.forward, parts.blocks[place], before=place, **kinds)
            self._saved += self._left_by(place)
        if parts.lingering_bytes:
            output = _up_to_output(parts.head)
            kinds = {"saved": self._saved, "outputs": parts.lingering_bytes}
            self._note("forward", "the model's output", output, parts.head, before=len(self._blocks), **kinds)

    def _left_by(self, place: int) -> int:
        """What the block's forward leaves on the device."""
        return 0 if _waits_on_the_host(self._parts, place) else self._kept_of(place)

    def _kept_of(self, place: int) -> int:
        """What is kept of the block: in a group, the first one's input and what is random."""
        parts, one, count = self._parts, self._blocks[place], len(self._blocks)
        left = one.kept if _is_entered(parts, place) else one.random
        is_next_kept = place + 1 == count or _is_entered(parts, place + 1)
        return left if is_next_kept else left + one.random_inner

    # -- the loss

    def run_head(self) -> None:
        """Forward to the loss, and backward from it."""
        parts, gathering = self._parts, self._parts.gathering
        head, before = parts.head, len(self._blocks)
        self._note("loss", "", forward(head.tape, output=head.exit), head, before=before, saved=self._saved)
        kinds = {"saved": self._saved, "outputs": parts.outputs_bytes, "gathered now": gathering.prefetch}
        self._note("backward", "loss", self._backward_of(head), head, before=before, **kinds)
        if gathering.root_waits:
            self._root_made = _parameter_gradients(head)
        else:
            self._keep_gradients(_parameter_gradients(head))

    # -- backward

    def run_backward(self) -> None:
        """Every checkpoint from the last, the embedding, and the root's flat gradient."""
        parts = self._parts
        stop = len(self._blocks)
        while stop > 0:
            start = (stop - 1) // parts.group * parts.group
            self._run_checkpoint(start, stop)
            stop = start
        kinds = {"outputs": parts.outputs_bytes, "gradients": self._made + self._root_made}
        embedding = self._backward_of(parts.embedding)
        self._note("backward", "embedding", embedding, parts.embedding, **kinds, **{"left by blocks": self._behind})
        if parts.gathering.flat_root_gradient:
            joined = _joining(None, parts.gathering.flat_root_gradient)
            kinds["gradients"] = self._made  # those of the root are among what is joined
            self._note("backward", "embedding", joined, parts.embedding, **kinds)

    def _run_checkpoint(self, start: int, stop: int) -> None:
        """Backward of the blocks of one checkpoint, the last first; a group is replayed as a whole before."""
        earlier = self._saved_before[start]
        replayed = 0  # what the blocks of a group save as they run again
        if self._parts.group > 1:
            for place in range(start, stop):
                inputs = self._inputs_beside(start, place) + sum(map(self._kept_of, range(place + 1, stop)))
                self._note_replay(place, start, earlier + replayed + inputs)
                replayed += self._blocks[place].saved
        for place in range(stop - 1, start - 1, -1):
            one = self._blocks[place]
            replayed = max(0, replayed - one.saved)
            saved = earlier + replayed + self._inputs_beside(start, place)
            if self._parts.group == 1:
                self._note_replay(place, start, saved)
            self._run_block(place, start, saved)

    def _inputs_beside(self, start: int, stop: int) -> int:
        """What is kept of blocks that have run again, beside what autograd saved of them meanwhile."""
        return sum(self._blocks[place].beside for place in range(start, stop) if _is_entered(self._parts, place))

    def _note_replay(self, place: int, start: int, saved_bytes: int) -> None:
        replay = self._blocks[place].replay
        if replay is None:
            return
        section = self._parts.blocks[place]
        # The gradient of what the checkpoint made waits meanwhile.
        beside = section.exit.size_bytes
        where = f"replay of block {place}"
        self._note("backward", where, replay, section, beside=beside, before=start, **self._kinds(saved_bytes))

    def _run_block(self, place: int, start: int, saved_bytes: int) -> None:
        one, section, gathering = self._blocks[place], self._parts.blocks[place], self._parts.gathering
        kinds = self._kinds(saved_bytes)
        self._note("backward", f"block {place}", one.backward, section, before=start, **kinds)
        if gathering.flat_gradient:
            joined = _joining(section.entry, gathering.flat_gradient)
            self._note("backward", f"block {place}", joined, section, before=start, **kinds)
        self._keep_gradients(gathering.flat_gradient or one.parameter_gradients)
        self._behind += self._parts.per_block_backward_bytes

    def _kinds(self, saved_bytes: int) -> dict[str, int]:
        """What is there besides while blocks go backward."""
        return {
            "saved": saved_bytes,
            "outputs": self._parts.outputs_bytes,
            "gradients": self._made + self._root_made,
            "left by blocks": self._behind,
            "gathered now": self._parts.gathering.backward,
        }

    # -- both

    def _backward_of(self, section: Section) -> Passage:
        return backward(section.tape, output=section.exit, gradients_stay=not self._parts.gradients_present)

    def _keep_gradients(self, size_bytes: int) -> None:
        """Gradients are done: of those that are not there from the start, a share stays."""
        if not self._parts.gradients_present:
            self._made += round(size_bytes * self._parts.gathering.gradient_share)

    def _note(
        self,
        phase: str,
        where: str,
        passage: Passage,
        section: Section,
        *,
        beside: int = 0,
        before: int = 0,
        **kinds: int,
    ) -> None:
        """Keep the passage's peak if the phase has none that is fuller."""
        known = {**self._fixed, **kinds}
        working_bytes = passage.peak_bytes + beside
        size_bytes = sum(known.values()) + working_bytes
        if phase in self.fullest and size_bytes <= self.fullest[phase].size_bytes:
            return
        self.fullest[phase] = Moment(
            phase=phase,
            where=f"{where}, {passage.peak_op}" if where else passage.peak_op,
            size_bytes=size_bytes,
            parts={**known, "working memory": working_bytes},
            passage=passage,
            section=section,
            blocks_before=before,
        )


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
        alive=(joined, *incoming),
    )
