"""The tape: what one forward did below autograd, in terms that hold for every later forward of the same signature.

A tape holds no tensors. Each tensor argument is a *window* (shape, strides, offset, dtype) onto a *value*,
one version of a storage; a value was written by an op of the tape, came in as an input, or lies on a
parameter or buffer, which is found again by name when it is used. Because windows reach straight into
storages, views need no replay.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from planner.graph import Op, StorageKind
from planner.tracing.operators import operator_of, statistics_places, tensors_in
from planner.tracing.recorder import Recorder, StorageLife

FINDABLE = frozenset({StorageKind.PARAMETER, StorageKind.BUFFER})
# Decides only what batch norm writes to its running statistics, which replay leaves alone.
_MOMENTUM = 6
_MAX_NUMBER_BYTES = 16
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
# Moves data between processes; no part of what the model computes.
_TRANSPORT = frozenset({"c10d", "_c10d_functional", "fsdp"})


@dataclass(frozen=True, slots=True)
class Window:
    """A tensor as a view of a value's storage; sizes, strides and offset in elements.

    The offset onto an input counts from where the input begins, so that it holds for any slice of a larger batch.
    """

    value: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    is_conj: bool = False
    is_neg: bool = False

    def on(self, base: torch.Tensor, start: int = 0) -> torch.Tensor:
        """The tensor that shows this window of a storage; the base itself where that is the one.

        Args:
            base: a plain tensor on the storage of the value, see `plain`.
            start: for an input, where in its storage it begins.
        """
        offset = self.offset + start
        if base.dtype is self.dtype and not (self.is_conj or self.is_neg):
            if base.shape == self.shape and base.stride() == self.stride and base.storage_offset() == offset:
                return base
            return base.as_strided(self.shape, self.stride, offset)
        tensor = over(base.untyped_storage(), self.dtype, offset, self.shape, self.stride)
        if self.is_conj:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if self.is_neg else tensor


def over(storage: torch.UntypedStorage, dtype: torch.dtype, *layout: Any) -> torch.Tensor:
    """A tensor over a storage, all of it unless offset, sizes and strides are given."""
    tensor: torch.Tensor = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, *layout)
    return tensor


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or if it is of a subclass or conjugated or negated when read, a plain one over its storage."""
    if type(tensor) in _PLAIN and not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    return over(tensor.untyped_storage(), tensor.dtype)


