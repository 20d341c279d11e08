"""What one forward holds for its backward: kept tensors, handles of dropped ones, and their replay."""

import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from planner.errors import ReplayError
from planner.runtime.tape import Tape, TapeOp, Window
from planner.tracing.operators import tensors_in

# Training-mode batch norm does not read its running statistics: replay passes none, so that they move once a step.
_STATISTICS = {"aten.native_batch_norm": (3, 4), "aten.cudnn_batch_norm": (3, 4)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A tape with decisions: what each pack does, and how often each value will be asked for.

    Attributes:
        tape: what forward does.
        is_dropped: per packed tensor, whether it is replayed instead of kept.
        readers: per value, how many replayed ops read it.
        handles: per value, how many dropped tensors lie on it.
        anchors: value by module boundary, for values kept only as starting points.
    """

    tape: Tape
    is_dropped: tuple[bool, ...]
    readers: Mapping[int, int]
    handles: Mapping[int, int]
    anchors: Mapping[str, int]


class Handle:
    """What autograd holds in a dropped tensor's place."""

    __slots__ = ("state", "window")

    def __init__(self, state: "ForwardState", window: Window) -> None:
        self.state = state
        self.window = window


class ForwardState:
    """The memory of one forward. Handles refer to it, so it lives exactly as long as its backward can still come.

    Args:
        resolve: the current storage behind a parameter's or buffer's name.
        device: where the model computes.
    """

    def __init__(self, resolve: Callable[[str], torch.UntypedStorage], device: torch.device) -> None:
        self.program: Program | None = None
        self._resolve = resolve
        self._device = device
        self._held: dict[int, torch.UntypedStorage] = {}
        self._seen: dict[int, weakref.ref[torch.Tensor]] = {}
        self._readers: dict[int, int] = {}
        self._handles: dict[int, int] = {}
        self._here: Counter[int] = Counter()

    def start(self, program: Program) -> None:
        """Set what is expected to be asked for; what nothing will read is let go."""
        self.program = program
        self._readers, self._handles = dict(program.readers), dict(program.handles)
        for value in list(self._held):
            self._let_go(value)

    def hold(self, value: int, tensor: torch.Tensor) -> None:
        """Keep a value for replays to start from."""
        self._held[value] = tensor.untyped_storage()

    def see(self, value: int, tensor: torch.Tensor) -> None:
        """Remember a tensor that autograd keeps, as long as autograd keeps it."""
        self._seen[value] = weakref.ref(tensor)

    def restore(self, window: Window) -> torch.Tensor:
        """The dropped tensor, from a value at hand or by replay.

        Raises:
            ReplayError: what a replay would start from is gone.
        """
        if self._storage(window.value) is None:
            self._replay(window.value)
        storage = self._storage(window.value)
        assert storage is not None
        tensor = window.on(storage, storage.device)
        self._handles[window.value] = self._handles.get(window.value, 0) - 1
        self._let_go(window.value)
        return tensor

    # -- values ---------------------------------------------------------------------------------------------

    def _storage(self, value: int) -> torch.UntypedStorage | None:
        if value in self._held:
            return self._held[value]
        tensor = self._seen[value]() if value in self._seen else None
        if tensor is not None:
            return tensor.untyped_storage()
        assert self.program is not None
        name = self.program.tape.static_names.get(value)
        return None if name is None else self._resolve(name)

    def _is_wanted(self, value: int) -> bool:
        return self._readers.get(value, 0) > 0 or self._handles.get(value, 0) > 0 or self._here[value] > 0

    def _let_go(self, value: int) -> None:
        if not self._is_wanted(value):
            self._held.pop(value, None)

    # -- replay ---------------------------------------------------------------------------------------------

    def _replay(self, wanted: int) -> None:
        """Run the ops that the value still lacks, in forward order."""
        lacking = self._lacking(wanted)
        # On a second backward over a retained graph the planned counts are used up; these keep the chain together.
        self._here = Counter(value for op in lacking for value in op.reads)
        self._here[wanted] += 1
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            for op in lacking:
                self._run(op)
        self._here.clear()

    def _lacking(self, wanted: int) -> list[TapeOp]:
        assert self.program is not None
        found: dict[int, TapeOp] = {}
        stack = [wanted]
        while stack:
            value = stack.pop()
            if self._storage(value) is not None:
                continue
            op = self.program.tape.ops.get(value)
            if op is None:
                raise ReplayError(f"value {value} is gone and no op makes it")
            if op.record.step not in found:
                found[op.record.step] = op
                stack.extend(op.reads)
        return [found[step] for step in sorted(found)]

    def _run(self, op: TapeOp) -> None:
        fresh: dict[int, torch.UntypedStorage] = {}
        for old, _ in op.mutates:
            source = self._storage(old)
            assert source is not None
            fresh[old] = source.clone()  # others may still read the version it overwrites

        def tensor(window: Window) -> torch.Tensor:
            storage = fresh.get(window.value) or self._storage(window.value)
            assert storage is not None
            return window.on(storage, storage.device)

        args, kwargs = tree_map_only(Window, tensor, (op.args, op.kwargs))
        outputs = tensors_in(op.func(*_without_statistics(op, args), **kwargs))
        made = {new: fresh[old] for old, new in op.mutates}
        made |= {value: outputs[place].untyped_storage() for value, place in op.outputs}
        for value, storage in made.items():
            if self._is_wanted(value):
                self._held[value] = storage
        for value in op.reads:
            self._here[value] -= 1
            self._readers[value] = self._readers.get(value, 0) - 1
            self._let_go(value)


def _without_statistics(op: TapeOp, args: Any) -> Any:
    places = _STATISTICS.get(op.record.name.rpartition(".")[0], ())
    return tuple(None if place in places else item for place, item in enumerate(args))
