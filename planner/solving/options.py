"""The options of a cell: sets of decisions that some prices of memory make the cheapest.

An option knows what it costs and what it holds; `Template.price` finds the cheapest one at given prices with CP-SAT,
exactly, and so also proves that no other decision in the cell is cheaper at those prices.
"""

import math
import time
from collections import Counter
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from ortools.sat.python import cp_model

from planner.link import host_bytes
from planner.problem import Problem
from planner.simulation.liveness import Point, Timeline, ideal_timeline, simulate
from planner.solving.cells import Cell, Demand, LocalProblem, local_problem
from planner.solving.deadline import NEVER, OutOfTime
from planner.solving.interruptible import run
from planner.solving.model import RetentionModel, Windows, negation, replay_windows
from planner.solving.rounding import Rounding

# CP-SAT optimizes integers: prices are in 1/1000 ns, and a peak is counted in units of 64 KiB, rounded down.
_NS_PARTS = 1_000
_PEAK_UNIT_BYTES = 1 << 16
_SEED = 20_260_101
# A cell is proven in about 10 ms; for a huge one so much work is done, and its bound is then what that has proven. Work
# is counted in CP-SAT's deterministic time, in which another machine comes to the same; a unit takes about a second.
_CELL_WORK = 5.0
# A search that its work has ended has done nearly all of it.
_WORK_DONE = 0.9
# Prices are told apart to this many significant digits: the solver's duals carry noise beyond it.
_PRICE_DIGITS = 7


