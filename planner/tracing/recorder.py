"""Watches one step: ops and storages by dispatch, saved tensors by hooks, module paths by module hooks.

The recorder keeps nothing that autograd saves: pack drops the tensor, unpack hands out a fresh one of the
same layout. What remains alive is alive for another reason, so every storage shows its natural life, and
every fresh tensor shows how long a formula of backward holds what it unpacked. Autograd itself lets go of a
saved tensor only when the whole node is done, which is after the gradients have been summed to their shapes.
"""

import weakref
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planner.errors import TraceError
from planner.graph import OUTSIDE, Op, Phase, SavedTensor, StorageKind
from planner.tracing.attention import Kernels
from planner.tracing.operators import (
    CallTable,
    Operator,
    compute_dtype,
    dtype_name,
    is_causal,
    is_random,
    layout_bytes,
    operator_of,
    tensors_in,
    traffic_bytes,
    written_tensors,
)

STATIC_KINDS = frozenset({StorageKind.PARAMETER, StorageKind.BUFFER, StorageKind.INPUT, StorageKind.CONSTANT})
_ADD = "aten.add.Tensor"
NEVER = 2**62


@dataclass(slots=True)
class StorageLife:
    """What is known of a storage while recording."""

    index: int
    size_bytes: int
    kind: StorageKind
    name: str
    alloc_step: int
    free_step: int = NEVER
    versions: list[int] = field(default_factory=list)  # value index of each version


@dataclass(slots=True)
class ValueRecord:
    """One version of a storage while recording."""

    storage: int
    version: int
    producer: int | None
    boundary: str = ""


@dataclass(slots=True)
class SavedRecord:
    """One packed tensor while recording."""

    value: int
    module_fqn: str
    module_call: int
    ordinal: int
    op: str
    shape: tuple[int, ...]
    dtype: str
    pack_step: int
    uses: list[list[int]] = field(default_factory=list)
    unpack_step: int | None = None


class _Packed:
    """What autograd holds in a saved tensor's place: its layout, or the tensor itself where it is really
    kept.
    """

    __slots__ = ("_on_release", "kept", "layout", "record")

    def __init__(
        self, record: SavedRecord, layout: Any, kept: torch.Tensor | None, on_release: Callable[[], None]
    ) -> None:
        self.record = record
        self.layout = layout
        self.kept = kept
        self._on_release = on_release

    def __del__(self) -> None:
        self._on_release()


