"""What one forward holds for its backward: kept tensors, handles of dropped and of offloaded ones, and their replay."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch

from planner.errors import ReplayError
from planner.runtime.autocasting import no_autocast
from planner.runtime.offload import HostCopies
from planner.runtime.program import Program, made_by
from planner.runtime.tape import Digest, Literal, TapeOp, Window, digest_of
from planner.tracing.operators import tensors_in

Warn = Callable[[str], None]


class Kept:
    """What autograd holds for a tensor that stays: hooks switch off its own check that nobody wrote to it since."""

    __slots__ = ("is_overwritten", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, *, is_overwritten: bool = False) -> None:
        self.tensor = tensor
        self.version = tensor._version
        self.is_overwritten = is_overwritten

    def restore(self) -> torch.Tensor:
        """The tensor.

        Raises:
            ReplayError: it has been written to.
        """
        if self.is_overwritten or self.tensor._version != self.version:
            raise ReplayError(
                f"a saved tensor of shape {tuple(self.tensor.shape)} was modified in place after forward saved it: "
                "backward needs it as it was"
            )
        return self.tensor


class Handle:
    """What autograd holds in the place of a dropped or offloaded tensor; when it lets go, the state may let go, too."""

    __slots__ = ("digest", "is_offloaded", "state", "where", "window")

    def __init__(
        self,
        state: "ForwardState",
        window: Window,
        where: str,
        digest: Digest | None = None,
        *,
        is_offloaded: bool = False,
    ) -> None:
        self.state = state
        self.window = window
        self.where = where
        self.digest = digest
        self.is_offloaded = is_offloaded
        state.handles[window.value] += 1

    def restore(self) -> torch.Tensor:
        """The tensor, from the host or by replay if it is not at hand.

        Raises:
            ReplayError: it cannot be brought back as it was.
        """
        return self.state.restore(self)

    def __del__(self) -> None:
        self.state.release(self.window.value)


@dataclass(frozen=True, slots=True)
class _Source:
    """A tensor that replays start from, as it was."""

    tensor: torch.Tensor
    version: int


class ForwardState:
    """The memory of one forward. Handles refer to it, so it lives exactly as long as its backward can still come.

    Args:
        resolve: the parameter or buffer of a name, as it is now.
        device: where the model computes.
        warn: told of what is not wrong but not exact either.
        copies: what this forward has on the host.

    Attributes:
        handles: per value, how many dropped or offloaded tensors lie on it and are still held by autograd.
    """

    def __init__(
        self, resolve: Callable[[str], torch.Tensor], device: torch.device, warn: Warn, copies: HostCopies
    ) -> None:
        self.handles: Counter[int] = Counter()
        self.program: Program | None = None
        self._resolve = resolve
        self._device = device
        self._warn = warn
        self._copies = copies
        self._is_sealed = False
        self._sources: dict[int, _Source] = {}
        self._made: dict[int, torch.UntypedStorage] = {}
        self._readers: dict[int, int] = {}
        self._statics: dict[str, _Source] = {}
        self._starts: dict[int, int] = {}
        self._failure = ""
        # Autograd has a thread per device.
        self._lock = RLock()

    # -- forward ---------------------------------------------------------------------------------------------

    def begin(self, program: Program, inputs: list[torch.Tensor]) -> None:
        """Set what will be asked for, and keep what replays start from."""
        self.program = program
        self._readers = dict(program.readers)
        self._sources = {
            value: source
            for value, source in self._sources.items()
            if value in program.sources and value not in self._copies
        }
        for value, place in program.tape.input_places.items():
            self._starts[value] = int(inputs[place].storage_offset())
        for value, tensor in zip(program.tape.input_values, inputs, strict=True):
            if value in program.sources:
                self.hold(value, tensor)

    def hold(self, value: int, tensor: torch.Tensor) -> None:
        """Keep a value for replays to start from."""
        self._sources[value] = _source(tensor)

    def offload(self, value: int, tensor: torch.Tensor) -> bool:
        """Put a value on the host; whether there was place for it."""
        with self._lock:
            return self._copies.store(value, tensor)

    def seal(self) -> None:
        """Note the parameters and buffers as they are now that forward has ended, and let go of what went to the
        host for nothing.
        """
        assert self.program is not None
        with self._lock:
            self._copies.settle()
            self._is_sealed = True
            for value in self._copies:
                self._let_go(value)
        for name in self.program.statics:
            self._statics[name] = _source(self._resolve(name))

    def fail(self, reason: str) -> None:
        """Let nothing be replayed any more: what was recorded is not what this forward did."""
        self._failure = reason

    # -- backward --------------------------------------------------------------------------------------------

    def restore(self, handle: Handle) -> torch.Tensor:
        """The dropped or offloaded tensor behind a handle.

        Raises:
            ReplayError: it cannot be brought back as it was.
        """
        with self._lock:
            # What went to the host is what this forward saved, whatever it did besides.
            if (self._failure and not handle.is_offloaded) or self.program is None:
                raise ReplayError(self._failure or "backward runs inside forward, which is not supported")
            value = handle.window.value
            storage = self._storage(value)
            if storage is None:
                self._replay(value)
                storage = self._storage(value)
                assert storage is not None
            tensor = handle.window.on(storage, self._starts.get(value, 0))
            if handle.digest is not None:
                self._check(handle, tensor)
            return tensor

    def release(self, value: int) -> None:
        """One handle of the value is gone."""
        with self._lock:
            self.handles[value] -= 1
            self._let_go(value)

    def _check(self, handle: Handle, tensor: torch.Tensor) -> None:
        expected, found = handle.digest, digest_of(tensor)
        handle.digest = None
        if expected is None or found is None or expected.equals(found):
            return
        if not expected.is_near(found):
            self.fail(
                f"{handle.where} does not come back as it was: something in its making is hidden from PyTorch's "
                "dispatcher or changes from run to run; make a plan that saves it"
            )
            raise ReplayError(self._failure)
        self._warn(f"{handle.where} comes back only up to rounding: a kernel adds up in no fixed order")

    # -- values ----------------------------------------------------------------------------------------------

    def _storage(self, value: int) -> torch.UntypedStorage | None:
        made = self._made.get(value)
        if made is not None:
            return made
        if value in self._copies:
            return self._fetched(value)
        source = self._sources.get(value)
        if source is None:
            assert self.program is not None
            name = self.program.tape.static_names.get(value)
            return None if name is None else self._static(name).untyped_storage()
        if _version(source.tensor) != source.version:
            raise ReplayError(
                f"a tensor of shape {tuple(source.tensor.shape)} that recomputation starts from was modified in place "
                "between forward and backward"
            )
        return source.tensor.untyped_storage()

    def _fetched(self, value: int) -> torch.UntypedStorage:
        """The value from the host; from now on it is here."""
        assert self.program is not None
        if value not in self.program.offloaded or self._copies.is_spoiled(value):
            raise ReplayError("an offloaded tensor was modified in place after forward saved it")
        self._made[value] = storage = self._copies.fetch(value)
        return storage

    def _static(self, name: str) -> torch.Tensor:
        tensor, then = self._resolve(name), self._statics.get(name)
        if then is not None and tensor is then.tensor and _version(tensor) != then.version:
            raise ReplayError(f"{name} was modified in place between forward and backward, which needs it as it was")
        return tensor

    def _is_wanted(self, value: int) -> bool:
        return self._readers.get(value, 0) > 0 or self.handles[value] > 0

    def _let_go(self, value: int) -> None:
        if self.program is not None and not self._is_wanted(value):
            self._made.pop(value, None)
            self._sources.pop(value, None)
            if self._is_sealed:  # until then it may be saved again
                self._copies.drop(value)

    # -- replay ----------------------------------------------------------------------------------------------

    def _replay(self, wanted: int) -> None:
        """Run the ops that the value still lacks, in forward order."""
        is_last = not _keeps_graph()
        with torch.no_grad(), no_autocast(self._device.type):
            for op in self._lacking(wanted):
                self._run(op, is_last=is_last)

    def _lacking(self, wanted: int) -> list[TapeOp]:
        assert self.program is not None
        found: dict[int, TapeOp] = {}
        stack = [wanted]
        while stack:
            value = stack.pop()
            if self._storage(value) is not None:
                continue
            op = self.program.producers.get(value)
            if op is None:
                raise ReplayError("a tensor that recomputation starts from is gone")
            if op.record.step not in found:
                found[op.record.step] = op
                stack.extend(op.reads)
        return [found[step] for step in sorted(found)]

    def _run(self, op: TapeOp, *, is_last: bool) -> None:
        """Run one op.

        Args:
            op: all it reads is at hand.
            is_last: it is not asked for again, so that what it reads may go.
        """
        fresh: dict[int, torch.UntypedStorage] = {}
        for old, _ in op.mutates:
            source = self._storage(old)
            assert source is not None
            # Others may still read the version it overwrites.
            fresh[old] = source.clone()  # type: ignore[no-untyped-call]

        def tensor(window: Window) -> torch.Tensor:
            storage = fresh[window.value] if window.value in fresh else self._storage(window.value)
            assert storage is not None
            return window.on(storage, self._starts.get(window.value, 0))

        outputs = tensors_in(op.func(*_filled(op.args, tensor), **_filled(op.kwargs, tensor)))
        made = {new: fresh[old] for old, new in op.mutates}
        made |= {value: outputs[place].untyped_storage() for value, place in op.outputs}
        for value in made_by(op):
            if self._is_wanted(value) and value not in self._sources:
                self._made[value] = made[value]
        if is_last:
            for value in op.reads:
                self._readers[value] = self._readers.get(value, 0) - 1
                self._let_go(value)


def _filled(item: Any, tensor: Callable[[Window], torch.Tensor]) -> Any:
    """An argument of an op with tensors in the places of windows and literals."""
    kind = type(item)
    if kind is Window:
        return tensor(item)
    if kind is tuple or kind is list:
        return kind([_filled(part, tensor) for part in item])
    if kind is dict:
        return {key: _filled(part, tensor) for key, part in item.items()} if item else item
    return item.make() if kind is Literal else item


def _source(tensor: torch.Tensor) -> _Source:
    return _Source(tensor, _version(tensor))


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _keeps_graph() -> bool:
    """Whether the backward that is running can be followed by another one over the same graph; true outside one."""
    ask: Any = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return ask is None or bool(ask())
