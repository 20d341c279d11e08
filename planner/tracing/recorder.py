"""Watches one step: ops and storages by dispatch, saved tensors by hooks, module paths by module hooks.

The recorder keeps nothing that autograd saves: pack drops the tensor, unpack hands out a fresh one of the same
layout. What remains alive is alive for another reason, so every storage shows its natural life, and every fresh tensor
shows exactly how long backward holds what it unpacked.
"""

import weakref
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from planner.errors import TraceError
from planner.graph import Op, Phase, SavedTensor, StorageKind

STATIC_KINDS = frozenset({StorageKind.PARAMETER, StorageKind.BUFFER, StorageKind.INPUT, StorageKind.CONSTANT})
_IGNORED_NAMESPACES = frozenset({"prim", "profiler"})
# Allocations without content. Whoever fills them is either a later in-place op or invisible to dispatch.
_EMPTY_OPS = frozenset({"aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty", "aten.new_empty_strided"})
_DTYPE_PREFIX = "torch."
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
    is_undefined: bool = False  # allocated empty and not yet written


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
    uses: list[list[int]] = field(default_factory=list)


class Recorder(TorchDispatchMode):
    """Records one forward and backward of a module into plain lists.

    Args:
        module: its parameters and buffers are known by name; its modules give ops their paths.
        inputs: tensors by name that the caller holds through the whole step.
        keep_saved: hand saved tensors back unchanged, as for real tensors whose values matter.
    """

    def __init__(
        self, module: torch.nn.Module, inputs: dict[str, torch.Tensor], *, keep_saved: bool = False
    ) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.storages: list[StorageLife] = []
        self.values: list[ValueRecord] = []
        self.saved: list[SavedRecord] = []
        self.step = 0
        self.backward_step = 0
        self.phase = Phase.FORWARD
        self._keep_saved = keep_saved
        self._is_paused = False
        self._by_address: dict[int, int] = {}
        self._watches: dict[int, weakref.ref[Any]] = {}
        self._stack: list[tuple[str, int]] = [("", 0)]
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
                self._storage(tensor, kind=kind, name=name)

    # -- storages and values ------------------------------------------------------------------------------------

    def _storage(
        self, tensor: torch.Tensor, *, kind: StorageKind, name: str = "", producer: int | None = None
    ) -> StorageLife:
        """The record of the tensor's storage, made if it is seen for the first time."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._by_address:
            return self.storages[self._by_address[address]]
        life = StorageLife(len(self.storages), storage.nbytes(), kind, name, self.step)
        self.storages.append(life)
        self._by_address[address] = life.index
        self._new_version(life, producer)

        def on_free(_: Any) -> None:
            life.free_step = self.step
            self._by_address.pop(address, None)
            self._watches.pop(address, None)

        self._watches[address] = weakref.ref(storage, on_free)
        return life

    def _new_version(self, life: StorageLife, producer: int | None) -> int:
        life.versions.append(len(self.values))
        self.values.append(ValueRecord(life.index, len(life.versions) - 1, producer))
        return life.versions[-1]

    def value_of(self, tensor: torch.Tensor) -> int:
        """Index of the current value behind a tensor; a tensor never seen before is a constant."""
        return self._storage(tensor, kind=StorageKind.CONSTANT).versions[-1]

    # -- ops ----------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_paused or func.namespace in _IGNORED_NAMESPACES:
            return func(*args, **kwargs)
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(tensor.layout is not torch.strided for tensor in inputs):
            raise TraceError(f"{func} works on a sparse tensor, which cannot be planned; use dense tensors")
        reads = tuple(dict.fromkeys(self.value_of(tensor) for tensor in inputs))
        module_fqn, module_call = self._where()
        written = [self._storage(t, kind=StorageKind.CONSTANT) for t in _mutated(func, args, kwargs)]
        result = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        writes = self._record_writes(func, written, outputs)
        self.ops.append(
            Op(
                step=self.step,
                name=str(func),
                phase=self.phase,
                module_fqn=module_fqn,
                module_call=module_call,
                reads=reads,
                writes=writes,
                read_bytes=sum(_extent_bytes(tensor) for tensor in inputs) if writes else 0,
                write_bytes=sum(_extent_bytes(tensor) for tensor in outputs) if writes else 0,
                flops=_flops(func, args, kwargs, result),
                dtype=_compute_dtype(inputs, outputs),
                shape=tuple(outputs[0].shape) if outputs else (),
                is_view=not writes,
                is_random=_is_random(func, args, kwargs),
                is_causal=bool(_argument(func, "is_causal", args, kwargs)),
                mutates_state=any(life.kind in STATIC_KINDS for life in written),
                is_opaque=_base_name(func) in _EMPTY_OPS,
            )
        )
        self.step += 1
        return result

    def _record_writes(
        self, func: Any, written: list[StorageLife], outputs: list[torch.Tensor]
    ) -> tuple[int, ...]:
        writes = [self._new_version(life, self.step) for life in {life.index: life for life in written}.values()]
        for tensor in outputs:
            if tensor.untyped_storage()._cdata not in self._by_address:
                life = self._storage(tensor, kind=StorageKind.ACTIVATION, producer=self.step)
                writes.append(life.versions[0])
        return tuple(writes)

    def _where(self) -> tuple[str, int]:
        """The module a forward op runs in, or that the forward op belonged to which backward now differentiates."""
        if self.phase is Phase.FORWARD:
            self._by_sequence[torch.autograd._get_sequence_nr()] = self._stack[-1]  # type: ignore[attr-defined]
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        return self._by_sequence.get(node._sequence_nr(), ("", 0)) if node is not None else ("", 0)

    # -- saved tensors ------------------------------------------------------------------------------------------

    def pack(self, tensor: torch.Tensor) -> Any:
        """Record a saved tensor; only those on parameters, buffers, inputs and constants are really kept."""
        value = self.value_of(tensor)
        life = self.storages[self.values[value].storage]
        where = self._stack[-1]
        producer = self.values[value].producer
        record = SavedRecord(
            value=value,
            module_fqn=where[0],
            module_call=where[1],
            ordinal=self._packed[where],
            op="" if producer is None else self._op_name(producer),
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix(_DTYPE_PREFIX),
        )
        self._packed[where] += 1
        self.saved.append(record)
        if self._keep_saved or life.kind in STATIC_KINDS:
            return tensor
        return (record, tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    def unpack(self, packed: Any) -> torch.Tensor:
        """A fresh tensor of the packed layout, watched until backward lets go of it."""
        if isinstance(packed, torch.Tensor):
            return packed
        record, shape, stride, dtype, device = packed
        self._is_paused = True
        try:
            tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        finally:
            self._is_paused = False
        storage = tensor.untyped_storage()
        # Backward reads the saved value, so the stand-in shares its versions: op records stay true.
        index = self.values[record.value].storage
        address = storage._cdata
        self._by_address[address] = index
        use = [self.step, NEVER]
        record.uses.append(use)

        def on_free(_: Any) -> None:
            use[1] = self.step
            self._by_address.pop(address, None)
            self._watches.pop(address, None)

        self._watches[address] = weakref.ref(storage, on_free)
        self.step += 1
        return tensor

    def _op_name(self, step: int) -> str:
        position = bisect_left(self.ops, step, key=lambda op: op.step)
        return self.ops[position].name

    # -- modules ------------------------------------------------------------------------------------------------

    def _enter_module(self, module: torch.nn.Module, inputs: Any) -> None:
        path = self._paths.get(id(module))
        if path is None:
            return
        self._stack.append((path, self._calls[path]))
        self._calls[path] += 1
        self._mark_boundary(inputs, "input")

    def _leave_module(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if id(module) not in self._paths:
            return
        self._mark_boundary(output, "output")
        self._stack.pop()

    def _mark_boundary(self, tensors: Any, side: str) -> None:
        path, call = self._stack[-1]
        leaves = [leaf for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor)]
        for position, tensor in enumerate(leaves):
            if tensor.untyped_storage()._cdata in self._by_address:
                value = self.values[self.value_of(tensor)]
                value.boundary = value.boundary or f"{path}:{call}:{side}:{position}"

    @property
    def current_module(self) -> str:
        """Path of the module whose forward is running."""
        return self._stack[-1][0]

    # -- the step -----------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While active, everything is recorded."""
        with ExitStack() as stack:
            handles: list[Any] = [
                register_module_forward_pre_hook(self._enter_module),
                register_module_forward_hook(self._leave_module),
            ]
            for handle in handles:
                stack.callback(handle.remove)
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
                uses=tuple((unpack, release) for unpack, release in record.uses),
            )
            for index, record in enumerate(self.saved)
        )


def _base_name(func: Any) -> str:
    return f"{func.namespace}.{func._schema.name.split('::')[1]}"


def _mutated(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that the operator's schema says it writes to."""
    found = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            item = kwargs.get(argument.name, args[position] if position < len(args) else None)
            found += [leaf for leaf in tree_leaves(item) if isinstance(leaf, torch.Tensor)]
    return found


def _argument(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return kwargs.get(name, args[position] if position < len(args) else argument.default_value)
    return None


def _is_random(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether two calls with equal inputs may differ. Attention is tagged random but is not without dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    dropout = _argument(func, "dropout_p", args, kwargs)
    return dropout is None or dropout > 0.0


def _extent_bytes(tensor: torch.Tensor) -> int:
    """Bytes that reading the tensor touches: an expanded tensor is no larger than its storage."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    formula: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
    return int(formula(*args, **kwargs, out_val=result)) if formula is not None else 0


def _compute_dtype(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> str:
    for tensor in (*inputs, *outputs):
        if tensor.is_floating_point() or tensor.is_complex():
            return str(tensor.dtype).removeprefix(_DTYPE_PREFIX)
    return str(outputs[0].dtype).removeprefix(_DTYPE_PREFIX) if outputs else ""
