"""What one forward holds for its backward: kept tensors, handles of dropped and of offloaded ones, and their replay."""

import weakref
from collections.abc import Callable, Sequence
from threading import RLock

import torch

from planner.errors import ReplayError
from planner.runtime.autocasting import is_autocast_on, no_autocast
from planner.runtime.offload import HostCopies
from planner.runtime.program import Program
from planner.runtime.replay import Replay
from planner.runtime.tape import Digest, PackedTensor, Window, digest_of, over, plain, without_history

Warn = Callable[[str], None]
# A tensor, and its version when it was as it has to be: hooks switch off autograd's own check of that.
Snapshot = tuple[torch.Tensor, int]
# In the place of a version: the tensor will not be as it was.
OVERWRITTEN = -2


class Handle:
    """What autograd holds in the place of a dropped or offloaded tensor; when it lets go, the state may let go, too."""

    __slots__ = ("digest", "is_offloaded", "packed", "state")

    def __init__(
        self,
        state: "ForwardState",
        packed: PackedTensor,
        digest: Digest | None = None,
        *,
        is_offloaded: bool = False,
    ) -> None:
        self.state = state
        self.packed = packed
        self.digest = digest
        self.is_offloaded = is_offloaded
        handles, value = state.handles, packed.window.value
        handles[value] = handles.get(value, 0) + 1

    def __del__(self) -> None:
        self.state.release(self.packed.window.value)


def kept(tensor: torch.Tensor) -> Snapshot:
    """What autograd holds for a tensor that stays; without its history, which may refer to the node that saves it."""
    return without_history(tensor), tensor._version


class Turn:
    """What autograd holds in the place of a tensor with which others may begin to come back from the host.

    Args:
        state: of its forward.
        rank: of its packing among all of the forward.
        packed: what autograd would hold otherwise.
    """

    __slots__ = ("packed", "rank", "state")

    def __init__(self, state: "ForwardState", rank: int, packed: Snapshot | Handle) -> None:
        self.state = weakref.ref(state)  # which goes with its handles
        self.rank = rank
        self.packed = packed


