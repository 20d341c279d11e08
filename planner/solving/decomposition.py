"""Solves a problem that is a chain of cells: options per template, a master program, and a plan put together."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from planner.blocks import BlockIndex
from planner.problem import Problem
from planner.simulation.liveness import Timeline, simulate
from planner.solving.assembly import assemble
from planner.solving.cells import Chain, cut
from planner.solving.deadline import PAST, OutOfTime
from planner.solving.master import Master, Pool, Relaxed
from planner.solving.options import Option, Prices, Template

# A division into cells is used if what its cells share is at most this part of all bytes, ...
_MOST_SHARED = 0.05
# ... and if it has at least so many cells, some of them alike: what is found for one cell must serve another.
_FEWEST_CELLS = 4
# Around the options of the relaxed answer, so many more are looked for, and then so many if the plan is still too far
# from the bound: a whole plan needs steps finer than those that the prices alone produce.
_FILLS = (16, 53)
# A plan is first looked for this close above the bound, then with ever more room.
_SLACKS = (0.002, 0.02, 0.2, 10.0)
# Bisection for the lowest peak ends when its range is this part of the peak; what is replayed hardly matters meanwhile.
_PEAK_TOLERANCE = 1e-3
_PEAK_GAP = 0.1
# The plan put together is checked by simulation; if it is over, it is put together again for a smaller budget: smaller
# by the excess, then by twice the next one, and so on.
_CORRECTIONS = 8
# Options are generated for at most this part of the time; the rest is for putting a plan together.
_GENERATING_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposed:
    """The best plan found and the proven bound; `kept` and `timeline` are None without a plan."""

    kept: frozenset[int] | None
    timeline: Timeline | None
    bound_ns: int
    is_infeasible: bool = False


def chain_solver(problem: Problem, levels: Sequence[tuple[str, ...]]) -> "ChainSolver | None":
    """A solver for a problem that divides into a proper chain of cells, or None; see `best_chain`."""
    chain = best_chain(problem, levels) if problem.ops else None
    return None if chain is None else ChainSolver(problem, chain)


def best_chain(problem: Problem, levels: Sequence[tuple[str, ...]]) -> Chain | None:
    """The finest division into blocks that makes a proper chain, or None.

    Args:
        problem: the step.
        levels: candidate divisions, each a tuple of module paths; see `planner.blocks.block_levels`.
    """
    total = sum(tensor.size_bytes for tensor in problem.tensors)
    found = None
    for level in levels:
        chain = cut(problem, _starts(problem, level))
        shared = sum(problem.tensors[index].size_bytes for index in chain.shared)
        is_proper = shared <= _MOST_SHARED * total and len(chain.cells) >= _FEWEST_CELLS
        is_proper &= len({cell.template for cell in chain.cells}) < len(chain.cells)
        if is_proper and (found is None or len(chain.cells) > len(found.cells)):
            found = chain
    return found


def _starts(problem: Problem, level: tuple[str, ...]) -> list[int]:
    """The ops at which a block begins, or what follows one."""
    block_of = BlockIndex(level)
    blocks = [block_of(op.module_fqn) for op in problem.ops]
    return [place for place, block in enumerate(blocks) if place == 0 or block != blocks[place - 1]]


class ChainSolver:
    """Solves one chain for any number of budgets; what is learned of the templates is kept."""

    def __init__(self, problem: Problem, chain: Chain) -> None:
        self._problem, self._chain = problem, chain
        last = chain.cells[-1].template
        templates = {
            cell.template: Template(problem, cell, is_last=cell.template == last) for cell in reversed(chain.cells)
        }
        self._pool = Pool(
            chain,
            templates,
            replay_ns=sum(op.cost_ns for op in problem.ops),
            size_bytes=sum(tensor.size_bytes for tensor in problem.tensors),
        )
        self._shared = frozenset(index for index in chain.shared if problem.tensors[index].may_keep)

    def solve(self, budget_bytes: int, *, gap: float, deadline: float) -> Decomposed:
        """The cheapest plan found within the budget, and a bound that holds for every plan; arguments as `improve`."""
        *_, last = self.improve(budget_bytes, gap=gap, deadline=deadline)
        return last

    def improve(self, budget_bytes: int, *, gap: float, deadline: float) -> Iterator[Decomposed]:
        """The best plan and bound so far, as they get better; at least one.

        Args:
            budget_bytes: limit at every moment.
            gap: relative tolerance between plan and bound.
            deadline: of `time.monotonic`.
        """
        started = time.monotonic()
        generating = started + _GENERATING_SHARE * (deadline - started)
        with suppress(OutOfTime):
            self._pool.prepare(generating)
        pool = self._pool.copy()  # the answer for a budget does not depend on those asked before
        first = _relax(pool, budget_bytes, gap=gap, deadline=PAST)
        best = Decomposed(kept=None, timeline=None, bound_ns=0)
        if first.excess_bytes < 1:  # an early plan, for who does not wait for a better one
            best = self._plan(first, budget_bytes, 0, deadline=deadline)
        yield best
        if not pool.is_prepared:
            return
        relaxed = _relax(pool, budget_bytes, gap=gap, deadline=generating)
        bound_ns = max(0, round(relaxed.bound_ns))
        if bound_ns > self._pool.replay_ns:  # no plan costs more than replaying everything: the excess does
            yield Decomposed(kept=None, timeline=None, bound_ns=self._pool.replay_ns, is_infeasible=True)
            return
        best = replace(best, bound_ns=bound_ns)
        yield best
        for parts in _FILLS:
            with suppress(OutOfTime):
                _fill(pool, relaxed, parts, deadline=generating)
            relaxed = _relax(pool, budget_bytes, gap=gap, deadline=generating)
            bound_ns = max(bound_ns, round(relaxed.bound_ns))
            found = self._plan(relaxed, budget_bytes, bound_ns, deadline=deadline)
            best = _cheaper(best, found)
            yield best
            if found.timeline is None or best.timeline is None or _is_within(best.timeline, bound_ns, gap):
                break
            if time.monotonic() > generating:
                break

    def lowest_peak(
        self, peak_bytes: int, bound_bytes: int, *, deadline: float, enough_bytes: int = 0
    ) -> tuple[Decomposed | None, int]:
        """The plan found with the lowest peak, if any is below one already known, and a bound for every plan.

        Args:
            peak_bytes: the lowest known.
            bound_bytes: a bound already known.
            deadline: of `time.monotonic`.
            enough_bytes: a plan that peaks at no more will do.
        """
        best = None
        low_bytes = bound_bytes  # below it, or at it, nothing was found
        while peak_bytes - low_bytes > _PEAK_TOLERANCE * peak_bytes and peak_bytes > enough_bytes:
            if time.monotonic() > deadline:
                break
            middle_bytes = (low_bytes + peak_bytes) // 2
            found = self.solve(middle_bytes, gap=_PEAK_GAP, deadline=deadline)
            if found.timeline is not None:
                best, peak_bytes = found, found.timeline.peak_bytes
            else:
                low_bytes = middle_bytes
                if found.is_infeasible:
                    bound_bytes = middle_bytes
        return best, bound_bytes

    def _plan(self, relaxed: Relaxed, budget_bytes: int, bound_ns: int, *, deadline: float) -> Decomposed:
        """A plan from the options, if there is one and time to find it."""
        forward_bytes = window_bytes = budget_bytes
        with suppress(OutOfTime):
            for correction in range(_CORRECTIONS):
                chosen = self._assemble(relaxed, forward_bytes, window_bytes, deadline)
                if chosen is None:
                    break
                kept = self._kept(chosen)
                timeline = simulate(self._problem, kept)
                if timeline.peak_bytes <= budget_bytes:
                    return Decomposed(kept=kept, timeline=timeline, bound_ns=bound_ns)
                forward_bytes -= max(0, self._peak(timeline, is_forward=True) - budget_bytes) << correction
                window_bytes -= max(0, self._peak(timeline, is_forward=False) - budget_bytes) << correction
        return Decomposed(kept=None, timeline=None, bound_ns=bound_ns)

    def _assemble(
        self, relaxed: Relaxed, forward_bytes: int, window_bytes: int, deadline: float
    ) -> tuple[Option, ...] | None:
        """The cheapest plan that the options allow: once one is found, only better ones are looked for, but all."""

        def within(slack_ns: float) -> tuple[Option, ...] | None:
            return assemble(
                self._chain,
                relaxed.columns,
                forward_budget_bytes=forward_bytes,
                window_budget_bytes=window_bytes,
                slack_ns=slack_ns,
                deadline=deadline,
            )

        for slack in _SLACKS:
            slack_ns = slack * max(relaxed.value_ns, 1.0)
            chosen = within(slack_ns)
            if chosen is not None:
                excess_ns = sum(option.replay_ns for option in chosen) - relaxed.value_ns
                if excess_ns > slack_ns:
                    with suppress(OutOfTime):
                        return within(excess_ns)
                return chosen
        return None

    def _peak(self, timeline: Timeline, *, is_forward: bool) -> int:
        return max(
            size
            for point, size in zip(timeline.points, timeline.live_bytes, strict=True)
            if (point.step < self._problem.backward_step) is is_forward
        )

    def _kept(self, chosen: Sequence[Option]) -> frozenset[int]:
        kept = set(self._problem.must_keep | self._shared)
        for cell, option in zip(self._chain.cells, chosen, strict=True):
            kept.update(cell.tensors[place] for place in option.kept)
        return frozenset(kept)


def _is_within(timeline: Timeline, bound_ns: int, gap: float) -> bool:
    return timeline.recompute_ns * (1 - gap) <= bound_ns


def _cheaper(first: Decomposed, second: Decomposed) -> Decomposed:
    """The cheaper plan, with the better bound."""
    bound_ns = max(first.bound_ns, second.bound_ns)
    plans = [one for one in (first, second) if one.timeline is not None]
    best = min(plans, key=lambda one: one.timeline.recompute_ns if one.timeline else 0, default=second)
    return replace(best, bound_ns=bound_ns)


def _relax(pool: Pool, budget_bytes: int, *, gap: float, deadline: float) -> Relaxed:
    return Master(pool, budget_bytes).relax(tolerance=gap / 4, deadline=deadline)


def _fill(pool: Pool, relaxed: Relaxed, parts: int, *, deadline: float) -> None:
    """More options around those that the relaxed answer mixes.

    Raises:
        OutOfTime: the deadline passed.
    """
    for name, options in relaxed.support.items():
        template = pool.templates[name]
        all_held = sorted({o.held_bytes for o in pool.options(name) if not o.entering and not o.leaving})
        used = [o.held_bytes for o in options if not o.entering and not o.leaving]
        if not used or len(all_held) < 2:
            continue
        first = max(0, all_held.index(min(used)) - 1)
        last = min(len(all_held) - 1, all_held.index(max(used)) + 1)
        low, high = all_held[first], all_held[last]
        for peak in sorted(relaxed.peak_prices[name]):
            for part in range(1, parts + 1):
                held_bytes = low + (high - low) * part // (parts + 1)
                option = template.within(held_bytes, Prices(held=0.0, peak=peak), deadline=deadline)
                if option is not None:
                    pool.add(name, option)
