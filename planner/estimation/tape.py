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
from collections.abc import Iterable, Mapping, Sequence
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

    @property
    def size_bytes(self) -> int:
        return round(self.size.elements * DTYPE_BYTES[self.dtype])


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
        parts: what is alive at the peak, by kind, in bytes.
        alive: the same, one by one.
    """

    start_bytes: int
    peak_bytes: int
    peak_op: str
    end_bytes: int
    parts: Mapping[str, int]
    alive: tuple[Alive, ...] = ()


class _Alive:
    """Bytes alive by storage, and the peak."""

    def __init__(self) -> None:
        self.sizes: dict[tuple[str, int], int] = {}
        self.now_bytes = 0
        self.peak_bytes = 0
        self.peak_op = ""
        self.parts: dict[str, int] = {}
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
            parts: Counter[str] = Counter()
            for (kind, _), size_bytes in self.sizes.items():
                parts[kind] += size_bytes
            parts["temporary"] += temporary_bytes
            self.parts = dict(parts)
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


def forward(tape: Tape, *, kept: Iterable[int] | None = None, output: Tensor, drop_output: bool = False) -> Passage:
    """Forward over the tape: what it saves stays, the rest goes after its last reader.

    Args:
        tape: the ops.
        kept: storages that are kept for backward; None for all that autograd saves.
        output: what the caller goes on with.
        drop_output: the run is a replay, of which nobody reads the output.
    """
    keep = {t.storage for t in saved_storages(tape)} if kept is None else set(kept)
    last: dict[int, int] = dict(tape.held)
    for place, op in enumerate(tape.ops):
        for t in (*op.reads, *op.writes):
            storage = tape.tensors[t].storage
            last[storage] = max(last.get(storage, -1), place)
    if not drop_output:
        last[output.storage] = len(tape.ops)
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
        parts=alive.parts,
        alive=alive.alive(),
    )


def backward(
    tape: Tape,
    *,
    output: Tensor,
    seed_bytes: int | None = None,
    gradient_share: float = 1.0,
    gradients_stay: bool = True,
    also_bytes: int = 0,
) -> Passage:
    """Backward over the tape, from all that autograd saved and the gradient of the output.

    Args:
        tape: the ops.
        output: whose gradient comes in.
        seed_bytes: its size; None for that of the output.
        gradient_share: of each parameter gradient, what stays once it is made.
        gradients_stay: False if each is consumed at once.
        also_bytes: alive throughout.
    """
    alive = _Alive()
    readers: Counter[int] = Counter()
    for op in tape.ops:
        readers.update({tape.tensors[t].storage for t in op.saves})
    for t in readers:
        alive.add("saved", t, tape.tensors[t].size_bytes, of=t)
    alive.now_bytes += also_bytes
    grads: dict[int, int] = {}  # tensor -> gradient storage
    owners: Counter[int] = Counter()
    made = 0

    def new_grad(size_bytes: int, of: int) -> int:
        nonlocal made
        made += 1
        alive.add("gradient", made, size_bytes, of=of)
        return made

    def release(storage: int) -> None:
        owners[storage] -= 1
        if owners[storage] == 0:
            alive.drop("gradient", storage)

    seed = new_grad(output.size_bytes if seed_bytes is None else seed_bytes, output.index)
    grads[output.index] = seed
    owners[seed] = 1
    start_bytes = alive.now_bytes
    alive.mark("start")
    for place in range(len(tape.ops) - 1, -1, -1):
        op = tape.ops[place]
        incoming = [t for t in op.writes if t in grads]
        if not incoming:
            for t in {tape.tensors[t].storage for t in op.saves}:
                readers[t] -= 1
                if readers[t] == 0:
                    alive.drop("saved", t)
            continue
        source = grads.pop(incoming[0])
        if op.is_piecewise:
            for t in {tape.tensors[t].storage for t in op.saves}:
                if readers[t] == 1:
                    alive.drop("saved", t)
        targets = [t for t in op.reads if tape.tensors[t].needs_grad]
        results: list[tuple[int, int]] = []
        for t in targets:
            if op.passes_grad:
                owners[source] += 1
                results.append((t, source))
            else:
                storage = new_grad(tape.tensors[t].size_bytes, t)
                owners[storage] = 1
                results.append((t, storage))
        if op.parameter_bytes:
            alive.add("parameter gradient", place, op.parameter_bytes, op=op.name)
        alive.mark(f"backward of {op.name}", op.backward_bytes)
        if op.parameter_bytes and not gradients_stay:
            alive.drop("parameter gradient", place)
        elif op.parameter_bytes and gradient_share != 1.0:
            alive.drop("parameter gradient", place)
            alive.add("parameter gradient", place, round(op.parameter_bytes * gradient_share), op=op.name)
        release(source)
        for t in {tape.tensors[t].storage for t in op.saves}:
            readers[t] -= 1
            if readers[t] == 0:
                alive.drop("saved", t)
        for t, storage in results:
            before = grads.get(t)
            if before is None:
                grads[t] = storage
            elif owners[before] == 1:
                release(storage)  # added in place
            else:
                total = new_grad(tape.tensors[t].size_bytes, t)
                owners[total] = 1
                alive.mark(f"adding gradients of {tape.tensors[t].name}")
                release(storage)
                release(before)
                grads[t] = total
    return Passage(
        start_bytes=start_bytes,
        peak_bytes=alive.peak_bytes,
        peak_op=alive.peak_op,
        end_bytes=alive.now_bytes,
        parts=alive.parts,
        alive=alive.alive(),
    )
