"""A whole plan from options: the cheapest sequence of them, one per cell, that fits the budget.

Goes through the cells in forward order and carries partial plans. Of two that hold the same bytes the cheaper one
survives, and one that the master's bound shows to end dearer than what is looked for is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from planner.solving.cells import Chain, Demand
from planner.solving.deadline import NEVER, check
from planner.solving.master import Column
from planner.solving.options import Option

# When partial plans are merged, so many that hold different bytes are left of those alike otherwise.
_FEWEST_BUCKETS = 50

_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partial:
    """Partial plans, one per entry of each array.

    Attributes:
        held_bytes: by all its cells.
        new_bytes, end_bytes: those of them that forward would not have in any case, and its end would not.
        host_bytes: on the host.
        added_ns, reduced_ns: their replays, and what they wait for the link whatever follows; and how much dearer they
            are than the bound.
        out_late_ns, back_late_ns: how far copies out are behind when the forward of its last cell ends, and how much of
            those back has to be done before its window begins, to be in time for the windows that follow.
        demanded: what the next cell does with what leaves the last: 0 if that is kept, 1 if its replays demand it, 2
            if it is unused.
        relief_bytes: what early replays in the chain that ends here lessen, if they run. Negative: they add.
        surge_bytes: what they need more than afterwards while they run.
        option: position among the columns of its last cell.
        before: position among the partial plans of the cell before.
    """

    held_bytes: _Ints
    new_bytes: _Ints
    end_bytes: _Ints
    host_bytes: _Ints
    added_ns: _Ints
    reduced_ns: NDArray[np.float64]
    out_late_ns: _Ints
    back_late_ns: _Ints
    demanded: _Ints
    relief_bytes: _Ints
    surge_bytes: _Ints
    option: _Ints
    before: _Ints

    @property
    def most_ns(self) -> _Ints:
        """What they add if nothing that follows hides copies."""
        return self.added_ns + self.out_late_ns + self.back_late_ns

    def take(self, places: NDArray[np.intp]) -> "_Partial":
        """Those at the given places."""
        return _Partial(**{field.name: getattr(self, field.name)[places] for field in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRoom:
    """What plans may ask of the link and the host.

    Attributes:
        host_bytes: the limit on the host.
        staged_out_ns, staged_back_ns: how far copies may be behind, and how much may come back early.
        grain_ns: partial plans whose copies are late by as many of these count as equal in that.
        most_partial: partial plans carried from cell to cell at most; beyond it, neighbours in bytes held are merged.
        host_price: of a byte on the host, in ns: of two partial plans, what they leave of the host counts too.
        out_wait_ns, back_wait_ns: how much further from the bound a plan is for each ns that it waits.
    """

    host_bytes: int = 0
    staged_out_ns: int = 0
    staged_back_ns: int = 0
    grain_ns: int = 1
    host_price: float = 0.0
    out_wait_ns: float = 1.0
    back_wait_ns: float = 1.0
    most_partial: int = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """One option per cell, and what they add to the step: replays, and about what they wait for the link."""

    added_ns: int
    options: tuple[Option, ...]


def assemble(
    chain: Chain,
    columns: Sequence[Sequence[Column]],
    *,
    forward_budget_bytes: int,
    window_budget_bytes: int,
    link: LinkRoom,
    slack_ns: float,
    most: int = 1,
    deadline: float = NEVER,
) -> tuple[Assembled, ...]:
    """The cheapest options that fit together, a few such choices, the cheapest first; nothing if none fit.

    Args:
        chain: the cells.
        columns: per cell, the options to choose from.
        forward_budget_bytes, window_budget_bytes: the limit in every cell's forward and in every window.
        link: what the link can hide, and the host hold.
        slack_ns: plans that end further than this above the bound are not looked for.
        most: how many choices at most.
        deadline: when to give up.

    Raises:
        OutOfTime: the deadline passed.
    """
    nothing = np.zeros(1, dtype=np.int64)
    partial = _Partial(
        **{field.name: nothing for field in fields(_Partial) if field.name != "reduced_ns"}, reduced_ns=np.zeros(1)
    )
    stages: list[_Partial] = []
    forward_left_ns, passed_ns = (*chain.forward_left_ns, 0), (*chain.backward_passed_ns, 0)
    for j in range(len(chain.cells)):
        check(deadline)
        extended = [
            _extend(
                partial,
                place,
                column,
                forward_room=forward_budget_bytes - chain.forward_start_bytes[j],
                end_room=forward_budget_bytes - chain.forward_end_bytes,
                window_room=window_budget_bytes - chain.window_start_bytes[j],
                link=link,
                times=_Times(
                    forward_ns=forward_left_ns[j] - forward_left_ns[j + 1],
                    window_ns=passed_ns[j] - passed_ns[j + 1],
                ),
                slack_ns=slack_ns,
            )
            for place, column in enumerate(columns[j])
            if column.reduced_ns <= slack_ns
        ]
        if not extended:
            return ()
        partial = _prune(
            _Partial(
                **{
                    field.name: np.concatenate([getattr(one, field.name) for one in extended])
                    for field in fields(_Partial)
                }
            ),
            link,
        )
        stages.append(partial)
    complete = np.flatnonzero(partial.demanded == 0)
    costs_ns, firsts = np.unique(partial.most_ns[complete], return_index=True)
    return tuple(
        Assembled(added_ns=int(cost_ns), options=_trace_back(stages, columns, int(complete[first])))
        for cost_ns, first in zip(costs_ns[:most], firsts[:most], strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """How long a cell's forward and its window take, without replays and waiting."""

    forward_ns: int
    window_ns: int