def without_history(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, no longer holding the autograd nodes that made it. Subclasses are left: what they detach to need
    not share their version.
    """
    return tensor.detach() if tensor.requires_grad and type(tensor) in _PLAIN else tensor


@dataclass(frozen=True, slots=True)
class Literal:
    """A tensor of one element that PyTorch made from a number on the way to an op, as in `x[0] = 1`."""

    number: complex
    shape: tuple[int, ...]
    dtype: torch.dtype

    def make(self) -> torch.Tensor:
        """The tensor."""
        return torch.full(self.shape, self.number, dtype=self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class TapeOp:
    """One dispatched op that writes something.

    `args` and `kwargs` hold a `Window` or a `Literal` where the call had a tensor.

    Attributes:
        reads: values its windows look onto.
        mutates: (old value, new value) of each storage it writes in place.
        outputs: for each value it makes anew, the place of the tensor that carries it among its outputs.
    """

    record: Op
    func: Any
    args: Any
    kwargs: Any
    reads: tuple[int, ...]
    mutates: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTensor:
    """One tensor that autograd packed, in order.

    Attributes:
        window: where it lies.
        sequence: how many autograd nodes this forward had made by then.
        kind: of its storage; anything but an activation is always returned as it is.
        name: of the parameter or buffer it lies on.
        is_result: the autograd node that saves it made it: to keep it with its history would keep the node alive.
    """

    module_fqn: str
    module_call: int
    ordinal: int
    op: str
    window: Window
    sequence: int
    kind: StorageKind
    name: str
    is_result: bool

    @property
    def is_static(self) -> bool:
        """Whether it lies on a parameter, buffer, input or constant."""
        return self.kind is not StorageKind.ACTIVATION

    @property
    def where(self) -> str:
        """Which one it is, for a person."""
        return f"saved tensor {self.ordinal} of {self.module_fqn or 'the model'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """One forward of one input signature.

    Attributes:
        ops: that write something, in order.
        packed: what autograd packed, in order.
        last_versions: for each value, the last version of its storage when forward ended.
        static_names: of each value on a parameter or buffer that forward does not write to.
        input_values: value of each tensor among the arguments of forward, in order.
        input_places: for each version of an input's storage, the first argument that lies on it.
        graph: the autograd graph it built, see `graph_of`.
    """

    ops: tuple[TapeOp, ...]
    packed: tuple[PackedTensor, ...]
    last_versions: Mapping[int, int]
    static_names: Mapping[int, str]
    input_values: tuple[int, ...]
    input_places: Mapping[int, int]
    graph: Mapping[int, tuple[Any, ...]]


class TapeRecorder(Recorder):  # type: ignore[no-untyped-call]
    """Records a tape of a live forward, while it runs on real tensors.

    Args:
        module: the root.
        inputs: the tensors among the arguments of forward.
        is_sharded: FSDP puts parameters in place just before they are used: they are looked for again at
            every op, before a tensor is taken for the output of the op that gathered it.
    """

    def __init__(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor], *, is_sharded: bool = False) -> None:
        super().__init__(module, {str(place): tensor for place, tensor in enumerate(inputs)}, keep_saved=True)
        self._modules = dict(module.named_modules()) if is_sharded else {}
        self._tape_ops: list[TapeOp] = []
        self._packed_tensors: list[PackedTensor] = []
        self._first_sequence = sequence_number()
        self._starts: dict[int, int] = {}  # by storage, see `Window`
        self._first_places: dict[int, int] = {}  # the same, first argument on the storage
        self._inputs = tuple(self._note_input(place, tensor) for place, tensor in enumerate(inputs))

    def _note_input(self, place: int, tensor: torch.Tensor) -> int:
        value = self.value_of(tensor)
        storage = self.values[value].storage
        if self.storages[storage].kind is StorageKind.INPUT:
            self._starts.setdefault(storage, int(tensor.storage_offset()))
            self._first_places.setdefault(storage, place)
        return value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._is_paused or operator_of(func).is_ignored or func.namespace in _TRANSPORT:
            return func(*args, **(kwargs or {}))
        self._find_parameters()
        # Before the call: an in-place op reads the version it overwrites.
        frozen_args, frozen_kwargs = self._freeze((args, kwargs or {}))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        record = self.ops[-1]
        if record.writes:
            self._keep_op(func, record, frozen_args, frozen_kwargs, result)
        return result

    def _find_parameters(self) -> None:
        """Know the parameters of the current module again where FSDP has put others in place."""
        path = self.current_module
        module = self._modules.get(path)
        for name, parameter in module._parameters.items() if module is not None else ():
            if parameter is None or not isinstance(parameter, torch.Tensor) or hasattr(parameter, "to_local"):
                continue
            storage, fqn = parameter.untyped_storage(), f"{path}.{name}" if path else name
            life = self._by_address.get(storage._cdata)
            if life is None or life.name != fqn or len(life.versions) > 1:
                life = StorageLife(len(self.storages), storage.nbytes(), StorageKind.PARAMETER, fqn, self.step)
                self.storages.append(life)
                self._new_version(life, None)
                self._watch(storage, life)

    def _keep_op(self, func: Any, record: Op, args: Any, kwargs: Any, result: Any) -> None:
        statistics = statistics_places(operator_of(func), args)
        # Batch norm in training does not read its running statistics: replay passes none, so that they move
        # once a step.
        args = tuple(None if place in statistics else item for place, item in enumerate(args))
        reads = {leaf.value for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Window)}
        made = {self.value_of(tensor): place for place, tensor in reversed(list(enumerate(tensors_in(result))))}
        mutates, outputs = [], []
        for value in record.writes:
            version = self.values[value].version
            if version:
                mutates.append((self.storages[self.values[value].storage].versions[version - 1], value))
            elif value in made:
                outputs.append((value, made[value]))
        self._tape_ops.append(
            TapeOp(
                record=record,
                func=func,
                args=args,
                kwargs=kwargs,
                reads=tuple(value for value in record.reads if value in reads),
                mutates=tuple(pair for pair in mutates if pair[0] in reads),
                outputs=tuple(outputs),
            )
        )

    def window(self, tensor: torch.Tensor) -> Window:
        """The window that a live tensor is."""
        value = self.value_of(tensor)
        return Window(
            value,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()) - self._starts.get(self.values[value].storage, 0),
            tensor.dtype,
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def _freeze(self, tree: Any) -> Any:
        return tree_map(lambda leaf: self._frozen(leaf) if isinstance(leaf, torch.Tensor) else leaf, tree)

    def _frozen(self, tensor: torch.Tensor) -> Window | Literal:
        window = self.window(tensor)
        life = self.storages[self.values[window.value].storage]
        is_number = life.kind is StorageKind.CONSTANT and tensor.numel() == 1 and tensor.device.type == "cpu"
        if not is_number or type(tensor) is not torch.Tensor or life.size_bytes > _MAX_NUMBER_BYTES:
            return window
        with self.paused():
            return Literal(tensor.item(), window.shape, window.dtype)

    def note_packed(self, tensor: torch.Tensor) -> PackedTensor:
        """Record a tensor that autograd packs now, without keeping it."""
        self._find_parameters()
        record = self.describe_packed(tensor)
        life = self.storages[self.values[record.value].storage]
        sequence = sequence_number() - self._first_sequence
        maker = tensor.grad_fn
        packed = PackedTensor(
            module_fqn=record.module_fqn,
            module_call=record.module_call,
            ordinal=record.ordinal,
            op=record.op,
            window=self.window(tensor),
            sequence=sequence,
            kind=life.kind,
            name=life.name,
            is_result=maker is not None and maker._sequence_nr() - self._first_sequence == sequence - 1,
        )
        self._packed_tensors.append(packed)
        return packed

    def digest(self, tensor: torch.Tensor) -> "Digest | None":
        """The tensor's digest; taking it is no part of the tape."""
        with self.paused():
            return digest_of(tensor)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While active, what runs is no part of the tape."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def tape(self, output: Any, names: Mapping[int, str]) -> Tape:
        """What has been recorded.

        Args:
            output: what forward returned.
            names: of parameters, by `id`.
        """
        return Tape(
            ops=tuple(self._tape_ops),
            packed=tuple(self._packed_tensors),
            last_versions={value: life.versions[-1] for life in self.storages for value in life.versions},
            static_names={
                life.versions[0]: life.name
                for life in self.storages
                if life.kind in FINDABLE and len(life.versions) == 1
            },
            input_values=self._inputs,
            input_places={
                value: place
                for storage, place in self._first_places.items()
                for value in self.storages[storage].versions
            },
            graph=graph_of(output, self._first_sequence, names),
        )


# Under a dispatch mode, such as the recorder, `reshape` is made of another one of these.
_RESHAPE = "reshape"
_RESHAPES = frozenset({"ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0"})
_LEAF: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]

