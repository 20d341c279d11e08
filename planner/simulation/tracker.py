"""Watches how long each storage of a step lives while someone else decides what autograd keeps.

The recorder of a trace takes the place of autograd's saved tensors, to show natural lives. The tracker leaves them to
whoever registers saved-tensor hooks inside the model, such as an applied plan, and only looks on: what it sees alive is
what that plan keeps alive.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from planner.graph import StorageKind
from planner.tracing.attention import Kernels
from planner.tracing.recorder import Recorder, StorageLife

_Hooks = torch.autograd.graph.saved_tensors_hooks
_EMPTY = torch.ops.aten.empty.memory_format
# How the hooks lay a tensor onto a storage that is there already.
_RELAYING = frozenset(
    {
        torch.ops.aten.as_strided.default,
        torch.ops.aten.detach.default,
        _EMPTY,
        torch.ops.aten.set_.source_Storage,
        torch.ops.aten.set_.source_Storage_storage_offset,
    }
)


class _Held:
    """What autograd holds: what the hooks made of a saved tensor, and the news that it was let go."""

    __slots__ = ("_on_release", "packed")

    def __init__(self, packed: Any, on_release: Callable[[], None]) -> None:
        self.packed = packed
        self._on_release = on_release

    def __del__(self) -> None:
        self._on_release()


class StorageTracker(Recorder):  # type: ignore[no-untyped-call]
    """Records one forward and backward of a module under the saved-tensor hooks that others register.

    Args:
        module: as for `Recorder`.
        inputs, kernels: as for `Recorder`.

    Attributes:
        replayed: steps of the ops that ran, and made something, while a saved tensor was brought back. An op that
            writes in place comes with the copy that it writes to.
    """

    def __init__(
        self, module: torch.nn.Module, inputs: dict[str, torch.Tensor], *, kernels: Kernels = Kernels.CUDA
    ) -> None:
        self._is_packing = self._is_restoring = False
        super().__init__(module, inputs, kernels=kernels)
        self.replayed: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._is_packing:  # what goes to the host lies there, and all else was there before
            return func(*args, **(kwargs or {}))
        if self._is_restoring and func in _RELAYING:
            result = func(*args, **(kwargs or {}))
            if func is _EMPTY and result.numel():
                # Memory for what comes back from the host, which may be long before it is read.
                self._storage(result, kind=StorageKind.ACTIVATION)
            return result
        if not self._is_restoring:
            return super().__torch_dispatch__(func, types, args, kwargs)
        step = self.step
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self.step > step and self.ops[-1].writes:
            self.replayed.add(step)
        return result

    def _storage(
        self, tensor: torch.Tensor, *, kind: StorageKind, name: str = "", producer: int | None = None
    ) -> StorageLife:
        # Bare storages are made without dispatch: unlike a model's constants, this one was not there all along.
        if self._is_restoring and kind is StorageKind.CONSTANT:
            kind = StorageKind.ACTIVATION
        return super()._storage(tensor, kind=kind, name=name, producer=producer)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While active, everything is recorded, and pairs of saved-tensor hooks that are registered are wrapped.

        Only unpacking and releasing tell where a node's formula begins and ends, which decides what is an accumulation
        of gradients, see `Recorder`. Of nested hooks PyTorch asks the innermost pair alone, so that one is wrapped.
        """
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self.enter_module).remove)
            stack.callback(register_module_forward_hook(self.leave_module).remove)
            stack.enter_context(self)
            stack.enter_context(patch.object(torch.autograd.graph, "saved_tensors_hooks", self._hooks))
            yield

    def _hooks(self, pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]) -> _Hooks:
        def watched_pack(tensor: torch.Tensor) -> _Held:
            self._is_packing = True
            try:
                return _Held(pack(tensor), self._leave_formula)
            finally:
                self._is_packing = False

        def watched_unpack(held: _Held) -> torch.Tensor:
            self._is_in_formula = True
            self._is_restoring = True
            try:
                return unpack(held.packed)
            finally:
                self._is_restoring = False

        return _Hooks(watched_pack, watched_unpack)
