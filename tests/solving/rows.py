"""A plan as one option per cell, and whether every row of the master program holds for it."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import pytest

from planner.problem import Problem
from planner.simulation.liveness import Timeline, demand_schedule, ideal_timeline
from planner.solving import master
from planner.solving.cells import Chain, Demand
from planner.solving.deadline import NEVER
from planner.solving.master import Master, Pool, RoundedWindow, Window
from planner.solving.options import Option, Template, _split
from planner.solving.rounding import RoundedRow
from planner.solving.search import without_idle_anchors


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The master program of a chain without any options, to try plans on."""

    problem: Problem
    chain: Chain
    pool: Pool

    @staticmethod
    def of(problem: Problem, chain: Chain) -> "Rows":
        last = chain.cells[-1].template
        templates = {c.template: Template(chain.problem, c, is_last=c.template == last) for c in reversed(chain.cells)}
        link = problem.link
        copies_ns = [link.copy_ns(t.size_bytes) for t in problem.tensors if t.packing and link]
        with pytest.MonkeyPatch.context() as patch:
            for name in ("_FIRST_HELD_PRICES", "_FIRST_PEAK_PRICES", "_FIRST_COPY_PRICES"):
                patch.setattr(master, name, ())
            pool = Pool(
                chain,
                templates,
                replay_ns=sum(op.cost_ns for op in problem.ops),
                copy_ns=sum(copies_ns),
                sizes_bytes=[tensor.size_bytes for tensor in problem.tensors],
                host_budget_bytes=link.budget_bytes if link else 0,
            )
            pool.prepare(NEVER)  # no options, but what early replays relieve
        return Rows(problem=problem, chain=chain, pool=pool)

    def options(self, kept: Set[int], offloaded: Set[int]) -> tuple[Option, ...]:
        """What the plan decides in each cell, with what replays demand across the borders."""
        problem, cells = self.problem, self.chain.cells
        kept = without_idle_anchors(problem, frozenset(kept))
        replayed = {op for ops in demand_schedule(problem, kept).values() for op in ops}
        states: list[Demand] = []  # of the links that leave each cell
        for place, cell in enumerate(cells[:-1]):
            free = [problem.tensors[t] for t in cell.leaving if not problem.tensors[t].must_keep]
            if not free or free[0].index in kept:
                states.append(Demand.NONE)
                continue
            first, end = cells[place + 1].window
            is_unpacked = any(first <= unpack < end for unpack, _ in free[0].uses)
            bounds = cells[place + 1].ops
            is_read = any(bounds[0] <= op < bounds[1] and op in replayed for op in free[0].consumers)
            states.append(Demand.LATE if is_unpacked or is_read else Demand.UNUSED)
        found: list[Option] = []
        leaving = Demand.NONE
        for place in reversed(range(len(cells))):
            entering = states[place - 1] if place else Demand.NONE
            option = self._measure(place, kept, offloaded, entering, leaving)
            if entering is Demand.LATE and self._is_early(place, option):
                option = self._measure(place, kept, offloaded, Demand.EARLY, leaving)
            found.insert(0, option)
            leaving = option.entering
        return tuple(found)

    def _measure(self, place: int, kept: Set[int], offloaded: Set[int], entering: Demand, leaving: Demand) -> Option:
        cell, template = self.chain.cells[place], self.pool.templates[self.chain.cells[place].template]
        local, _ = template._local(entering, leaving)
        here = {p for p, t in enumerate(cell.tensors) if t in kept and local.problem.tensors[p].may_keep}
        here |= local.problem.must_keep
        gone = {p for p, t in enumerate(cell.tensors) if t in offloaded and local.problem.tensors[p].packing}
        return template._measure(frozenset(here), frozenset(gone), entering, leaving)

    def _is_early(self, place: int, option: Option) -> bool:
        """Whether what enters is demanded no later than the critical moment of the last cell."""
        template = self.pool.templates[self.chain.cells[place].template]
        if option.leaving is Demand.EARLY:
            return option.demands_early
        if place < len(self.chain.cells) - 1:
            return False
        local, _ = template._local(option.entering, option.leaving)
        kept = option.kept | frozenset(t.index for t in local.problem.tensors[local.owned :] if t.must_keep)
        timeline = ideal_timeline(local.problem, kept, option.offloaded)
        assert template._critical is not None
        before, _ = _split(timeline, local)
        return template._critical not in [point for point, _ in before]

    def broken(self, options: tuple[Option, ...], timeline: Timeline, ideal: Timeline) -> list[str]:
        """The rows that the plan does not fulfil for a budget of its own ideal peak."""
        lp = Master(self.pool, ideal.peak_bytes)
        for place, option in enumerate(options):
            if not lp._add(place, option):
                return [f"demands of cell {place}: {option.entering} {option.leaving}"]
        self._add_rounded(lp, options, ideal.peak_bytes)
        extra_ns = timeline.recompute_ns - sum(option.replay_ns for option in options)
        found = [] if extra_ns >= 0 else [f"replays {-extra_ns} less than its options"]
        unit_ns = lp._unit_ns
        given = {
            "Y": timeline.traffic.forward_stall_ns / unit_ns,
            "Z": (timeline.traffic.backward_stall_ns + extra_ns) / unit_ns,
            "R": sum(o.replay_ns for o in options if o.leaving.is_demanded) / unit_ns,
        }
        values = {variable.index(): given.get(variable.name(), 0.0) for variable in lp._lp.variables()}
        for columns, option in zip(lp._columns, options, strict=True):
            values[columns[option].index()] = 1.0
        named = {variable.name(): variable for variable in lp._lp.variables()}
        for rows, letter, order in (
            (lp._hold, "S", 1),
            (lp._hold_forward, "N", 1),
            (lp._leave, "L", -1),
            (lp._return, "K", -1),
        ):
            for j in range(len(options))[::order]:
                target = named[f"{letter}{j + (1 if order > 0 else 0)}"]
                rest = _value(rows[j], lp, values, skip=target.index())
                values[target.index()] = -rest / rows[j].GetCoefficient(target)
                if not target.lb() - 1e-7 <= values[target.index()] <= target.ub() + 1e-7:
                    found.append(f"bounds of {target.name()}: {values[target.index()]}")
        names = self._names(lp)
        for row in lp._lp.constraints():
            value = _value(row, lp, values)
            if not row.lb() - 1e-6 <= value <= row.ub() + 1e-6:
                found.append(f"{names.get(row.index(), '?')}: {value} not in [{row.lb()}, {row.ub()}]")
        if timeline.added_ns > self.pool.most_ns:
            found.append("adds more than any plan can")
        return found

    def _add_rounded(self, lp: Master, options: tuple[Option, ...], budget_bytes: int) -> None:
        """Every window's row in steps, of several heights and from several references."""
        last = len(options) - 1
        sizes = sorted({tensor.size_bytes for tensor in self.problem.tensors if tensor.size_bytes})
        rises = {*sizes[:1], *sizes[-1:], sum(sizes) // 3} - {0}
        for window in (*(Window(place=place) for place in range(len(options))), Window(place=last, is_first=True)):
            terms = [lp._term_bytes(window, place, options[place]) for place in range(window.place + 1)]
            limit_bytes = budget_bytes - self.chain.window_start_bytes[window.place]
            for rise in rises:
                near = tuple(term - rise * (place % 3) // 2 for place, term in enumerate(terms))
                for references in ((0,) * len(terms), near):
                    row = RoundedRow.of(references, rise_bytes=rise, limit_bytes=limit_bytes)
                    lp._add_rounded(RoundedWindow(window=window, row=row))

    def _names(self, lp: Master) -> Mapping[int, str]:
        families = {
            name: getattr(lp, name)
            for name in ("_one", "_hold", "_hold_forward", "_peak", "_moment", "_leave", "_return")
        }
        families |= {"_out": lp._out, "_back": lp._back}
        families |= {f"_flow {demand.name}": rows for demand, rows in lp._flow.items()}
        found = {row.index(): f"{name}[{j}]" for name, rows in families.items() for j, row in enumerate(rows)}
        found |= {row.index(): f"rounded {one}" for one, row in lp._rounded.items()}
        return found | {
            lp._first.index(): "_first",
            lp._end.index(): "_end",
            lp._host.index(): "_host",
            lp._demanded.index(): "_demanded",
        }


def _value(row: object, lp: Master, values: Mapping[int, float], skip: int = -1) -> float:
    return sum(
        row.GetCoefficient(variable) * values[variable.index()]  # type: ignore[attr-defined]
        for variable in lp._lp.variables()
        if variable.index() != skip
    )