# -- comparing forwards ---------------------------------------------------------------------------------------


# How many autograd nodes this thread has made so far.
sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]


def graph_of(output: Any, first: int, names: Mapping[int, str]) -> dict[int, tuple[Any, ...]]:
    """The autograd graph behind an output: by a node's number, its type and what each of its inputs comes from.

    Args:
        output: what forward returned.
        first: number of the first node that forward made; earlier ones are not looked at.
        names: of parameters, by `id`.
    """
    found: dict[int, tuple[Any, ...]] = {}
    kinds: dict[type, Any] = {}
    stack = [leaf.grad_fn for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.grad_fn]
    while stack:
        node = stack.pop()
        number = node._sequence_nr() - first
        if number < 0 or number in found:
            continue
        cls = type(node)
        kind = kinds.get(cls)
        if kind is None:
            kind = kinds[cls] = _RESHAPE if cls.__name__ in _RESHAPES else cls
        sources = [kind]
        for source, _ in node.next_functions:
            if source is None:
                sources.append(None)
            elif type(source) is _LEAF:
                sources.append(names.get(id(source.variable), ""))  # type: ignore[attr-defined]
            else:
                stack.append(source)
                place = source._sequence_nr() - first
                sources.append(place if place >= 0 else -1)
        found[number] = tuple(sources)
    return found


