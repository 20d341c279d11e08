"""What a stretch of a model allocates, saves and frees, written down op by op without torch.

A `Tape` is filled by the descriptions in `planner.estimation.blocks`: each op says what it reads and writes and what
autograd saves for it. Running the tape forward and backward then gives what is alive when, in bytes, as eager PyTorch
would have it. One tape stands for one block of a model, or for its head; blocks are alike, so a model of any depth
costs a few hundred records.

What is followed: autograd keeps a saved tensor until the op's backward has run; gradients of a tensor with several
readers are added into the first one in place, if nothing else holds it; a view owns nothing. Not followed: kernels'
workspaces that allocate nothing through the allocator, and tensors of a few bytes (scalars, shapes).

Source: torch/csrc/autograd/input_buffer.cpp (`accumulate`), engine.cpp and saved_variable.cpp, torch 2.13.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from planner.units import DTYPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A number of elements as a product of named factors, so that it can explain itself."""

    factors: tuple[tuple[str, int], ...]

    @property
    def elements(self) -> int:
        return prod(value for _, value in self.factors)


def size(**factors: int) -> Size:
    """The product of the factors; underscores in names are shown as spaces."""
    return Size(factors=tuple((name.replace("_", " "), value) for name, value in factors.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor of the tape: `storage` is the tensor that owns its memory, itself unless it is a view."""

    index: int
    name: str
    size: Size
    dtype: str
    needs_grad: bool
    storage: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One op.

    Attributes:
        name: what it is.
        reads: tensors it reads; their gradients are made in backward where they need one.
        writes: tensors it makes.
        saves: tensors autograd keeps for its backward.
        passes_grad: the gradient of what it reads is the gradient of what it writes, in the same memory.
        forward_bytes: alive only while it runs.
        backward_bytes: alive only while its backward runs.
        parameter_bytes: gradients of parameters that its backward makes, which stay.
        is_matmul: a matrix product or attention, whose result selective checkpointing keeps.
        is_random: dropout.
        is_piecewise: many alike ops on pieces: backward frees what it saved for a piece before the next, so that
            gradients take its place.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    saves: tuple[int, ...]
    passes_grad: bool
    forward_bytes: int
    backward_bytes: int
    parameter_bytes: int
    is_matmul: bool = False
    is_random: bool = False
    is_piecewise: bool = False


@dataclass(slots=True, kw_only=True)
class Tape:
    """Ops in the order of forward; a builder, filled once and then only read."""

    tensors: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)  # tensor -> op until which a local variable holds it
    core: range = range(0)  # the ops of attention's core: scores, softmax, dropout, output
    # Runs over it, once it is filled: steps that differ in their optimizer alone have the same.
    passages: "dict[Hashable, Passage]" = field(default_factory=dict, compare=False, repr=False)

    def input(self, name: str, size: Size, dtype: str, *, needs_grad: bool) -> Tensor:
        """A tensor that is there before the first op."""
        made = self._tensor(name, size, dtype, needs_grad=needs_grad, storage=None)
        self.inputs.append(made.index)
        return made

    def op(
        self,
        name: str,
        reads: Sequence[Tensor],
        size: Size,
        dtype: str,
        *,
        saves: Sequence[Tensor] = (),
        saves_output: bool = False,
        needs_grad: bool | None = None,
        passes_grad: bool = False,
        extra: Sequence[tuple[str, Size, str]] = (),
        forward_bytes: int = 0,
        backward_bytes: int = 0,
        parameter_bytes: int = 0,
        is_matmul: bool = False,
        is_random: bool = False,
        is_piecewise: bool = False,
    ) -> Tensor:
        """The output of an op; `extra` are further outputs that are saved, such as statistics.

        With no input that needs a gradient and no trainable parameter, nothing is saved.
        """
        is_differentiable = any(t.needs_grad for t in reads) if needs_grad is None else needs_grad
        output = self._tensor(name, size, dtype, needs_grad=is_differentiable, storage=None)
        extras = [self._tensor(n, s, d, needs_grad=False, storage=None) for n, s, d in extra]
        saved = (*saves, *([output] if saves_output else ()), *extras) if is_differentiable else ()
        self.ops.append(
            Op(
                name=name,
                reads=tuple(t.index for t in reads),
                writes=(output.index, *(t.index for t in extras)),
                saves=tuple(t.index for t in saved),
                passes_grad=passes_grad,
                forward_bytes=forward_bytes,
                backward_bytes=backward_bytes if is_differentiable else 0,
                parameter_bytes=parameter_bytes,
                is_matmul=is_matmul,
                is_random=is_random,
                is_piecewise=is_piecewise,
            )
        )
        return output

    def view(self, of: Tensor, name: str | None = None, size: Size | None = None) -> Tensor:
        """The same memory by another name."""
        made = self._tensor(
            name or of.name, size or of.size, of.dtype, needs_grad=of.needs_grad, storage=self.tensors[of.index].storage
        )
        self.ops.append(
            Op(
                name="view",
                reads=(of.index,),
                writes=(made.index,),
                saves=(),
                passes_grad=True,
                forward_bytes=0,
                backward_bytes=0,
                parameter_bytes=0,
            )
        )
        return made

    def hold(self, tensor: Tensor) -> None:
        """A local variable holds the tensor up to the op written down last."""
        self.held[tensor.storage] = len(self.ops) - 1

    def _tensor(self, name: str, size: Size, dtype: str, *, needs_grad: bool, storage: int | None) -> Tensor:
        index = len(self.tensors)
        made = Tensor(
            index=index,
            name=name,
            size=size,
            dtype=dtype,
            needs_grad=needs_grad,
            storage=index if storage is None else storage,
            size_bytes=round(size.elements * DTYPE_BYTES[dtype]),
        )
        self.tensors.append(made)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Something that is alive at a peak.

    Attributes:
        kind: "tensor", "saved", "gradient", "parameter gradient" or "temporary".
        tensor: it, or what it is the gradient of; None for what an op makes for itself.
        op: of parameter gradients and temporaries, whose.
        size_bytes: its size.
    """

    kind: str
    tensor: int | None
    op: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One run over a tape.

    Attributes:
        start_bytes: alive before the first op: inputs, or what was saved and the incoming gradient.
        peak_bytes: the most that is alive, the start included.
        peak_op: where.
        end_bytes: alive after the last op: what is saved and the output, or the outgoing gradient and those of
            parameters.
        alive: what is alive at the peak, one by one.
    """

    start_bytes: int
    peak_bytes: int
    peak_op: str
    end_bytes: int
    alive: tuple[Alive, ...] = ()


class _Alive:
    """Bytes alive by storage, and the peak."""

    def __init__(self) -> None:
        self.sizes: dict[tuple[str, int], int] = {}
        self.now_bytes = 0
        self.peak_bytes = 0
        self.peak_op = ""
        self.origins: dict[tuple[str, int], tuple[int | None, str]] = {}
        self.at_peak: dict[tuple[str, int], int] = {}
        self.temporary_at_peak = 0

    def add(self, kind: str, key: int, size_bytes: int, *, of: int | None = None, op: str = "") -> None:
        if (kind, key) not in self.sizes:
            self.origins[kind, key] = (of, op)
            self.sizes[kind, key] = size_bytes
            self.now_bytes += size_bytes

    def drop(self, kind: str, key: int) -> None:
        self.now_bytes -= self.sizes.pop((kind, key), 0)

    def mark(self, op: str, temporary_bytes: int = 0) -> None:
        if self.now_bytes + temporary_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_op = self.now_bytes + temporary_bytes, op
            self.at_peak, self.temporary_at_peak = dict(self.sizes), temporary_bytes

    def alive(self) -> tuple[Alive, ...]:
        """What is alive at the peak, one by one."""
        found = []
        for (kind, key), size_bytes in self.at_peak.items():
            of, op = self.origins[kind, key]
            found.append(Alive(kind=kind, tensor=of, op=op, size_bytes=size_bytes))
        if self.temporary_at_peak:
            op = self.peak_op.removeprefix("backward of ")
            found.append(Alive(kind="temporary", tensor=None, op=op, size_bytes=self.temporary_at_peak))
        return tuple(found)


def saved_storages(tape: Tape) -> tuple[Tensor, ...]:
    """The tensors whose memory autograd keeps, once each, in the order they are first saved."""
    found = dict.fromkeys(tape.tensors[t].storage for op in tape.ops for t in op.saves)
    return tuple(tape.tensors[t] for t in found)


def core_storages(tape: Tape) -> frozenset[int]:
    """The saved storages that attention's core makes, its output apart."""
    if not tape.core:
        return frozenset()
    output = {tape.tensors[tape.ops[tape.core[-1]].writes[0]].storage}
    made = {tape.tensors[t].storage for place in tape.core for t in tape.ops[place].writes}
    return frozenset(t.storage for t in saved_storages(tape) if t.storage in made - output)


def forward(tape: Tape, *, kept: Iterable[int] | None = None, output: Tensor, drop_output: bool = False) -> Passage:
    """Forward over the tape: what it saves stays, the rest goes after its last reader.

    Args:
        tape: the ops.
        kept: storages that are kept for backward; None for all that autograd saves.
        output: what the caller goes on with.
        drop_output: the run is a replay, of which nobody reads the output.
    """
    keep = frozenset((t.storage for t in saved_storages(tape)) if kept is None else kept)
    until_end = None if drop_output else output.storage
    key = (forward, keep, until_end)
    if key not in tape.passages:
        tape.passages[key] = _forward(tape, keep, until_end)
    return tape.passages[key]


def _forward(tape: Tape, keep: frozenset[int], until_end: int | None) -> Passage:
    last: dict[int, int] = dict(tape.held)
    for place, op in enumerate(tape.ops):
        for t in (*op.reads, *op.writes):
            storage = tape.tensors[t].storage
            last[storage] = max(last.get(storage, -1), place)
    if until_end is not None:
        last[until_end] = len(tape.ops)
    alive = _Alive()
    for t in tape.inputs:
        alive.add("tensor", t, tape.tensors[t].size_bytes, of=t)
    start_bytes = alive.now_bytes
    alive.mark("start")
    for place, op in enumerate(tape.ops):
        for t in op.writes:
            if tape.tensors[t].storage == t:
                alive.add("tensor", t, tape.tensors[t].size_bytes, of=t)
        alive.mark(op.name, op.forward_bytes)
        for t in {tape.tensors[t].storage for t in (*op.reads, *op.writes)}:
            if last[t] <= place and t not in keep:
                alive.drop("tensor", t)
        for t in [s for s, until in tape.held.items() if until == place and s not in keep]:
            alive.drop("tensor", t)
    return Passage(
        start_bytes=start_bytes,
        peak_bytes=alive.peak_bytes,
        peak_op=alive.peak_op,
        end_bytes=alive.now_bytes,
        alive=alive.alive(),
    )


def backward(
    tape: Tape, *, output: Tensor, gradients_stay: bool = True, also_bytes: int = 0, replays_core: bool = False
) -> Passage:
    """Backward over the tape, from all that autograd saved and the gradient of the output.

    Args:
        tape: the ops.
        output: whose gradient comes in.
        gradients_stay: False if those of parameters are consumed at once.
        also_bytes: alive throughout.
        replays_core: what attention's core makes is not there before its backward, which replays it.
    """
    later = core_storages(tape) if replays_core else frozenset()
    key = (backward, output.index, gradients_stay, also_bytes, later)
    if key not in tape.passages:
        run = _Backward(tape, gradients_stay=gradients_stay, later=later)
        tape.passages[key] = run.whole(output, also_bytes=also_bytes)
    return tape.passages[key]


class _Backward:
    """One backward over a tape: what is saved until its last reader, and gradients until theirs."""

    def __init__(self, tape: Tape, *, gradients_stay: bool, later: frozenset[int]) -> None:
        self._tape, self._gradients_stay, self._later = tape, gradients_stay, later
        self._saves = [{tape.tensors[t].storage for t in op.saves} for op in tape.ops]
        self._readers: Counter[int] = Counter(t for saves in self._saves for t in saves)
        self._gradients: dict[int, int] = {}  # tensor -> the memory of its gradient
        self._owners: Counter[int] = Counter()  # of each such memory
        self._made = 0
        self.alive = _Alive()
        self._have(t for t in self._readers if t not in later)

    def whole(self, output: Tensor, *, also_bytes: int) -> Passage:
        """All of it, from the gradient of the output; those bytes are alive throughout."""
        self.alive.now_bytes += also_bytes
        self._gradients[output.index] = self._new(output.index)
        start_bytes = self.alive.now_bytes
        self.alive.mark("start")
        for place in range(len(self._tape.ops) - 1, -1, -1):
            self.step(place)
        return Passage(
            start_bytes=start_bytes,
            peak_bytes=self.alive.peak_bytes,
            peak_op=self.alive.peak_op,
            end_bytes=self.alive.now_bytes,
            alive=self.alive.alive(),
        )

    def step(self, place: int) -> None:
        """Backward of one op."""
        op = self._tape.ops[place]
        if self._later and place == self._tape.core[-1]:
            self._have(self._later)
        source = next((self._gradients.pop(t) for t in op.writes if t in self._gradients), None)
        if source is None:
            self._release_saved(place)
            return
        if op.is_piecewise:
            for t in self._saves[place]:
                if self._readers[t] == 1:
                    self.alive.drop("saved", t)
        results = [(t, self._pass_on(t, source, op)) for t in op.reads if self._tape.tensors[t].needs_grad]
        if op.parameter_bytes:
            self.alive.add("parameter gradient", place, op.parameter_bytes, op=op.name)
        self.alive.mark(f"backward of {op.name}", op.backward_bytes)
        if not self._gradients_stay:
            self.alive.drop("parameter gradient", place)
        self._release(source)
        self._release_saved(place)
        for t, gradient in results:
            self._accumulate(t, gradient)

    def _pass_on(self, tensor: int, source: int, op: Op) -> int:
        """The memory of the gradient of what an op read: that of what it wrote, or its own."""
        if not op.passes_grad:
            return self._new(tensor)
        self._owners[source] += 1
        return source

    def _accumulate(self, tensor: int, gradient: int) -> None:
        """A further gradient of a tensor is added in place, unless something else holds the first."""
        before = self._gradients.get(tensor)
        if before is None:
            self._gradients[tensor] = gradient
        elif self._owners[before] == 1:
            self._release(gradient)
        else:
            self._gradients[tensor] = self._new(tensor)
            self.alive.mark(f"adding gradients of {self._tape.tensors[tensor].name}")
            self._release(gradient)
            self._release(before)

    def _have(self, storages: Iterable[int]) -> None:
        for t in storages:
            self.alive.add("saved", t, self._tape.tensors[t].size_bytes, of=t)

    def _new(self, tensor: int) -> int:
        self._made += 1
        self._owners[self._made] = 1
        self.alive.add("gradient", self._made, self._tape.tensors[tensor].size_bytes, of=tensor)
        return self._made

    def _release(self, gradient: int) -> None:
        self._owners[gradient] -= 1
        if self._owners[gradient] == 0:
            self.alive.drop("gradient", gradient)

    def _release_saved(self, place: int) -> None:
        for t in self._saves[place]:
            self._readers[t] -= 1
            if self._readers[t] == 0:
                self.alive.drop("saved", t)
