"""The tape: what one forward did below autograd, in terms that hold for every later forward of the same signature.

A tape holds no tensors. Each tensor argument is a *window* (shape, strides, offset, dtype) onto a *value*, one version of a
storage; a value was written by an op of the tape, came in as an input, or lies on a parameter or buffer, which is found
again by name when it is used. Because windows reach straight into storages, views need no replay.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from planner.graph import Op, StorageKind
from planner.tracing.operators import operator_of, tensors_in
from planner.tracing.recorder import Recorder

_FINDABLE = frozenset({StorageKind.PARAMETER, StorageKind.BUFFER})


@dataclass(frozen=True, slots=True)
class Window:
    """A tensor as a view of a value's storage; sizes and strides in elements."""

    value: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    def on(self, storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
        """The tensor that shows this window of a storage."""
        empty = torch.empty(0, dtype=self.dtype, device=device)
        return empty.set_(storage, self.offset, self.shape, self.stride)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class TapeOp:
    """One dispatched op. `args` and `kwargs` hold `Window`s where the call had tensors.

    Attributes:
        reads: values its windows look onto.
        writes: values it makes, in the order of its new output storages; a mutated value comes first, see `mutates`.
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
    """One tensor that autograd packed, in order."""

    module_fqn: str
    module_call: int
    ordinal: int
    op: str
    window: Window
    is_static: bool  # lies on a parameter, buffer, input or constant, and is always returned as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """One forward of one input signature.

    Attributes:
        ops: by the value they make.
        packed: what autograd packed, in order.
        static_names: value of each parameter and buffer, by name.
        input_values: value of each tensor among the arguments of forward, in order.
        boundaries: value by module boundary, "path:call:side:position".
    """

    ops: Mapping[int, TapeOp]
    packed: tuple[PackedTensor, ...]
    static_names: Mapping[int, str]
    input_values: tuple[int, ...]
    boundaries: Mapping[str, int]


class TapeRecorder(Recorder):
    """Records a tape of a live forward, while it runs on real tensors."""

    def __init__(self, module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
        super().__init__(module, inputs, keep_saved=True)
        self._tape_ops: dict[int, TapeOp] = {}
        self._packed_tensors: list[PackedTensor] = []
        self._inputs = tuple(self.value_of(tensor) for tensor in inputs.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator_of(func).is_ignored:
            return func(*args, **(kwargs or {}))
        # Before the call: an in-place op reads the version it overwrites.
        frozen_args, frozen_kwargs = self._freeze((args, kwargs or {}))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        record = self.ops[-1]
        if record.writes:
            self._keep_op(func, record, frozen_args, frozen_kwargs, result)
        return result

    def _keep_op(self, func: Any, record: Op, args: Any, kwargs: Any, result: Any) -> None:
        made = {self.value_of(tensor): place for place, tensor in reversed(list(enumerate(tensors_in(result))))}
        mutates, outputs = [], []
        for value in record.writes:
            version = self.values[value].version
            if version:
                mutates.append((self.storages[self.values[value].storage].versions[version - 1], value))
            elif value in made:
                outputs.append((value, made[value]))
        op = TapeOp(
            record=record,
            func=func,
            args=args,
            kwargs=kwargs,
            reads=record.reads,
            mutates=tuple(mutates),
            outputs=tuple(outputs),
        )
        for value in record.writes:
            self._tape_ops[value] = op

    def window(self, tensor: torch.Tensor) -> Window:
        """The window that a live tensor is."""
        return Window(
            self.value_of(tensor), tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype
        )

    def _freeze(self, tree: Any) -> Any:
        return tree_map(lambda leaf: self.window(leaf) if isinstance(leaf, torch.Tensor) else leaf, tree)

    def note_packed(self, tensor: torch.Tensor) -> PackedTensor:
        """Record a tensor that autograd packs now, without keeping it."""
        record = self.describe_packed(tensor)
        life = self.storages[self.values[record.value].storage]
        packed = PackedTensor(
            module_fqn=record.module_fqn,
            module_call=record.module_call,
            ordinal=record.ordinal,
            op=record.op,
            window=self.window(tensor),
            is_static=life.kind is not StorageKind.ACTIVATION,
        )
        self._packed_tensors.append(packed)
        return packed

    def final_values(self) -> dict[int, int]:
        """For each value, the last version of its storage so far."""
        return {value: life.versions[-1] for life in self.storages for value in life.versions}

    def tape(self) -> Tape:
        """What has been recorded."""
        return Tape(
            ops=self._tape_ops,
            packed=tuple(self._packed_tensors),
            static_names={
                value: life.name
                for life in self.storages
                if life.kind in _FINDABLE
                for value in life.versions[-1:]
            },
            input_values=self._inputs,
            boundaries={record.boundary: value for value, record in enumerate(self.values) if record.boundary},
        )