class Recorder(TorchDispatchMode):
    """Records one forward and backward of a module into plain lists.

    Args:
        module: its parameters and buffers are known by name; its modules give ops their paths.
        inputs: tensors by name that the caller holds through the whole step.
        keep_saved: hand saved tensors back unchanged, as for real tensors whose values matter.
        kernels: whose workspaces to count.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        *,
        keep_saved: bool = False,
        kernels: Kernels = Kernels.CUDA,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Op] = []
        self.storages: list[StorageLife] = []
        self.values: list[ValueRecord] = []
        self.saved: list[SavedRecord] = []
        self.step = 0
        self.backward_step = 0
        self.phase = Phase.FORWARD
        self.accumulations: list[int] = []  # positions in `ops`
        self._keep_saved = keep_saved
        self._is_paused = False
        self._is_in_formula = False
        self._calls_made = CallTable(kernels)
        self._by_address: dict[int, StorageLife] = {}
        self._watches: dict[int, weakref.ref[Any]] = {}
        self._stack: list[tuple[str, int]] = [(OUTSIDE, 0)]
        self._paths = {id(child): name for name, child in module.named_modules()}
        self._calls: Counter[str] = Counter()
        self._packed: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._by_sequence: dict[int, tuple[str, int]] = {}
        for kind, named in (
            (StorageKind.PARAMETER, module.named_parameters()),
            (StorageKind.BUFFER, module.named_buffers()),
            (StorageKind.INPUT, iter(inputs.items())),
        ):
            for name, tensor in named:
                self._check_dense(tensor, kind)
                self._storage(tensor, kind=kind, name=name)

    # -- storages and values ---------------------------------------------------------------------------------

    def _storage(
        self, tensor: torch.Tensor, *, kind: StorageKind, name: str = "", producer: int | None = None
    ) -> StorageLife:
        """The record of the tensor's storage, made if it is seen for the first time."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        life = self._by_address.get(address)
        if life is None:
            life = StorageLife(len(self.storages), storage.nbytes(), kind, name, self.step)
            self.storages.append(life)
            self._new_version(life, producer)
            self._watch(storage, life)
        return life

    def _watch(self, storage: torch.UntypedStorage, life: StorageLife) -> None:
        """Note the step at which the storage dies."""
        address = storage._cdata
        self._by_address[address] = life

        def on_free(_: Any) -> None:
            life.free_step = self.step
            del self._by_address[address], self._watches[address]

        self._watches[address] = weakref.ref(storage, on_free)

    def _new_version(self, life: StorageLife, producer: int | None) -> int:
        life.versions.append(len(self.values))
        self.values.append(ValueRecord(life.index, len(life.versions) - 1, producer))
        return life.versions[-1]

    def value_of(self, tensor: torch.Tensor) -> int:
        """Index of the current value behind a tensor; a tensor never seen before is a constant."""
        return self._storage(tensor, kind=StorageKind.CONSTANT).versions[-1]

    # -- ops -------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator = operator_of(func)
        kwargs = kwargs or {}
        if self._is_paused or operator.is_ignored:
            return func(*args, **kwargs)
        inputs = tensors_in((args, kwargs) if kwargs else args)
        for tensor in inputs:
            self._check_dense(tensor, operator.name)
        reads = tuple(dict.fromkeys([self.value_of(tensor) for tensor in inputs]))
        where = self._where()
        written = self._written(operator, args, kwargs)
        result, cost = self._calls_made.run(func, operator, args, kwargs)
        outputs = tensors_in(result)
        for tensor in outputs:
            self._check_dense(tensor, operator.name)
        writes = self._record_writes(written, outputs)
        if operator.name == _ADD and self._is_accumulation(args, writes):
            self.accumulations.append(len(self.ops))
        self.ops.append(
            Op(
                step=self.step,
                name=operator.name,
                phase=self.phase,
                module_fqn=where[0],
                module_call=where[1],
                reads=reads,
                writes=writes,
                read_bytes=traffic_bytes(inputs) if writes else 0,
                write_bytes=traffic_bytes(outputs) if writes else 0,
                flops=cost.flops,
                dtype=compute_dtype(inputs, outputs),
                shape=tuple(outputs[0].shape) if outputs else (),
                is_view=not writes,
                is_random=is_random(operator, args, kwargs),
                is_causal=is_causal(operator, args, kwargs),
                mutates_state=any(life.kind in STATIC_KINDS for life in written),
                is_opaque=operator.is_opaque,
                workspace_bytes=cost.workspace_bytes if writes else 0,
            )
        )
        self.step += 1
        return result

    def _written(self, operator: Operator, args: Any, kwargs: Any) -> list[StorageLife]:
        """The storages the call writes to, each once."""
        if not operator.written and not operator.statistics:
            return []
        lives = [self._storage(t, kind=StorageKind.CONSTANT) for t in written_tensors(operator, args, kwargs)]
        return list({life.index: life for life in lives}.values())

    def _record_writes(self, written: list[StorageLife], outputs: list[torch.Tensor]) -> tuple[int, ...]:
        writes = [self._new_version(life, self.step) for life in written]
        for tensor in outputs:
            if tensor.untyped_storage()._cdata not in self._by_address:
                life = self._storage(tensor, kind=StorageKind.ACTIVATION, producer=self.step)
                writes.append(life.versions[0])
        return tuple(writes)

    def _is_accumulation(self, args: Any, writes: tuple[int, ...]) -> bool:
        """Whether autograd is adding up two gradients of one tensor, which it does between its nodes'
        formulas.

        Without a dispatch mode it adds in place to the first one if it holds the last reference to it, as
        `merge_accumulations` does. Source: torch/csrc/autograd/input_buffer.cpp, `accumulate`, torch 2.13.
        """
        if self.phase is Phase.FORWARD or self._is_in_formula or not writes:
            return False
        first, second = args[:2]
        return (
            isinstance(first, torch.Tensor)
            and isinstance(second, torch.Tensor)
            and first.shape == second.shape
            and first.dtype == second.dtype
            and layout_bytes(first) == first.nbytes
        )

    def _where(self) -> tuple[str, int]:
        """The module a forward op runs in, or that the forward op belonged to which backward now
        differentiates.

        A node of the autograd graph is made, and takes its number, just before its op is dispatched.
        """
        if self.phase is Phase.FORWARD:
            where = self._stack[-1]
            self._by_sequence.setdefault(torch.autograd._get_sequence_nr() - 1, where)  # type: ignore[attr-defined]
            return where
        node = torch._C._current_autograd_node()
        return self._by_sequence.get(node._sequence_nr(), (OUTSIDE, 0)) if node is not None else (OUTSIDE, 0)

    def _check_dense(self, tensor: torch.Tensor, what: str) -> None:
        if tensor.layout is not torch.strided:
            raise TraceError(
                f"{what} is a sparse tensor or works on one, which cannot be planned",
                module_fqn=self.current_module,
                hint="use dense tensors",
            )

    # -- saved tensors ---------------------------------------------------------------------------------------

    def pack(self, tensor: torch.Tensor) -> _Packed:
        """Record a saved tensor; only those on parameters, buffers, inputs and constants are really kept."""
        record = self.describe_packed(tensor)
        kind = self.storages[self.values[record.value].storage].kind
        is_kept = self._keep_saved or kind in STATIC_KINDS
        layout = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
        return _Packed(record, layout, tensor if is_kept else None, partial(self._on_packed_release, record))

    def describe_packed(self, tensor: torch.Tensor) -> SavedRecord:
        """The next entry in the list of saved tensors: where it is packed, and what made it."""
        value = self.value_of(tensor)
        where = self._stack[-1]
        producer = self.values[value].producer
        record = SavedRecord(
            value=value,
            module_fqn=where[0],
            module_call=where[1],
            ordinal=self._packed[where],
            op="" if producer is None else self._op_name(producer),
            shape=tuple(tensor.shape),
            dtype=dtype_name(tensor.dtype),
            pack_step=self.step,
        )
        self._packed[where] += 1
        self.saved.append(record)
        return record

    def unpack(self, packed: _Packed) -> torch.Tensor:
        """A fresh tensor of the packed layout, watched until backward lets go of it."""
        # A node unpacks all it saved when its formula begins, and releases it when the formula has ended.
        self._is_in_formula = True
        if packed.record.unpack_step is None:
            packed.record.unpack_step = self.step
        if packed.kept is not None:
            return packed.kept
        shape, stride, dtype, device = packed.layout
        self._is_paused = True
        try:
            tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        finally:
            self._is_paused = False
        # Backward reads the saved value, so the stand-in shares its versions: op records stay true.
        original = self.storages[self.values[packed.record.value].storage]
        storage = tensor.untyped_storage()
        address = storage._cdata
        self._by_address[address] = original
        use = [self.step, NEVER]
        packed.record.uses.append(use)

        def on_free(_: Any) -> None:
            use[1] = self.step
            del self._by_address[address], self._watches[address]

        self._watches[address] = weakref.ref(storage, on_free)
        self.step += 1
        return tensor

    def _on_packed_release(self, record: SavedRecord) -> None:
        self._leave_formula()
        for use in record.uses:
            if use[1] != NEVER:  # else someone holds the unpacked tensor, who lets go of it later
                use[1] = self.step

    def _leave_formula(self) -> None:
        self._is_in_formula = False

    def _op_name(self, step: int) -> str:
        position = bisect_left(self.ops, step, key=lambda op: op.step)
        return self.ops[position].name

    # -- modules ---------------------------------------------------------------------------------------------

    def enter_module(self, module: torch.nn.Module, inputs: Any) -> None:
        """A module hook: its forward begins."""
        path = self._paths.get(id(module))
        if path is None:
            return
        self._stack.append((path, self._calls[path]))
        self._calls[path] += 1
        self._mark_boundary(inputs, "input")

    def leave_module(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        """A module hook: its forward has ended."""
        if id(module) not in self._paths:
            return
        self._mark_boundary(output, "output")
        self._stack.pop()

    def _mark_boundary(self, tensors: Any, side: str) -> None:
        path, call = self._stack[-1]
        leaves = [leaf for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor)]
        for position, tensor in enumerate(leaves):
            if tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._by_address:
                value = self.values[self.value_of(tensor)]
                value.boundary = value.boundary or f"{path}:{call}:{side}:{position}"

    @property
    def current_module(self) -> str:
        """Path of the module whose forward is running; empty for the root and outside."""
        path = self._stack[-1][0]
        return "" if path == OUTSIDE else path

    # -- the step --------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While active, everything is recorded."""
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self.enter_module).remove)
            stack.callback(register_module_forward_hook(self.leave_module).remove)
            stack.enter_context(self)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack))
            yield

    def begin_backward(self) -> None:
        """Say that forward is over."""
        self.phase = Phase.BACKWARD
        self.backward_step = self.step

    def finish(self, module: torch.nn.Module) -> None:
        """Close what is still open and name the parameters' gradients."""
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                self._check_dense(parameter.grad, f"the gradient of {name}")
                life = self._storage(parameter.grad, kind=StorageKind.GRADIENT, name=name)
                life.kind, life.name = StorageKind.GRADIENT, name
        self._watches.clear()
        for life in self.storages:
            life.free_step = min(life.free_step, self.step)
        for record in self.saved:
            for use in record.uses:
                use[1] = max(min(use[1], self.step), use[0] + 1)

    def saved_tensors(self) -> tuple[SavedTensor, ...]:
        """The saved tensors in pack order."""
        return tuple(
            SavedTensor(
                index=index,
                value=record.value,
                module_fqn=record.module_fqn,
                module_call=record.module_call,
                ordinal=record.ordinal,
                op=record.op,
                shape=record.shape,
                dtype=record.dtype,
                pack_step=record.pack_step,
                uses=tuple((unpack, release) for unpack, release in record.uses),
                unpack_step=record.unpack_step,
            )
            for index, record in enumerate(self.saved)
        )