def structure_difference(old: Tape, new: Tape) -> str:
    """Where two tapes of one signature first do something different, for a person; empty if only numbers differ."""
    for before, now in zip(old.ops, new.ops, strict=False):
        if _structure(before) != _structure(now):
            return f"{before.record.name} of {before.record.module_fqn or 'the model'}"
    if len(old.ops) != len(new.ops):
        return f"the number of operators, {len(old.ops):,} and {len(new.ops):,}"
    for packed, again in zip(old.packed, new.packed, strict=False):
        if packed != again:
            return packed.where
    if len(old.packed) != len(new.packed):
        return f"the number of saved tensors, {len(old.packed):,} and {len(new.packed):,}"
    if (old.last_versions, old.static_names) != (new.last_versions, new.static_names):
        return "what is written in place"
    return "" if old.graph == new.graph else "the autograd graph"


def changing_ops(old: Tape, new: Tape) -> tuple[TapeOp, ...]:
    """The ops of two tapes of equal structure that were called with different numbers."""
    return tuple(now for before, now in zip(old.ops, new.ops, strict=True) if not _same_numbers(before, now))


def _structure(op: TapeOp) -> tuple[Any, ...]:
    record = op.record
    windows = tuple(leaf for leaf in tree_leaves((op.args, op.kwargs)) if isinstance(leaf, Window))
    place = (record.step, record.name, record.module_fqn, record.module_call)
    return (*place, windows, op.mutates, op.outputs)


def _same_numbers(old: TapeOp, new: TapeOp) -> bool:
    return list(_numbers(old)) == list(_numbers(new))


def _numbers(op: TapeOp) -> Iterator[Any]:
    """What an op was called with, apart from tensors, as text: NaN equals itself and 1 is not 1.0."""
    is_batch_norm = bool(statistics_places(operator_of(op.func), op.args))
    for place, item in enumerate(op.args):
        if not (is_batch_norm and place == _MOMENTUM):
            yield from (repr(leaf) for leaf in tree_leaves(item) if not isinstance(leaf, Window))
    for key, item in op.kwargs.items():
        yield from (key, *(repr(leaf) for leaf in tree_leaves(item) if not isinstance(leaf, Window)))


# -- checking a replay ----------------------------------------------------------------------------------------

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Two runs of a kernel that adds in no fixed order differ by less than this, relative to the sum of magnitudes.
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class Digest:
    """What is remembered of a dropped tensor, to hold its first replay against.

    Numbers where reading them waits for nothing, and tensors of one element elsewhere.
    """

    bits: Any
    total: Any
    magnitude: Any

    def equals(self, other: "Digest") -> bool:
        """Whether the bits agree."""
        return bool(self.bits == other.bits)

    def is_near(self, other: "Digest") -> bool:
        """Whether the difference could be rounding."""
        allowed = _ROUNDING * float(self.magnitude)
        return (
            abs(float(self.total - other.total)) <= allowed and abs(float(self.magnitude - other.magnitude)) <= allowed
        )


def digest_of(tensor: torch.Tensor) -> Digest | None:
    """The digest of a tensor with data; None for one without."""
    if type(tensor) is not torch.Tensor or tensor.is_meta:
        return None
    with torch.no_grad():
        plain = tensor.resolve_conj().resolve_neg()
        if plain.is_complex():
            plain = torch.view_as_real(plain)
        bits = plain.view(_BITS[plain.element_size()]).sum(dtype=torch.int64)
        if not plain.is_floating_point():
            scalars = (bits, bits, bits)
        else:
            magnitude = torch.linalg.vector_norm(plain, 1, dtype=torch.float64)
            scalars = (bits, plain.sum(dtype=torch.float64), magnitude)
        return Digest(*(item.item() for item in scalars)) if tensor.device.type == "cpu" else Digest(*scalars)
