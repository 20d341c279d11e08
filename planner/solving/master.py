"""The master problem: one option per cell, as a linear program whose dual proves a bound.

Legend
    x[j,o]  share of option o in cell j
    S[j]    bytes held from forward by the cells before j; N[j] those of them that forward would not have anyway
    B       the budget;  W[j], F[j] what no plan changes at the start of cell j's window, and at its forward moment
    Y, Z    time waited for copies out, and for copies back
    L[j]    time of the copies out of cell j and later ones that begin no earlier than in the cell before their own
    K[j]    time of their copies back, less the replays that hide them; R: replays that may run before their cells

    minimize    Σ replay[o]·x[j,o] + Y + Z
    subject to  Σ x[j,o] = 1                                               one option per cell
                S[j+1] = S[j] + Σ held[o]·x[j,o],  N[j+1] = N[j] + Σ (held[o] − lasting[o])·x[j,o]
                N[j] + Σ moment[o]·x[j,o] + F[j] ≤ B
                Σ (held[o] − outliving[o])·x[j,o] + E ≤ B                  E: what no plan changes when forward ends
    and for every cell but the last
                S[j] + Σ window[o,j]·x[j,o] + W[j] ≤ B                     window: `Option.window_bytes`, the peak with
                                                                           relief where o demands what enters
    and for the last
                S[last] + Σ first_peak[o]·x[last,o] + W[last] ≤ B
                S[last] + Σ last[o]·x[last,o] + Σ (early[o] − held[o])·x[j,o] + W[last] ≤ B     over o demanded EARLY
                                                                           last: `first_peak` if o demands LATE,
                                                                           `later_peak` if EARLY, otherwise `peak`
    and
                Σ x[j, demanded] = Σ x[j+1, demands]                       for LATE, for EARLY, and for UNUSED
                L[j] = L[j+1] + Σ out[o]·x[j,o]
                L[j+1] + Σ out_inside[o]·x[j,o] ≤ time left in forward at the start of cell j + Y
                K[j] = K[j+1] + Σ (copies[o] − replay[o])·x[j,o]           replay only where o is not demanded: R has it
                K[j+1] + Σ (back_inside[o] − replay[o])·x[j,o] ≤ V[j] + R + Z
                                                                           V[j]: from the first unpack to the end of
                                                                           cell j's window
                Σ host[o]·x[j,o] ≤ the host budget

    and, where shares of options leave the bound too low, rows of windows in steps; see `planner.solving.rounding`

Options are generated where the duals (the price of a byte at each moment) say that one could help; when none can, the
value of the program is a bound for every plan. What the bound assumes and leaves out is only ever in a plan's favour:
shared tensors take what they do under any plan, and a replay that runs back through several cells meets no limit but
the last cell's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from ortools.linear_solver import pywraplp

from planner.solving.cells import Chain, Demand
from planner.solving.deadline import OutOfTime, check
from planner.solving.options import Amount, Option, Prices, Stairs, Template
from planner.solving.rounding import RoundedRow, Rounding, broken_rows

# The program counts bytes in GB and time in thousandths of all that a plan could add, so that its numbers are near 1.
_GB = 1e9
_TIME_PARTS = 1_000
# A GB over the budget costs so many times all that a plan could add: more than staying within it could.
_EXCESS_PRICE = 10
# Reduced costs below this share of the objective are noise.
_NOISE = 1e-7
# How far the floating-point solution can be off, as a share of the bound; it is taken off what is claimed.
_BOUND_TOLERANCE = 1e-6
# Shares of the average price of a byte at which a template's first options are made, the most different ones first.
_FIRST_HELD_PRICES = (1000.0, 1.0, 0.35, 2.5, 0.1, 20.0, 0.5, 1.5, 0.2, 5.0, 0.75, 0.0)
_FIRST_PEAK_PRICES = (0.3, 1.0, 3.0)
# Shares of a ns that a ns of copies, each way, costs in the first options that use the link.
_FIRST_COPY_PRICES = (0.05, 0.2, 0.5)

# So many rounded rows are added at a time, those that the answer breaks by most bytes.
_ROUNDED_ROWS = 24

_CHAINED = (
    (Demand.LATE, Demand.NONE),
    (Demand.NONE, Demand.LATE),
    (Demand.LATE, Demand.LATE),
    (Demand.NONE, Demand.EARLY),
    (Demand.LATE, Demand.EARLY),
    (Demand.EARLY, Demand.EARLY),
    (Demand.UNUSED, Demand.NONE),
    (Demand.NONE, Demand.UNUSED),
    (Demand.UNUSED, Demand.UNUSED),
    (Demand.UNUSED, Demand.LATE),
    (Demand.LATE, Demand.UNUSED),
    (Demand.UNUSED, Demand.EARLY),
)
_CHAINED_LAST = ((Demand.LATE, Demand.NONE), (Demand.EARLY, Demand.NONE), (Demand.UNUSED, Demand.NONE))
_PLAIN = ((Demand.NONE, Demand.NONE),)


class Pool:
    """The options found so far for each template, and what early replays can relieve. Serves any budget.

    Args:
        chain: the cells.
        templates: by name, as the cells name them.
        replay_ns, copy_ns: of all ops, and of all tensors that may lie on the host.
        sizes_bytes: of the tensors.
        host_budget_bytes: what the host has room for.

    Attributes:
        is_prepared: whether all of the first options are there.
    """

    def __init__(
        self,
        chain: Chain,
        templates: Mapping[int, Template],
        *,
        replay_ns: int,
        copy_ns: int,
        sizes_bytes: Sequence[int],
        host_budget_bytes: int,
    ) -> None:
        self.host_budget_bytes = host_budget_bytes
        self.chain = chain
        self.templates = templates
        self.most_ns = replay_ns + 2 * copy_ns  # no plan adds more
        self.relief_bytes = (0,) * len(chain.cells)
        self.sizes_bytes = frozenset(sizes_bytes)
        self._price_ns = replay_ns / max(1, sum(sizes_bytes))
        self._has_link = copy_ns > 0
        self._options: dict[int, dict[Option, None]] = {name: {} for name in templates}
        self.is_prepared = False

    def prepare(self, deadline: float) -> None:
        """Find each template's first options, and what early replays can relieve; once is enough.

        Raises:
            OutOfTime: the deadline passed. There are options of every template, but maybe few, and nothing is proven
                with them. The next call goes on from here.
        """
        if self.is_prepared:
            return
        held_ns = [self._price_ns * share for share in _FIRST_HELD_PRICES]
        first = [Prices(held=price_ns, out=1.0) for price_ns in held_ns]  # at such a price nothing is copied
        first += [Prices(held=0.0, peak=self._price_ns * share, out=1.0) for share in _FIRST_PEAK_PRICES]
        for copy_price in _FIRST_COPY_PRICES if self._has_link else ():
            first += [Prices(held=price_ns, out=copy_price) for price_ns in held_ns]
        for name, template in self.templates.items():
            self.add(name, template.saved())
        for prices in first:
            for name, template in self.templates.items():
                found = template.price(prices, deadline=deadline)
                if found is not None:
                    self.add(name, found.option)
        self.relief_bytes = self._relief(deadline)
        self.is_prepared = True

    def copy(self) -> "Pool":
        """A pool of its own with the same options; templates remember what they have priced."""
        other = copy(self)
        other._options = {name: dict(options) for name, options in self._options.items()}
        return other

    def add(self, template: int, option: Option) -> None:
        """Remember an option of a template."""
        self._options[template][option] = None

    def options(self, template: int) -> tuple[Option, ...]:
        """All options of a template, in the order they were found."""
        return tuple(self._options[template])

    def _relief(self, deadline: float) -> tuple[int, ...]:
        """Per cell, the most that early replays in a chain of cells before it can relieve its window of."""
        begin = {name: t.largest_relief_bytes(continues=False, deadline=deadline) for name, t in self.templates.items()}
        go_on = {name: t.largest_relief_bytes(continues=True, deadline=deadline) for name, t in self.templates.items()}
        found = []
        highest = total = 0
        for cell in self.chain.cells:
            found.append(highest + total)
            highest = max(highest, begin[cell.template])
            total += go_on[cell.template]
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A row of the program: of the peak in a cell's window, or in the first part of the last one's."""

    place: int
    is_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedWindow:
    """The same row in steps; see `planner.solving.rounding`."""

    window: Window
    row: RoundedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """An option in a cell, and how much dearer a plan with it is than the bound, in ns."""

    option: Option
    reduced_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """The linear program's answer.

    Attributes:
        value_ns: of the program over the options found.
        bound_ns: no plan within the budget replays for less.
        excess_bytes: by how much the options found miss the budget.
        columns: per cell, its options.
        shares: per cell, the options with a positive share.
        support: the same by template, with the sums of their shares.
        windows: those whose peak it is up against, in one row of theirs or another.
        rounded: the rounded rows that it is up against.
        host_price: of a byte on the host, in ns.
        byte_price: of a byte of the budget, in ns.
        out_wait_ns, back_wait_ns: what a ns of waiting for copies adds beyond the time that it gives to them.
        peak_prices: per template, the lowest and the highest price in ns of a byte at the peak of one of its windows.
    """

    value_ns: float
    bound_ns: float
    excess_bytes: float
    columns: tuple[tuple[Column, ...], ...]
    shares: tuple[Mapping[Option, float], ...]
    support: Mapping[int, Mapping[Option, float]]
    windows: tuple[Window, ...]
    rounded: tuple[RoundedWindow, ...]
    host_price: float
    byte_price: float
    out_wait_ns: float
    back_wait_ns: float
    peak_prices: Mapping[int, frozenset[float]]