def _extend(
    partial: _Partial,
    place: int,
    column: Column,
    *,
    forward_room: int,
    end_room: int,
    window_room: int,
    link: LinkRoom,
    times: "_Times",
    slack_ns: float,
) -> _Partial:
    """The partial plans that can go on with a column, with it."""
    option = column.option
    added_bytes = partial.surge_bytes - partial.relief_bytes if option.entering.is_demanded else 0
    fits = (
        (partial.demanded == _state(option.entering))
        & (partial.reduced_ns + column.reduced_ns <= slack_ns)
        & (partial.new_bytes + option.forward_peak_bytes <= forward_room)
        & (partial.end_bytes + (option.held_bytes - option.outliving_bytes) <= end_room)
        & (partial.held_bytes + option.first_peak_bytes <= window_room)
        & (partial.host_bytes + option.host_bytes <= link.host_bytes)
        & (partial.held_bytes + option.later_peak_bytes + added_bytes <= window_room)
    )
    before = np.flatnonzero(fits)
    old = partial.take(before)
    relief = surge = np.zeros(before.size, dtype=np.int64)
    if option.leaving.is_demanded:
        relief = relief + (option.held_bytes - option.early_bytes)
        surge = surge + (option.surge_bytes - option.early_bytes)
        if option.demands_early:
            surge = np.maximum(surge, old.surge_bytes + (option.early_bytes - option.held_bytes))
            relief = relief + old.relief_bytes
    # What staging does not hold, the device waits for.
    out_late = np.maximum(option.out_rest_ns, old.out_late_ns + (option.copy_ns - times.forward_ns))
    back_late = np.maximum(
        option.back_ahead_ns, old.back_late_ns + (option.copy_ns - option.replay_ns - times.window_ns)
    )
    out_goes_on = np.minimum(out_late, link.staged_out_ns)
    back_goes_on = np.minimum(back_late, link.staged_back_ns)
    out_waits, back_waits = out_late - out_goes_on, back_late - back_goes_on
    return _Partial(
        held_bytes=old.held_bytes + option.held_bytes,
        new_bytes=old.new_bytes + (option.held_bytes - option.lasting_bytes),
        end_bytes=old.end_bytes + (option.held_bytes - option.outliving_bytes),
        added_ns=old.added_ns + option.replay_ns + out_waits + back_waits,
        out_late_ns=out_goes_on,
        back_late_ns=back_goes_on,
        host_bytes=old.host_bytes + option.host_bytes,
        reduced_ns=old.reduced_ns + column.reduced_ns + link.out_wait_ns * out_waits + link.back_wait_ns * back_waits,
        demanded=np.full(before.size, _state(option.leaving), dtype=np.int64),
        relief_bytes=relief,
        surge_bytes=surge,
        option=np.full(before.size, place, dtype=np.int64),
        before=before.astype(np.int64),
    )