def unpack(packed: Snapshot | Handle | Turn) -> torch.Tensor:
    """The saved tensor, from the host or by replay if it is not at hand.

    Raises:
        ReplayError: it has been written to, or cannot be brought back as it was.
    """
    if type(packed) is Handle:
        return packed.state.restore(packed)
    if type(packed) is Turn:
        state = packed.state()
        if state is not None:
            state.turn(packed.rank)
        return unpack(packed.packed)
    tensor, version = packed  # type: ignore[misc]
    if tensor._version != version:
        raise ReplayError(
            f"a saved tensor of shape {tuple(tensor.shape)} was modified in place after forward saved it: "
            "backward needs it as it was"
        )
    return tensor


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
        self.handles: dict[int, int] = {}
        self.program: Program | None = None
        self._resolve = resolve
        self._device = device
        self._warn = warn
        self._copies = copies
        self._is_sealed = False
        self._sources: dict[int, Snapshot] = {}
        self._made: dict[int, torch.Tensor] = {}
        self._readers: dict[int, int] = {}
        self._statics: dict[str, Snapshot] = {}
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
        """Keep a value for replays to start from; not its history, which refers to what holds this state."""
        self._sources[value] = _snapshot(without_history(tensor))

    def come_to(self, rank: int) -> None:
        """Forward packs its tensor of that rank."""
        with self._lock:
            self._copies.come_to(rank)

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
            self._statics[name] = _snapshot(self._resolve(name))

    def fail(self, reason: str) -> None:
        """Let nothing be replayed any more: what was recorded is not what this forward did."""
        self._failure = reason

    # -- backward --------------------------------------------------------------------------------------------

    def turn(self, rank: int) -> None:
        """The tensor of this packing is unpacked: others may begin to come back."""
        with self._lock:
            if self.program is not None and self.program.turn == rank:
                self._copies.begin_ahead()

    def restore(self, handle: Handle) -> torch.Tensor:
        """The dropped or offloaded tensor behind a handle.

        Raises:
            ReplayError: it cannot be brought back as it was.
        """
        with self._lock:
            # What went to the host is what this forward saved, whatever it did besides.
            if (self._failure and not handle.is_offloaded) or self.program is None:
                raise ReplayError(self._failure or "backward runs inside forward, which is not supported")
            window = handle.packed.window
            base = self._base(window.value)
            if base is None:
                self._replay(window.value)
                base = self._made[window.value]
            tensor = window.on(base, self._starts.get(window.value, 0))
            if handle.digest is not None:
                self._check(handle, tensor)
            return tensor

    def release(self, value: int) -> None:
        """One handle of the value is gone."""
        with self._lock:
            self.handles[value] = left = self.handles[value] - 1
            if not left:
                self._let_go(value)

    def _check(self, handle: Handle, tensor: torch.Tensor) -> None:
        expected, found = handle.digest, digest_of(tensor)
        handle.digest = None
        if expected is None or found is None or expected.equals(found):
            return
        if not expected.is_near(found):
            self.fail(
                f"{handle.packed.where} does not come back as it was: something in its making is hidden from PyTorch's "
                "dispatcher or changes from run to run; make a plan that saves it"
            )
            raise ReplayError(self._failure)
        self._warn(f"{handle.packed.where} comes back only up to rounding: a kernel adds up in no fixed order")

    # -- values ----------------------------------------------------------------------------------------------

    def _base(self, value: int) -> torch.Tensor | None:
        """A plain tensor on the storage of a value; None if the value is to be replayed."""
        made = self._made.get(value)
        if made is not None:
            return made
        if value in self._copies:
            return self._fetched(value)
        source = self._sources.get(value)
        if source is None:
            assert self.program is not None
            name = self.program.tape.static_names.get(value)
            return None if name is None else self._static(name)
        tensor, version = source
        if _version(tensor) != version:
            raise ReplayError(
                f"a tensor of shape {tuple(tensor.shape)} that recomputation starts from was modified in place "
                "between forward and backward"
            )
        return plain(tensor)

    def _fetched(self, value: int) -> torch.Tensor:
        """The value from the host; from now on it is here."""
        assert self.program is not None
        if value not in self.program.offloaded or self._copies.is_spoiled(value):
            raise ReplayError("an offloaded tensor was modified in place after forward saved it")
        self._made[value] = base = over(self._copies.fetch(value), torch.uint8)
        return base

    def _static(self, name: str) -> torch.Tensor:
        tensor, then = self._resolve(name), self._statics.get(name)
        if then is not None and tensor is then[0] and _version(tensor) != then[1]:
            raise ReplayError(f"{name} was modified in place between forward and backward, which needs it as it was")
        return plain(tensor)

    def _find(self, window: Window) -> torch.Tensor:
        """The tensor in a window of a value that is at hand."""
        value = window.value
        base = self._made.get(value)
        if base is None:
            base = self._base(value)
            if base is None:
                raise ReplayError("a tensor that recomputation starts from is gone")
        return window.on(base, self._starts.get(value, 0))

    def _is_wanted(self, value: int) -> bool:
        return self._readers.get(value, 0) > 0 or self.handles.get(value, 0) > 0

    def _is_held(self, value: int) -> bool:
        """Whether forward has put the value somewhere, so that what a replay makes of it is one too many."""
        assert self.program is not None
        return value in self._sources or value in self.program.offloaded

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
        replays = self._lacking(wanted)
        # Backward runs without either as a rule, and to enter a context costs as much as a small op.
        if torch.is_grad_enabled() or is_autocast_on(self._device.type):
            with torch.no_grad(), no_autocast(self._device.type):
                self._run(replays, is_last=is_last)
        else:
            self._run(replays, is_last=is_last)

    def _lacking(self, wanted: int) -> list[Replay]:
        assert self.program is not None
        made, replays = self._made, self.program.replays
        found: dict[int, Replay] = {}
        stack = [wanted]
        while stack:
            replay = replays.get(stack.pop())
            if replay is None:
                raise ReplayError("a tensor that recomputation starts from is gone")
            if replay.step not in found:
                found[replay.step] = replay
                stack.extend([value for value in replay.needs if value not in made])
        return [found[step] for step in sorted(found)]

    def _run(self, replays: list[Replay], *, is_last: bool) -> None:
        """Run ops.

        Args:
            replays: in forward order; what one reads is at hand, or made by those before it.
            is_last: they are not asked for again, so that what they read may go.
        """
        for replay in replays:
            if replay.rewrites:
                self._rewrite(replay)
            else:
                self._keep(replay, replay.run(self._find, self._static))
            if is_last:
                for value in replay.reads:
                    self._readers[value] = left = self._readers[value] - 1
                    if left <= 0:
                        self._let_go(value)

    def _rewrite(self, replay: Replay) -> None:
        """Run an op that writes in place, on copies: others may still read the versions it overwrites."""
        fresh: dict[int, torch.Tensor] = {}
        for old, _ in replay.rewrites:
            base = self._base(old)
            if base is None:
                raise ReplayError("a tensor that recomputation starts from is gone")
            fresh[old] = over(base.untyped_storage().clone(), base.dtype)  # type: ignore[no-untyped-call]

        def find(window: Window) -> torch.Tensor:
            base = fresh.get(window.value)
            return self._find(window) if base is None else window.on(base, self._starts.get(window.value, 0))

        self._keep(replay, replay.run(find, self._static))
        for old, new in replay.rewrites:
            if self._is_wanted(new) and not self._is_held(new):
                self._made[new] = fresh[old]

    def _keep(self, replay: Replay, outputs: Sequence[torch.Tensor]) -> None:
        for value, place in replay.makes:
            if self._is_wanted(value) and not self._is_held(value):
                self._made[value] = plain(outputs[place])


def _snapshot(tensor: torch.Tensor) -> Snapshot:
    return tensor, _version(tensor)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


# Whether the backward that is running can be followed by another one over the same graph; true outside one.
_keeps_graph: Callable[[], bool] = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