class Amount(Enum):
    """What of an option is counted in steps; see `Prices`."""

    HELD = "held"
    EARLY = "early"
    PEAK = "peak"
    FIRST_PEAK = "first peak"
    LATER_PEAK = "later peak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stairs:
    """A price in ns of each step that an amount comes to beyond a reference."""

    amount: Amount
    rounding: Rounding
    reference_bytes: int
    price_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a byte costs, in ns; and what a ns of link time and of replays costs.

    Attributes:
        held: held from forward.
        forward: held in the forward of later cells, where it would not be in any case.
        moment: held at its own forward moment.
        end: held at the end of forward, where it would not be in any case.
        peak: at the peak of the cell's window.
        first_peak: at the peak of that part of it in which the links that enter have not been demanded.
        later_peak: at the peak of the rest of it.
        early: alive after early replays, instead of held.
        out, back: a ns of copies out that begin no earlier than in the cell before, and of copies back.
        out_inside, back_inside: a ns more of those that begin in the cell's own forward, and that its own window asks
            for.
        host: a byte on the host.
        replay, demanded_replay: a ns of replays, where links that leave are not demanded, and where they are. Less
            than 1 where copies back run meanwhile that would be waited for.
        relief_bytes: taken off the peak once the links that enter have been demanded; see `Option.window_bytes`.
        stairs: prices of steps.
    """

    held: float
    forward: float = 0.0
    moment: float = 0.0
    end: float = 0.0
    peak: float = 0.0
    first_peak: float = 0.0
    later_peak: float = 0.0
    early: float = 0.0
    out: float = 0.0
    out_inside: float = 0.0
    back: float = 0.0
    back_inside: float = 0.0
    host: float = 0.0
    replay: float = 1.0
    demanded_replay: float = 1.0
    relief_bytes: int = 0
    stairs: tuple[Stairs, ...] = ()

    def rounded(self) -> "Prices":
        """The same prices without the noise of floating point."""
        given = {price.name: getattr(self, price.name) for price in fields(self)}
        rounded: dict[str, Any] = {name: _round(price) for name, price in given.items() if isinstance(price, float)}
        return replace(self, **rounded, stairs=tuple(replace(s, price_ns=_round(s.price_ns)) for s in self.stairs))

    def of_replay(self, leaving: Demand) -> float:
        """The price of a ns of replays."""
        return self.demanded_replay if leaving.is_demanded else self.replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One set of decisions for a cell. Bytes in windows are relative to what no plan changes; see `LocalProblem`.

    Attributes:
        entering, leaving: what replays demand across its borders.
        kept: positions in `Cell.tensors`, only of those that count for the cell.
        offloaded: those of them that lie on the host.
        replay_ns: time of its replays.
        copy_ns: time of its copies in each direction.
        out_ns: of the copies that begin in its own forward or in that of the cell before.
        out_inside_ns, back_inside_ns: of the copies that begin in its own forward, and that its own window asks for.
        out_rest_ns: what is left of its copies out when its own forward ends, of a link that was idle when it began.
        back_ahead_ns: what of its copies back has to be done when its window begins, to wait for none in it.
        host_bytes: on the host.
        held_bytes: held from forward until its window, on the device.
        lasting_bytes, outliving_bytes: those of them that live past the next cell's forward, and past all of forward,
            in any case.
        moment_bytes: those of them that it holds at its own forward moment.
        early_bytes: alive after its early replays, instead of `held_bytes`; the same if none.
        surge_bytes: the most alive during its early replays.
        demands_early: the early replays themselves need the links that enter.
        forward_peak_bytes: the most in its forward.
        first_peak_bytes, later_peak_bytes: the most in its window until the links that enter have been demanded, and
            from then on. Where they are not demanded, both are the most in the whole window.
    """

    entering: Demand
    leaving: Demand
    kept: frozenset[int]
    offloaded: frozenset[int]
    replay_ns: int
    copy_ns: int
    out_ns: int
    out_inside_ns: int
    back_inside_ns: int
    out_rest_ns: int
    back_ahead_ns: int
    host_bytes: int
    held_bytes: int
    lasting_bytes: int
    outliving_bytes: int
    moment_bytes: int
    early_bytes: int
    surge_bytes: int
    demands_early: bool
    forward_peak_bytes: int
    first_peak_bytes: int
    later_peak_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most in its window."""
        return max(self.first_peak_bytes, self.later_peak_bytes)

    def window_bytes(self, relief_bytes: int) -> int:
        """The most in its window if the replays that it demands relieve it of so many bytes.

        Before its window it may have demanded what enters only if what leaves was demanded then.
        """
        before_bytes = relief_bytes if self.leaving.is_demanded else 0
        return max(self.first_peak_bytes - before_bytes, self.later_peak_bytes - relief_bytes)

    def amount_bytes(self, amount: Amount, relief_bytes: int) -> int:
        """So many bytes; relief is of the peak in all of its window."""
        match amount:
            case Amount.HELD:
                return self.held_bytes
            case Amount.EARLY:
                return self.early_bytes
            case Amount.PEAK:
                return self.window_bytes(relief_bytes)
            case Amount.FIRST_PEAK:
                return self.first_peak_bytes
            case Amount.LATER_PEAK:
                return self.later_peak_bytes

    def price_ns(self, prices: Prices) -> float:
        """What the option costs at these prices."""
        held = self.held_bytes * (prices.held - prices.early) + self.early_bytes * prices.early
        held += (self.held_bytes - self.lasting_bytes) * prices.forward
        held += (self.held_bytes - self.outliving_bytes) * prices.end + self.moment_bytes * prices.moment
        peaks = self.window_bytes(prices.relief_bytes) * prices.peak + self.first_peak_bytes * prices.first_peak
        link = self.out_ns * prices.out + self.copy_ns * prices.back
        link += self.out_inside_ns * prices.out_inside + self.back_inside_ns * prices.back_inside
        replays = self.replay_ns * prices.of_replay(self.leaving)
        memory = held + peaks + self.later_peak_bytes * prices.later_peak
        steps = sum(
            one.price_ns * one.rounding.steps(self.amount_bytes(one.amount, prices.relief_bytes) - one.reference_bytes)
            for one in prices.stairs
        )
        return replays + link + self.host_bytes * prices.host + memory + steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The cheapest option at some prices, and a proven bound: none is cheaper."""

    option: Option
    bound_ns: float