def _state(demand: Demand) -> int:
    """Whether a link is demanded early or late makes no difference to a whole plan."""
    return 1 if demand.is_demanded else (2 if demand is Demand.UNUSED else 0)


def _prune(partial: _Partial, link: LinkRoom) -> _Partial:
    """Without those that another one of the same demands dominates; merged where there are too many."""
    cost_ns = partial.most_ns + np.rint(link.host_price * partial.host_bytes).astype(np.int64)
    order = np.lexsort((cost_ns, partial.held_bytes, *_keys(partial, link.grain_ns)))
    cost_ns = cost_ns[order]
    partial = partial.take(order)
    group = _groups(partial, link.grain_ns)
    # One running minimum for all groups: each lies lower than all before it.
    lowered = cost_ns - group * (int(cost_ns.max(initial=0)) + 1)
    is_better = np.ones(group.size, dtype=bool)
    is_better[1:] = lowered[1:] < np.minimum.accumulate(lowered)[:-1]
    partial = partial.take(np.flatnonzero(is_better))
    return partial if partial.option.size <= link.most_partial else _merge(partial, link)


def _merge(partial: _Partial, link: LinkRoom) -> _Partial:
    """One of each few neighbours in bytes held that are about as late: the one nearest to the bound."""
    grain_ns = link.grain_ns
    group = _alike(partial, grain_ns)
    while int(group.max()) >= link.most_partial // _FEWEST_BUCKETS and grain_ns < _longest_late_ns(partial):
        grain_ns *= 2
        group = _alike(partial, grain_ns)
    buckets = max(_FEWEST_BUCKETS, link.most_partial // (int(group.max()) + 1))
    span = partial.held_bytes - partial.held_bytes.min()
    bucket = span // (int(span.max()) // buckets + 1)
    order = np.lexsort((partial.reduced_ns, bucket, group))
    is_first = np.ones(order.size, dtype=bool)
    is_first[1:] = (np.diff(bucket[order]) != 0) | (np.diff(group[order]) != 0)
    return partial.take(np.sort(order[is_first]))


def _alike(partial: _Partial, grain_ns: int) -> _Ints:
    """A number per entry, the same for those of the same demands that are about as late."""
    late = np.stack([partial.out_late_ns // grain_ns, partial.back_late_ns // grain_ns, partial.demanded])
    _, group = np.unique(late, axis=1, return_inverse=True)
    return group.reshape(-1).astype(np.int64)


def _longest_late_ns(partial: _Partial) -> int:
    return int(max(partial.out_late_ns.max(), partial.back_late_ns.max()))


def _keys(partial: _Partial, grain_ns: int) -> tuple[_Ints, ...]:
    """What must be equal for one partial plan to dominate another."""
    return (
        partial.held_bytes - partial.new_bytes,
        partial.held_bytes - partial.end_bytes,
        partial.out_late_ns // grain_ns,
        partial.back_late_ns // grain_ns,
        partial.surge_bytes,
        partial.relief_bytes,
        partial.demanded,
    )


def _groups(partial: _Partial, grain_ns: int) -> _Ints:
    """A number per entry, rising, that changes where one of the keys does."""
    keys = np.stack(_keys(partial, grain_ns))
    changes = np.any(keys[:, 1:] != keys[:, :-1], axis=0)
    return np.concatenate([[0], np.cumsum(changes)]) if keys.shape[1] else np.zeros(0, dtype=np.int64)


def _trace_back(stages: Sequence[_Partial], columns: Sequence[Sequence[Column]], place: int) -> tuple[Option, ...]:
    found = []
    for j in reversed(range(len(stages))):
        found.append(columns[j][int(stages[j].option[place])].option)
        place = int(stages[j].before[place])
    return tuple(reversed(found))