class Master:
    """The linear program for one budget; options found are added to the pool.

    Args:
        pool: the options so far.
        budget_bytes: limit at every moment.
        rounded: rounded rows to begin with, found for the same budget.
    """

    def __init__(self, pool: Pool, budget_bytes: int, rounded: Iterable["RoundedWindow"] = ()) -> None:
        self._pool = pool
        self._unit_ns = max(1, pool.most_ns) / _TIME_PARTS
        self._cells = pool.chain.cells
        self._last = len(self._cells) - 1
        self._lp = pywraplp.Solver.CreateSolver("CLP")
        infinity = self._lp.infinity()
        self._objective = self._lp.Objective()
        self._objective.SetMinimization()
        self._excess = self._lp.NumVar(0, infinity, "excess")
        self._objective.SetCoefficient(self._excess, _EXCESS_PRICE * _TIME_PARTS)
        held = [self._lp.NumVar(0, infinity, f"S{j}") for j in range(len(self._cells) + 1)]
        new = [self._lp.NumVar(0, infinity, f"N{j}") for j in range(len(self._cells) + 1)]
        for nothing in (held[0], new[0]):
            nothing.SetUb(0)
        self._one = [self._lp.Constraint(1, 1) for _ in self._cells]
        self._hold = [self._lp.Constraint(0, 0) for _ in self._cells]
        self._hold_forward = [self._lp.Constraint(0, 0) for _ in self._cells]
        rooms = [(budget_bytes - base) / _GB for base in pool.chain.window_start_bytes]
        self._peak = [self._lp.Constraint(-infinity, room) for room in rooms]
        self._first = self._lp.Constraint(-infinity, rooms[-1])
        self._flow = {demand: [self._lp.Constraint(0, 0) for _ in self._cells[1:]] for demand in Demand if demand}
        for j in range(len(self._cells)):
            self._hold[j].SetCoefficient(held[j + 1], 1)
            self._hold[j].SetCoefficient(held[j], -1)
            self._hold_forward[j].SetCoefficient(new[j + 1], 1)
            self._hold_forward[j].SetCoefficient(new[j], -1)
        for row, bytes_held in zip((*self._peak, self._first), (*held[:-1], held[-2]), strict=True):
            row.SetCoefficient(bytes_held, 1)
            row.SetCoefficient(self._excess, -1)
        self._moment = []
        for bytes_new, base in zip(new, pool.chain.forward_base_bytes, strict=False):
            row = self._lp.Constraint(-infinity, (budget_bytes - base) / _GB)
            row.SetCoefficient(bytes_new, 1)
            row.SetCoefficient(self._excess, -1)
            self._moment.append(row)
        self._end = self._lp.Constraint(-infinity, (budget_bytes - pool.chain.forward_end_bytes) / _GB)
        self._end.SetCoefficient(self._excess, -1)
        self._columns: list[dict[Option, Any]] = [{} for _ in self._cells]
        self._budget_bytes = budget_bytes
        self._rounded: dict[RoundedWindow, Any] = {}
        self._add_link(pool.chain)
        for window in rounded:
            self._add_rounded(window)

    def _add_link(self, chain: Chain) -> None:
        infinity = self._lp.infinity()
        waits = [self._lp.NumVar(0, infinity, name) for name in ("Y", "Z")]
        for wait in waits:
            self._objective.SetCoefficient(wait, 1)
        demanded = self._lp.NumVar(0, infinity, "R")
        self._demanded = self._lp.Constraint(0, 0)
        self._demanded.SetCoefficient(demanded, 1)
        self._host = self._lp.Constraint(-infinity, self._pool.host_budget_bytes / _GB)
        self._leave = [self._lp.Constraint(0, 0) for _ in self._cells]
        self._return = [self._lp.Constraint(0, 0) for _ in self._cells]
        self._out = [self._lp.Constraint(-infinity, left / self._unit_ns) for left in chain.forward_left_ns]
        self._back = [self._lp.Constraint(-infinity, passed / self._unit_ns) for passed in chain.backward_passed_ns]
        leaving = [self._lp.NumVar(0, infinity, f"L{j}") for j in range(len(self._cells) + 1)]
        coming = [self._lp.NumVar(-infinity, infinity, f"K{j}") for j in range(len(self._cells) + 1)]
        for nothing in (leaving[-1], coming[-1]):
            nothing.SetBounds(0, 0)
        for j in range(len(self._cells)):
            for rows, sums in ((self._leave, leaving), (self._return, coming)):
                rows[j].SetCoefficient(sums[j], 1)
                rows[j].SetCoefficient(sums[j + 1], -1)
            self._out[j].SetCoefficient(leaving[j + 1], 1)
            self._out[j].SetCoefficient(waits[0], -1)
            self._back[j].SetCoefficient(coming[j + 1], 1)
            self._back[j].SetCoefficient(waits[1], -1)
            self._back[j].SetCoefficient(demanded, -1)

    def tighten(self, relaxed: Relaxed) -> bool:
        """Add rounded rows that its answer breaks; say whether there are any. No plan breaks them."""
        broken = [(*one, window) for window in relaxed.windows for one in self._broken(window, relaxed.shares)]
        broken.sort(key=lambda one: -one[0])
        before = len(self._rounded)
        for _, row, window in broken[:_ROUNDED_ROWS]:
            self._add_rounded(RoundedWindow(window=window, row=row))
        return len(self._rounded) > before

    def _broken(self, window: "Window", shares: Sequence[Mapping[Option, float]]) -> list[tuple[float, RoundedRow]]:
        """The rounded forms of a window's row that such shares break."""
        terms: list[dict[int, float]] = []
        for j in range(window.place + 1):
            sums: dict[int, float] = {}
            for option, share in shares[j].items():
                size_bytes = self._term_bytes(window, j, option)
                sums[size_bytes] = sums.get(size_bytes, 0.0) + share
            terms.append(sums)
        return broken_rows(
            terms,
            [*(cell.template for cell in self._cells[: window.place]), "its own window"],
            self._budget_bytes - self._pool.chain.window_start_bytes[window.place],
            rises_bytes=self._pool.sizes_bytes,
        )

    def _add_rounded(self, rounded: "RoundedWindow") -> None:
        if rounded in self._rounded:
            return
        rounding = rounded.row.rounding
        row = self._lp.Constraint(-self._lp.infinity(), rounded.row.most_steps)
        # No step costs less: over the budget, this row allows no less than the one that it comes from.
        row.SetCoefficient(self._excess, -_GB / (rounding.rise_bytes - rounding.free_bytes))
        self._rounded[rounded] = row
        for j in range(rounded.window.place + 1):
            for option, share in self._columns[j].items():
                row.SetCoefficient(share, self._steps(rounded, j, option))

    def _steps(self, rounded: "RoundedWindow", j: int, option: Option) -> float:
        return rounded.row.steps(j, self._term_bytes(rounded.window, j, option)) if j <= rounded.window.place else 0.0

    def relax(self, *, tolerance: float, deadline: float) -> Relaxed:
        """Generate options until the bound is within the tolerance of the program's value, or the deadline passes."""
        self._take_pool()
        bound_ns = 0.0
        with_chains = False
        while True:
            self._solve()
            value_ns = self._objective.Value() * self._unit_ns
            excess_bytes = self._excess.solution_value() * _GB
            # Read at once: options that are added to the program leave it without an answer.
            duals = _Duals.read(self)
            shares = tuple(
                {option: share for option, variable in columns.items() if (share := variable.solution_value()) > _NOISE}
                for columns in self._columns
            )
            try:
                lowest_ns, is_new = self._generate(duals, value_ns, with_chains=with_chains, deadline=deadline)
            except OutOfTime:  # what is found until then is kept; it proves nothing
                break
            if with_chains:
                bound_ns = max(bound_ns, (value_ns + lowest_ns) * (1 - _BOUND_TOLERANCE))
            is_tight = value_ns + lowest_ns >= value_ns * (1 - tolerance)
            if with_chains and (is_tight or not is_new):
                break
            with_chains = with_chains or is_tight or not is_new
        columns = tuple(
            tuple(Column(option=o, reduced_ns=self._reduced(duals, j, o, o.price_ns)) for o in self._columns[j])
            for j in range(len(self._cells))
        )
        return Relaxed(
            value_ns=value_ns,
            bound_ns=bound_ns,
            excess_bytes=excess_bytes,
            columns=columns,
            shares=shares,
            support=self._support(shares),
            windows=tuple(dict.fromkeys((*duals.windows, *(rounded.window for rounded in duals.steps_ns)))),
            rounded=tuple(duals.steps_ns),
            host_price=duals.host,
            byte_price=duals.first + sum(duals.peak),
            out_wait_ns=max(0.0, 1.0 - sum(duals.out)),
            back_wait_ns=max(0.0, 1.0 - sum(duals.back)),
            peak_prices=self._peak_prices(duals),
        )

    def _peak_prices(self, duals: "_Duals") -> dict[int, frozenset[float]]:
        found: dict[int, set[float]] = {}
        for j, cell in enumerate(self._cells):
            prices = self._prices(duals, j, Demand.NONE, Demand.NONE)
            found.setdefault(cell.template, set()).add(prices.peak + prices.first_peak)
        return {template: frozenset({min(prices), max(prices)}) for template, prices in found.items()}

    def _solve(self) -> None:
        """Solve the program, from its last basis if that leads anywhere."""
        if self._lp.Solve() == pywraplp.Solver.OPTIMAL:
            return
        afresh = pywraplp.MPSolverParameters()
        afresh.SetIntegerParam(afresh.INCREMENTALITY, afresh.INCREMENTALITY_OFF)
        for algorithm in (afresh.PRIMAL, afresh.DUAL):
            afresh.SetIntegerParam(afresh.LP_ALGORITHM, algorithm)
            if self._lp.Solve(afresh) == pywraplp.Solver.OPTIMAL:
                return
        raise AssertionError("the master program has a solution: everything may exceed the budget")

    def _take_pool(self) -> None:
        for j, cell in enumerate(self._cells):
            for option in self._pool.options(cell.template):
                self._add(j, option)

    def _support(self, shares: Sequence[Mapping[Option, float]]) -> dict[int, dict[Option, float]]:
        found: dict[int, dict[Option, float]] = {}
        for cell, of_cell in zip(self._cells, shares, strict=True):
            sums = found.setdefault(cell.template, {})
            for option, share in of_cell.items():
                sums[option] = sums.get(option, 0.0) + share
        return found

    def _add(self, j: int, option: Option) -> bool:
        """Add an option to a cell, unless it is there or its demands cannot be met; say whether it was added."""
        demands = (option.entering, option.leaving)
        if option in self._columns[j] or demands not in self._possible(j):
            return False
        share = self._lp.NumVar(0, self._lp.infinity(), "")
        self._objective.SetCoefficient(share, option.replay_ns / self._unit_ns)
        self._one[j].SetCoefficient(share, 1)
        self._hold[j].SetCoefficient(share, -option.held_bytes / _GB)
        self._hold_forward[j].SetCoefficient(share, (option.lasting_bytes - option.held_bytes) / _GB)
        self._moment[j].SetCoefficient(share, option.moment_bytes / _GB)
        self._end.SetCoefficient(share, (option.held_bytes - option.outliving_bytes) / _GB)
        self._peak[j].SetCoefficient(share, self._term_bytes(Window(place=j), j, option) / _GB)
        if j == self._last:
            self._first.SetCoefficient(share, option.first_peak_bytes / _GB)
        for rounded, row in self._rounded.items():
            row.SetCoefficient(share, self._steps(rounded, j, option))
        self._add_copies(j, option, share)
        if option.entering:
            self._flow[option.entering][j - 1].SetCoefficient(share, -1)
        if option.leaving:
            self._flow[option.leaving][j].SetCoefficient(share, 1)
        if option.leaving is Demand.EARLY:
            self._peak[self._last].SetCoefficient(share, (option.early_bytes - option.held_bytes) / _GB)
        self._columns[j][option] = share
        return True

    def _add_copies(self, j: int, option: Option, share: Any) -> None:
        hiding_ns = 0 if option.leaving.is_demanded else option.replay_ns
        self._leave[j].SetCoefficient(share, -option.out_ns / self._unit_ns)
        self._out[j].SetCoefficient(share, option.out_inside_ns / self._unit_ns)
        self._return[j].SetCoefficient(share, (hiding_ns - option.copy_ns) / self._unit_ns)
        self._back[j].SetCoefficient(share, (option.back_inside_ns - hiding_ns) / self._unit_ns)
        self._demanded.SetCoefficient(share, (hiding_ns - option.replay_ns) / self._unit_ns)
        self._host.SetCoefficient(share, option.host_bytes / _GB)

    def _term(self, window: Window, j: int, entering: Demand, leaving: Demand) -> Amount:
        """What options of a cell put into the row of a window: of the same cell, or of a later one."""
        if j < window.place:
            is_early = window.place == self._last and not window.is_first and leaving is Demand.EARLY
            return Amount.EARLY if is_early else Amount.HELD
        if j < self._last or not entering.is_demanded:
            return Amount.PEAK
        return Amount.FIRST_PEAK if window.is_first or entering is Demand.LATE else Amount.LATER_PEAK

    def _term_bytes(self, window: Window, j: int, option: Option) -> int:
        term = self._term(window, j, option.entering, option.leaving)
        return option.amount_bytes(term, self._relief(j, option.entering))

    def _relief(self, j: int, entering: Demand) -> int:
        return self._pool.relief_bytes[j] if entering.is_demanded and j < self._last else 0

    def _generate(self, duals: "_Duals", value_ns: float, *, with_chains: bool, deadline: float) -> tuple[float, bool]:
        """Price every cell; the sum of the lowest reduced costs in ns, and whether any option is new."""
        check(deadline)
        lowest_ns = 0.0
        is_new = False
        for j, cell in enumerate(self._cells):
            template = self._pool.templates[cell.template]
            lowest_here = 0.0
            for entering, leaving in self._possible(j) if with_chains else _PLAIN:
                prices = self._prices(duals, j, entering, leaving)
                priced = template.price(prices, entering, leaving, deadline=deadline)
                if priced is None:
                    continue
                option = priced.option
                bound_ns = priced.bound_ns
                lowest_here = min(lowest_here, self._reduced(duals, j, option, lambda _, b=bound_ns: b))  # type: ignore[misc]
                if self._reduced(duals, j, option, option.price_ns) < -_NOISE * max(self._unit_ns, value_ns):
                    is_new |= self._share(cell.template, j, option)
            lowest_ns += lowest_here
        return lowest_ns, is_new

    def _share(self, template: int, j: int, option: Option) -> bool:
        """Give an option to every cell of its template; say whether it is new in the cell that asked for it."""
        self._pool.add(template, option)
        is_new = False
        for place, cell in enumerate(self._cells):
            if cell.template == template:
                is_new |= self._add(place, option) and place == j
        return is_new

    def _possible(self, j: int) -> tuple[tuple[Demand, Demand], ...]:
        """The demands that an option can have in a cell: nothing lies before the first, nothing after the last."""
        template = self._pool.templates[self._cells[j].template]
        return tuple(
            (entering, leaving)
            for entering, leaving in (*_PLAIN, *(_CHAINED_LAST if j == self._last else _CHAINED))
            if (not entering or (j > 0 and template.can_demand))
            and (not leaving or template.can_be_demanded)
            and (entering is not Demand.UNUSED or template.can_leave_unused)
            and (leaving is not Demand.UNUSED or self._pool.templates[self._cells[j + 1].template].can_leave_unused)
        )

    def _prices(self, duals: "_Duals", j: int, entering: Demand, leaving: Demand) -> Prices:
        stairs: dict[tuple[Amount, Rounding, int], float] = {}
        for rounded, price_ns in duals.steps_ns.items():
            if j <= rounded.window.place:
                term = self._term(rounded.window, j, entering, leaving)
                key = (term, rounded.row.rounding, rounded.row.references_bytes[j])
                stairs[key] = stairs.get(key, 0.0) + price_ns
        return replace(
            duals.prices(j, entering, leaving, relief_bytes=self._relief(j, entering)),
            stairs=tuple(
                Stairs(amount=amount, rounding=rounding, reference_bytes=reference_bytes, price_ns=price_ns)
                for (amount, rounding, reference_bytes), price_ns in stairs.items()
            ),
        ).rounded()

    def _reduced(self, duals: "_Duals", j: int, option: Option, price: Callable[[Prices], float]) -> float:
        """The reduced cost in ns of an option (or of anything with such demands) in a cell."""
        reduced = price(self._prices(duals, j, option.entering, option.leaving)) - duals.one_ns[j]
        if option.entering:
            reduced += duals.flow_ns[option.entering][j - 1]
        if option.leaving:
            reduced -= duals.flow_ns[option.leaving][j]
        return reduced


