"""Ops of a tape, made ready to run again: what can be known of a call before it happens is worked out once.

What it leaves out: when to run them, and where their tensors come from.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch

from planner.runtime.tape import Literal, TapeOp, Window
from planner.tracing.operators import tensors_in

# The tensor in a window, and the parameter or buffer of a name.
Find = Callable[[Window], torch.Tensor]
FindStatic = Callable[[str], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """An op that may run again.

    Attributes:
        step: its place in forward.
        args: of the call, with gaps for the tensors.
        windows: the tensors among the arguments, and their places; those on parameters and buffers apart.
        statics: places, windows and names of the parameters and buffers among the arguments.
        composites: arguments that hold tensors, or are made anew for each call, and their places.
        composite_kwargs: the same, by keyword.
        reads: values it reads that replays hold only until their last reader has run.
        needs: those of them that replays make.
        rewrites: (old value, new value) of what it writes in place.
        makes: for each value it makes anew, the place of the tensor that carries it among its outputs.
    """

    step: int
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    windows: tuple[tuple[int, Window], ...]
    statics: tuple[tuple[int, Window, str], ...]
    composites: tuple[tuple[int, Any], ...]
    composite_kwargs: tuple[tuple[str, Any], ...]
    reads: tuple[int, ...]
    needs: tuple[int, ...]
    rewrites: tuple[tuple[int, int], ...]
    makes: tuple[tuple[int, int], ...]

    def run(self, find: Find, find_static: FindStatic) -> tuple[torch.Tensor, ...] | list[torch.Tensor]:
        """Call the op on the tensors that its windows show now; returns its output tensors."""
        args, kwargs = list(self.args), self.kwargs
        for place, window in self.windows:
            args[place] = find(window)
        for place, window, name in self.statics:
            args[place] = window.on(find_static(name))
        for place, item in self.composites:
            args[place] = _filled(item, find)
        if self.composite_kwargs:
            kwargs = {**kwargs, **{name: _filled(item, find) for name, item in self.composite_kwargs}}
        output = self.func(*args, **kwargs)
        return (output,) if type(output) is torch.Tensor else tensors_in(output)


def make_replays(ops: Iterable[TapeOp], held: Set[int], names: Mapping[int, str]) -> Mapping[int, Replay]:
    """The ops made ready, by the values they make.

    Args:
        ops: all that replays run.
        held: values that are kept, or on the host.
        names: of the values that are parameters and buffers.
    """
    ops = list(ops)
    made = {value for op in ops for value in made_by(op)} - held
    found: dict[int, Replay] = {}
    for op in ops:
        replay = _ready(op, made, names)
        found.update((value, replay) for value in made_by(op) if value not in held)
    return found


def made_by(op: TapeOp) -> list[int]:
    """The values an op writes."""
    return [*(value for value, _ in op.outputs), *(new for _, new in op.mutates)]


def _ready(op: TapeOp, made: Set[int], names: Mapping[int, str]) -> Replay:
    windows = [(place, item) for place, item in enumerate(op.args) if type(item) is Window]
    return Replay(
        step=op.record.step,
        func=op.func,
        args=tuple(None if type(item) is Window else item for item in op.args),
        kwargs=op.kwargs,
        windows=tuple((place, window) for place, window in windows if window.value not in names),
        statics=tuple((place, window, names[window.value]) for place, window in windows if window.value in names),
        composites=tuple(
            (place, item) for place, item in enumerate(op.args) if type(item) is not Window and _has_gap(item)
        ),
        composite_kwargs=tuple((name, item) for name, item in op.kwargs.items() if _has_gap(item)),
        reads=tuple(value for value in op.reads if value not in names),
        needs=tuple(value for value in op.reads if value in made),
        rewrites=op.mutates,
        makes=op.outputs,
    )


def _has_gap(item: Any) -> bool:
    """Whether a tensor goes in, or something that the op might write to."""
    kind = type(item)
    if kind is dict:
        return any(map(_has_gap, item.values()))
    return kind in (Window, Literal, list) or (kind is tuple and any(map(_has_gap, item)))


def _filled(item: Any, find: Find) -> Any:
    """An argument with tensors in the places of windows and literals."""
    kind = type(item)
    if kind is Window:
        return find(item)
    if kind is tuple or kind is list:
        return kind([_filled(part, find) for part in item])
    if kind is dict:
        return {key: _filled(part, find) for key, part in item.items()}
    return item.make() if kind is Literal else item