class Template:
    """Cells that are alike, and the options found for them so far.

    Args:
        problem: the step.
        cell: one of the cells.
        is_last: it is the last one of its chain.
    """

    def __init__(self, problem: Problem, cell: Cell, *, is_last: bool) -> None:
        self._problem, self._cell = problem, cell
        self._critical = self._find_critical() if is_last else None
        self._locals: dict[tuple[Demand, Demand], tuple[LocalProblem, Windows]] = {}
        self._moments: dict[tuple[Demand, Demand], dict[Point, None]] = {}
        self._priced: dict[tuple[Demand, Demand, Prices], Priced | None] = {}

    def _find_critical(self) -> Point:
        local = local_problem(self._problem, self._cell)
        kept = frozenset(t.index for t in local.problem.tensors if t.uses) | local.problem.must_keep
        before, _ = _split(simulate(local.problem, kept), local)
        return max(before, key=lambda moment: moment[1])[0]

    @property
    def can_demand(self) -> bool:
        """Whether links enter that could be left to a replay of the cell before."""
        return self._has_choice(self._cell.entering)

    @property
    def can_be_demanded(self) -> bool:
        """Whether links leave that a later cell could demand."""
        return self._has_choice(self._cell.leaving)

    @property
    def can_leave_unused(self) -> bool:
        """Whether links enter that could be neither kept nor needed: the cell's own backward does not unpack them."""
        local, _ = self._local(Demand.NONE, Demand.NONE)
        optional = [
            place for place, index in enumerate(self._cell.entering) if not self._problem.tensors[index].must_keep
        ]
        return bool(optional) and not any(local.problem.tensors[place].uses for place in optional)

    def _has_choice(self, links: tuple[int, ...]) -> bool:
        return any(not self._problem.tensors[index].must_keep for index in links)

    def price(
        self,
        prices: Prices,
        entering: Demand = Demand.NONE,
        leaving: Demand = Demand.NONE,
        *,
        deadline: float = NEVER,
    ) -> Priced | None:
        """The cheapest option, or None if nothing can be demanded in this way.

        Args:
            prices: of memory.
            entering, leaving: what replays demand across the cell's borders.
            deadline: for an answer that is not known yet.

        Raises:
            OutOfTime: the deadline passed.
        """
        prices = prices.rounded()
        key = (entering, leaving, prices)
        if key not in self._priced:
            self._priced[key] = self._solve(prices, entering, leaving, deadline=deadline)
        return self._priced[key]

    def within(self, held_bytes: int, prices: Prices, *, copy_ns: int = 0, deadline: float = NEVER) -> Option | None:
        """The cheapest option at some prices that holds no more bytes and copies no longer than this; None if none is.

        Args:
            held_bytes: from forward.
            prices: of memory and time.
            copy_ns: for all its copies out.
            deadline: when to give up.

        Raises:
            OutOfTime: the deadline passed.
        """
        limits = (held_bytes, copy_ns)
        priced = self._solve(prices.rounded(), Demand.NONE, Demand.NONE, limits=limits, deadline=deadline)
        return None if priced is None else priced.option

    def saved(self) -> Option:
        """The option that keeps what autograd saves."""
        local, _ = self._local(Demand.NONE, Demand.NONE)
        kept = {t.index for t in local.problem.tensors if t.uses} | local.problem.must_keep
        return self._measure(frozenset(kept), frozenset(), Demand.NONE, Demand.NONE)

    def largest_relief_bytes(self, *, continues: bool, deadline: float = NEVER) -> int:
        """The most by which early replays in the cell can lessen what it holds.

        Args:
            continues: only if these replays demand the links that enter, so that the cell before may relieve too.
            deadline: when to give up.

        Raises:
            OutOfTime: the deadline passed.
        """
        if not self.can_be_demanded or (continues and not self.can_demand):
            return 0
        relief_bytes = 0
        if not continues:
            relief_bytes = self._largest_relief_bytes(Demand.NONE, continues=False, deadline=deadline)
        if self.can_demand:
            early_bytes = self._largest_relief_bytes(Demand.EARLY, continues=continues, deadline=deadline)
            relief_bytes = max(relief_bytes, early_bytes)
        return relief_bytes

    def _largest_relief_bytes(self, entering: Demand, *, continues: bool, deadline: float) -> int:
        model, owned = self._model(entering, Demand.LATE, deadline)
        local, _ = self._local(entering, Demand.LATE)
        model.forbid_idle()
        if continues:
            model.cp.add(model.done(0, local.early) == 1)
        relief = sum(size * (model.keep(index) - model.host(index)) for index, size in owned)
        relief -= sum(size * literal for size, literal in self._early(model, local))
        if isinstance(relief, int):
            return max(0, relief)
        model.cp.maximize(relief)
        solver = _solver(deadline)
        status = run(solver, model.cp)
        _check_work(solver, status, deadline)
        if status == cp_model.INFEASIBLE:
            return 0
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return sum(size for _, size in owned)
        return max(0, math.ceil(float(solver.best_objective_bound)))

    # -- solving ------------------------------------------------------------------------------------------------

    def _local(self, entering: Demand, leaving: Demand) -> tuple[LocalProblem, Windows]:
        key = _kinds(entering, leaving)
        if key not in self._locals:
            local = local_problem(self._problem, self._cell, entering=entering, leaving=leaving)
            self._locals[key] = (local, replay_windows(local.problem))
            self._moments[key] = {}
        return self._locals[key]

    def _model(
        self, entering: Demand, leaving: Demand, deadline: float
    ) -> tuple[RetentionModel, list[tuple[int, int]]]:
        """The model, and (position, bytes) of the tensors that count."""
        local, windows = self._local(entering, leaving)
        is_plain = entering is Demand.NONE and leaving is Demand.NONE
        model = RetentionModel(local.problem, windows, is_strict=not is_plain, is_part=True, deadline=deadline)
        return model, [(t.index, t.size_bytes) for t in local.problem.tensors[: local.owned]]

    def _early(self, model: RetentionModel, local: LocalProblem) -> list[tuple[int, Any]]:
        """(bytes, literal) of all that counts and is alive after the early replays."""
        point = Point(step=local.early)
        return [
            (tensor.size_bytes, literal)
            for tensor in local.problem.tensors[: local.owned]
            for literal in model.alive(tensor, point)
        ]

    def _solve(
        self,
        prices: Prices,
        entering: Demand,
        leaving: Demand,
        *,
        deadline: float,
        limits: tuple[int, int] | None = None,
    ) -> Priced | None:
        local, _ = self._local(entering, leaving)
        moments = self._moments[_kinds(entering, leaving)]
        while True:
            model, owned = self._model(entering, leaving, deadline)
            if limits is not None:
                held_bytes, copy_ns = limits
                here = sum(size * (model.keep(index) - model.host(index)) for index, size in owned)
                model.cp.add(here <= held_bytes)
                model.cp.add(sum(ns * model.host(index) for index, ns in local.copy_ns.items()) <= copy_ns)
            cost = model.priced_replays(_NS_PARTS * prices.of_replay(leaving))
            for index, size in owned:
                price = prices.held - prices.early
                price += 0.0 if index in local.lasting else prices.forward
                price += 0.0 if index in local.outliving else prices.end
                price += prices.moment if local.is_held_at_moment(index) else 0.0
                cost += math.floor(_NS_PARTS * price * size) * (model.keep(index) - model.host(index))
                if index in local.copy_ns:
                    cost += math.floor(_NS_PARTS * _moving_ns(prices, local, index)) * model.host(index)
            early = self._early(model, local) if prices.early or _stairs(prices, Amount.EARLY) else []
            cost += sum(math.floor(_NS_PARTS * prices.early * size) * literal for size, literal in early)
            if entering.is_demanded and (leaving is Demand.EARLY or self._critical is not None):
                # Which of the two it is shows at one moment: after the early replays, or at the critical one.
                demanded = model.has_replayed(0, self._critical or Point(step=local.early))
                model.cp.add(demanded == int(entering is Demand.EARLY))
            amounts = {
                Amount.HELD: sum(size * (model.keep(index) - model.host(index)) for index, size in owned),
                Amount.EARLY: sum(size * literal for size, literal in early),
            }
            peaks = []
            fixed_ns = 0.0
            relief_units = -(-prices.relief_bytes // _PEAK_UNIT_BYTES)
            for part, price, counted in self._parts(prices, entering):
                if price or any(_stairs(prices, amount) for amount in counted):
                    peak = self._add_peak(model, local, moments, part, leaving, relief_bytes=prices.relief_bytes)
                    peaks.append((part, peak))
                    amounts |= dict.fromkeys(counted, _PEAK_UNIT_BYTES * peak)
                    unit_ns = price * _PEAK_UNIT_BYTES
                    # Counted from where relief could take it, so that rounding the price down makes nothing dearer.
                    cost += math.floor(_NS_PARTS * unit_ns) * (peak + relief_units)
                    fixed_ns -= unit_ns * relief_units
            for stairs in prices.stairs:
                least_bytes = min(local.problem.base_bytes) - prices.relief_bytes
                steps_cost, least_ns = _add_stairs(
                    model, stairs, amounts[stairs.amount], least_bytes=least_bytes, most_bytes=_most_bytes(local)
                )
                cost += steps_cost
                fixed_ns += least_ns
            model.cp.minimize(cost)
            solver = _solver(deadline)
            status = run(solver, model.cp)
            _check_work(solver, status, deadline)
            if status == cp_model.INFEASIBLE:
                return None
            if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                raise AssertionError(f"a cell could not be solved: status {status} of CP-SAT")
            option = self._measure(model.kept(solver), model.offloaded(solver), entering, leaving)
            reached = {part: (solver.value(peak) + 1) * _PEAK_UNIT_BYTES for part, peak in peaks}
            if not self._learn(local, moments, option, reached, relief_bytes=prices.relief_bytes):
                return Priced(option=option, bound_ns=solver.best_objective_bound / _NS_PARTS + fixed_ns)

    def _parts(self, prices: Prices, entering: Demand) -> tuple[tuple["_Part", float, tuple[Amount, ...]], ...]:
        """Each part of the window, the price of a byte at its peak, and the amounts that this is."""
        if not entering.is_demanded:
            amounts = (Amount.PEAK, Amount.FIRST_PEAK, Amount.LATER_PEAK)
            return ((_Part.ALL, prices.peak + prices.first_peak + prices.later_peak, amounts),)
        return (
            (_Part.ALL, prices.peak, (Amount.PEAK,)),
            (_Part.BEFORE, prices.first_peak, (Amount.FIRST_PEAK,)),
            (_Part.AFTER, prices.later_peak, (Amount.LATER_PEAK,)),
        )

    def _add_peak(
        self,
        model: RetentionModel,
        local: LocalProblem,
        moments: dict[Point, None],
        part: "_Part",
        leaving: Demand,
        *,
        relief_bytes: int,
    ) -> Any:
        """A variable for the peak of a part of the window, in units; of all of it, with relief."""
        highest = _most_bytes(local)
        window = local.problem.base_bytes[local.early + 1 :]
        # Nothing relieves what comes before the demand: `Option.window_bytes` has it, and no less than 0.
        before_bytes = -relief_bytes if leaving.is_demanded else 0
        least = {_Part.ALL: max(max(window) - relief_bytes, before_bytes), _Part.BEFORE: 0, _Part.AFTER: min(window)}
        lowest = least[part]
        peak = model.cp.new_int_var(lowest // _PEAK_UNIT_BYTES, highest // _PEAK_UNIT_BYTES + 1, "peak")
        for moment in moments:
            only_if: Any = 1
            limit_bytes = _PEAK_UNIT_BYTES * peak + (_PEAK_UNIT_BYTES - 1)
            if part is _Part.BEFORE:
                only_if = negation(model.has_replayed(0, moment))
            elif part is _Part.AFTER:
                only_if = model.has_replayed(0, moment)
            elif relief_bytes:
                limit_bytes += relief_bytes * (1 if leaving.is_demanded else model.has_replayed(0, moment))
            model.add_moment(moment, limit_bytes, only_if=only_if)
        return peak

    def _learn(
        self,
        local: LocalProblem,
        moments: dict[Point, None],
        option: Option,
        limits: dict["_Part", int],
        *,
        relief_bytes: int,
    ) -> bool:
        """Add the moments of the option's peaks that the model did not count; say whether any was new."""
        is_new = False
        for part, limit_bytes in limits.items():
            size_bytes = {
                _Part.ALL: option.window_bytes(relief_bytes),
                _Part.BEFORE: option.first_peak_bytes,
                _Part.AFTER: option.later_peak_bytes,
            }[part]
            if size_bytes <= limit_bytes:
                continue
            timeline = ideal_timeline(local.problem, option.kept | _given(local), option.offloaded)
            before, after = _split(timeline, local)
            if part is _Part.ALL:
                before_bytes = relief_bytes if option.leaving.is_demanded else 0
                before = [(point, size - before_bytes) for point, size in before]
                after = [(point, size - relief_bytes) for point, size in after]
            watched = {_Part.ALL: before + after, _Part.BEFORE: before, _Part.AFTER: after}[part]
            highest = max(watched, key=lambda moment: moment[1])[0]
            is_new |= highest not in moments
            moments[highest] = None
        return is_new

    def _measure(self, kept: frozenset[int], offloaded: frozenset[int], entering: Demand, leaving: Demand) -> Option:
        local, _ = self._local(entering, leaving)
        timeline = ideal_timeline(local.problem, kept, offloaded)
        counted = frozenset(index for index in kept if index < local.owned)
        here = counted - offloaded
        held_bytes = sum(local.problem.tensors[index].size_bytes for index in here)
        before, after = _split(timeline, local)
        first_peak_bytes = max((size for _, size in before), default=0)
        early = [
            (point, size)
            for point, size in zip(timeline.points, timeline.live_bytes, strict=True)
            if point.step == local.early
        ]
        is_demanded = leaving.is_demanded
        return Option(
            entering=entering,
            leaving=leaving,
            kept=counted,
            offloaded=offloaded,
            replay_ns=timeline.recompute_ns,
            copy_ns=sum(local.copy_ns[index] for index in offloaded),
            out_ns=sum(local.copy_ns[index] for index in offloaded - local.packed_long_before),
            out_inside_ns=sum(local.copy_ns[index] for index in offloaded - local.packed_before),
            back_inside_ns=sum(local.copy_ns[index] for index in offloaded if local.problem.tensors[index].uses),
            out_rest_ns=self._out_rest_ns(local, offloaded),
            back_ahead_ns=self._back_ahead_ns(local, timeline),
            host_bytes=timeline.traffic.host_bytes,
            held_bytes=held_bytes,
            lasting_bytes=sum(local.problem.tensors[index].size_bytes for index in here & local.lasting),
            outliving_bytes=sum(local.problem.tensors[index].size_bytes for index in here & local.outliving),
            moment_bytes=sum(
                local.problem.tensors[index].size_bytes for index in here if local.is_held_at_moment(index)
            ),
            early_bytes=early[-1][1] if is_demanded else held_bytes,
            surge_bytes=max(size for _, size in early) if is_demanded else held_bytes,
            demands_early=local.demands_entering and any(point.replay == 0 for point, _ in early),
            forward_peak_bytes=max(
                (
                    size
                    for point, size in zip(timeline.points, timeline.live_bytes, strict=True)
                    if point.step < local.early
                ),
                default=0,
            ),
            first_peak_bytes=first_peak_bytes,
            later_peak_bytes=first_peak_bytes
            if not entering.is_demanded
            else max((size for _, size in after), default=0),
        )

    def _out_rest_ns(self, local: LocalProblem, offloaded: frozenset[int]) -> int:
        """What is left of copies out when the cell's forward ends; each begins when its tensor is packed, or later."""
        first, end = self._cell.forward
        packings = ((local.problem.tensors[index].packing, index) for index in offloaded)
        free_ns = 0
        for step, index in sorted((packing.step, index) for packing, index in packings if packing):
            free_ns = max(free_ns, sum(self._problem.times_ns[first:step])) + local.copy_ns[index]
        return max(0, free_ns - sum(self._problem.times_ns[first:end]))

    def _back_ahead_ns(self, local: LocalProblem, timeline: Timeline) -> int:
        """What of the copies back has to be done when the window begins; each is asked for at a time of its own."""
        asked_ns: Counter[Point] = Counter()
        for copy in timeline.traffic.copies:
            asked_ns[Point(step=copy.back_step, replay=copy.back_replay)] += local.copy_ns[copy.tensor]
        passed_ns = copied_ns = ahead_ns = 0
        for point in timeline.points if asked_ns else ():
            copied_ns += asked_ns[point]
            ahead_ns = max(ahead_ns, copied_ns - passed_ns)
            if point.replay is not None:
                passed_ns += local.problem.ops[point.replay].cost_ns
            elif point.step > local.early:
                step = self._cell.window[0] + point.step - local.early - 1
                passed_ns += sum(self._problem.times_ns[step : step + 1])
        return ahead_ns


def _most_bytes(local: LocalProblem) -> int:
    """More than is ever alive."""
    copies = 2  # kept and replayed
    sizes = sum(copies * t.size_bytes for t in local.problem.tensors)
    return max(local.problem.base_bytes) + sizes + sum(op.scratch_bytes for op in local.problem.ops)


def _stairs(prices: Prices, amount: Amount) -> tuple[Stairs, ...]:
    return tuple(stairs for stairs in prices.stairs if stairs.amount is amount)


def _add_stairs(
    model: RetentionModel, stairs: Stairs, size_bytes: Any, *, least_bytes: int, most_bytes: int
) -> tuple[Any, float]:
    """What the steps of an amount cost: an expression, in parts of a ns, and in ns what comes on top in any case.

    Steps are counted from the fewest that the amount can come to, so that rounding a price down makes them no dearer.
    With q whole steps and r units beyond what is free:  amount − reference ≤ g·q + f + unit·(r + 1) − 1.
    """
    rise_bytes, free_bytes = stairs.rounding.rise_bytes, stairs.rounding.free_bytes
    fewest = (least_bytes - stairs.reference_bytes) // rise_bytes
    most = (most_bytes - stairs.reference_bytes) // rise_bytes + 1
    whole = model.cp.new_int_var(0, most - fewest, "steps")
    beyond = model.cp.new_int_var(0, rise_bytes // _PEAK_UNIT_BYTES + 1, "beyond")
    room = rise_bytes * (whole + fewest) + free_bytes + _PEAK_UNIT_BYTES * beyond + (_PEAK_UNIT_BYTES - 1)
    model.cp.add(size_bytes - stairs.reference_bytes <= room)
    unit_ns = stairs.price_ns * _PEAK_UNIT_BYTES / (rise_bytes - free_bytes)
    cost = math.floor(_NS_PARTS * stairs.price_ns) * whole + math.floor(_NS_PARTS * unit_ns) * beyond
    return cost, stairs.price_ns * fewest


def _moving_ns(prices: Prices, local: LocalProblem, index: int) -> float:
    """What it costs to have a tensor on the host."""
    tensor, copy_ns = local.problem.tensors[index], local.copy_ns[index]
    out = 0.0 if index in local.packed_long_before else prices.out
    out += 0.0 if index in local.packed_before else prices.out_inside
    back = prices.back + (prices.back_inside if tensor.uses else 0.0)
    return copy_ns * (out + back) + host_bytes(tensor.size_bytes) * prices.host


def _given(local: LocalProblem) -> frozenset[int]:
    """What is there without a decision: links that leave and shared tensors."""
    return frozenset(t.index for t in local.problem.tensors[local.owned :] if t.must_keep)


def _kinds(entering: Demand, leaving: Demand) -> tuple[Demand, Demand]:
    """Demands that make the same local problem: early ones are late ones there."""
    return tuple(Demand.LATE if demand.is_demanded else demand for demand in (entering, leaving))  # type: ignore[return-value]


class _Part(Enum):
    """Of a window: until the links that enter have been demanded, from then on, or all of it."""

    BEFORE = "before"
    AFTER = "after"
    ALL = "all"


_Moments = list[tuple[Point, int]]


def _split(timeline: Timeline, local: LocalProblem) -> tuple[_Moments, _Moments]:
    """The moments of the window before and after the replay of the cell before; all are before it if there is none."""
    moments = list(zip(timeline.points, timeline.live_bytes, strict=True))
    is_demanding = bool(local.problem.ops) and local.demands_entering
    demand = next(
        (place for place, (point, _) in enumerate(moments) if is_demanding and point.replay == 0), len(moments)
    )
    return (
        [moment for moment in moments[:demand] if moment[0].step > local.early],
        [moment for moment in moments[demand:] if moment[0].step > local.early],
    )


def _solver(deadline: float) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = _SEED
    solver.parameters.max_deterministic_time = _CELL_WORK
    solver.parameters.max_time_in_seconds = max(0.0, deadline - time.monotonic())
    solver.parameters.catch_sigint_signal = False
    # The full linear relaxation proves a cell 2 to 4 times as fast as the default; probing takes longer than it saves.
    solver.parameters.linearization_level = 2
    solver.parameters.cp_model_probing_level = 0
    return solver


def _check_work(solver: cp_model.CpSolver, status: int, deadline: float) -> None:
    """What the deadline has cut short must not be remembered; what its work has ended is the same every time.

    The clock does not tell: CP-SAT stops before the deadline if what it does next may take longer.

    Raises:
        OutOfTime: the deadline has ended the search.
    """
    is_ended = status not in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    if is_ended and deadline < NEVER and solver.response_proto.deterministic_time < _WORK_DONE * _CELL_WORK:
        raise OutOfTime


def _round(price: float) -> float:
    return float(f"{price:.{_PRICE_DIGITS}g}")