@dataclass(frozen=True, slots=True, kw_only=True)
class _Duals:
    """What the program's constraints are worth: ns, or ns per byte."""

    one_ns: Sequence[float]
    hold: Sequence[float]
    hold_forward: Sequence[float]
    end: float
    moment: Sequence[float]
    first: float
    peak: Sequence[float]
    windows: tuple[Window, ...]
    steps_ns: Mapping[RoundedWindow, float]
    flow_ns: Mapping[Demand, Sequence[float]]
    leave: Sequence[float]
    out: Sequence[float]
    come: Sequence[float]
    back: Sequence[float]
    host: float

    @staticmethod
    def read(master: Master) -> "_Duals":
        def values(rows: Sequence[Any], scale: float) -> tuple[float, ...]:
            return tuple(row.dual_value() * scale for row in rows)

        per_byte = master._unit_ns / _GB
        rows = {Window(place=j): row for j, row in enumerate(master._peak)}
        rows[Window(place=master._last, is_first=True)] = master._first
        return _Duals(
            one_ns=values(master._one, master._unit_ns),
            hold=tuple(max(0.0, price) for price in values(master._hold, per_byte)),
            hold_forward=tuple(max(0.0, price) for price in values(master._hold_forward, per_byte)),
            end=max(0.0, -master._end.dual_value() * per_byte),
            moment=tuple(max(0.0, -price) for price in values(master._moment, per_byte)),
            first=max(0.0, -master._first.dual_value() * per_byte),
            peak=tuple(max(0.0, -price) for price in values(master._peak, per_byte)),
            windows=tuple(window for window, row in rows.items() if row.dual_value() < -_NOISE),
            steps_ns={
                one: -row.dual_value() * master._unit_ns
                for one, row in master._rounded.items()
                if row.dual_value() < -_NOISE
            },
            flow_ns={demand: values(rows, master._unit_ns) for demand, rows in master._flow.items()},
            leave=tuple(max(0.0, price) for price in values(master._leave, 1.0)),
            out=tuple(max(0.0, -price) for price in values(master._out, 1.0)),
            come=tuple(max(0.0, price) for price in values(master._return, 1.0)),
            back=tuple(max(0.0, -price) for price in values(master._back, 1.0)),
            host=max(0.0, -master._host.dual_value() * per_byte),
        )

    def prices(self, j: int, entering: Demand, leaving: Demand, *, relief_bytes: int) -> Prices:
        """The price of a byte in a cell."""
        is_last = j == len(self.peak) - 1
        is_late = is_last and entering is Demand.LATE
        is_early = is_last and entering is Demand.EARLY
        return Prices(
            held=self.hold[j],
            forward=self.hold_forward[j],
            end=self.end,
            moment=self.moment[j],
            peak=0.0 if is_late or is_early else self.peak[j],
            first_peak=(self.first if is_last else 0.0) + (self.peak[j] if is_late else 0.0),
            later_peak=self.peak[j] if is_early else 0.0,
            early=self.peak[-1] if leaving is Demand.EARLY else 0.0,
            out=self.leave[j],
            out_inside=self.out[j],
            back=self.come[j],
            back_inside=self.back[j],
            host=self.host,
            replay=max(0.0, 1.0 - self.come[j] - self.back[j]),
            demanded_replay=max(0.0, 1.0 - sum(self.back)),
            relief_bytes=relief_bytes,
        )
