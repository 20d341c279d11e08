"""Solves a problem that is a chain of cells: options per template, a master program, and a plan put together."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from planner.blocks import BlockIndex
from planner.problem import Problem, without_link
from planner.simulation.liveness import Timeline
from planner.solving.assembly import Assembled, LinkRoom, assemble
from planner.solving.cells import Chain, cut
from planner.solving.deadline import PAST, OutOfTime
from planner.solving.master import Master, Pool, Relaxed
from planner.solving.options import Option, Prices, Template
from planner.solving.staging import Stagings, generous

# A division into cells is used if what its cells share is at most this part of all bytes, ...
_MOST_SHARED = 0.05
# ... and if it has at least so many cells, some of them alike: what is found for one cell must serve another.
_FEWEST_CELLS = 4
# Around the options of the relaxed answer, so many more are looked for, and then so many if the plan is still too far
# from the bound: a whole plan needs steps finer than those that the prices alone produce.
_FILLS = (16, 53)
# Where tensors may leave, cells that copy and cells that do not are fine steps already. Copies that are further behind,
# by what so many cells copy (second), use the link better if forward has the memory; more options come last, and fewer,
# since each is looked for once for every share of `_COPY_SHARES`.
_LINK_FILLS = ((0, 1), (0, 2), (8, 1))
# A plan is first looked for this close above the bound, then with ever more room.
_SLACKS = (0.0005, 0.002, 0.02, 0.2, 10.0)
# Where tensors may leave, once one is found, more room than this is not tried.
_MOST_LINK_SLACK = 0.02
# There, a bound of hardly anything counts as this part of the step.
_LEAST_ADDED = 0.01
# One that is found and no further from the bound than this part of the gap asked for is not bettered.
_GOOD_SHARE = 1 / 2
# Bisection for the lowest peak ends when its range is this part of the peak; what is replayed hardly matters meanwhile.
_PEAK_TOLERANCE = 1e-3
_PEAK_GAP = 0.1
# The plan put together is checked by simulation; if it is over, it is put together again for a smaller budget: smaller
# by the excess, then by twice the next one, and so on.
_CORRECTIONS = 8
# Where copies hold memory on their way, the excess differs from plan to plan: the budget falls by it, and by at least
# this part of what it has fallen by.
_LEAST_CORRECTION = 1 / 4
# When one fits, so many budgets half way to the last that did not fit are tried.
_REFINEMENTS = 1
# Of the plans put together that use the link, so many are simulated for each slack: only that says how long they wait
# for it.
_CANDIDATES = 2
# How far the link may be behind is told apart in steps of the longest copy's time by this.
_GRAINS = 4
_MOST_LINK_PARTIAL = 2_000
# Options are made that copy no longer than these multiples of what the relaxed answer copies on average, ...
_COPY_SHARES = (0.0, 0.75, 1.0, 1.5)
# ... of those alike otherwise the ones that copy least: a ns of copies costs so much.
_TIE = 0.001
# The bound may miss the program's value by this part of the gap asked for.
_TOLERANCE_SHARE = 1 / 4
# Rounded rows are added so many times to the program where its value leaves a gap to the plan.
_ROUNDINGS = 4
# Options are generated for at most this part of the time; the rest is for putting a plan together.
_GENERATING_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposed:
    """The best plan found and the proven bound; `kept` and `timeline` are None without a plan."""

    kept: frozenset[int] | None
    timeline: Timeline | None
    bound_ns: int
    is_infeasible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """Limits in forward and in windows, or what is over them."""

    forward_bytes: int
    window_bytes: int


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
        copies_ns = [problem.link.copy_ns(t.size_bytes) for t in problem.tensors if t.packing and problem.link]
        last = chain.cells[-1].template
        templates = {
            cell.template: Template(chain.problem, cell, is_last=cell.template == last)
            for cell in reversed(chain.cells)
        }
        self._pool = Pool(
            chain,
            templates,
            replay_ns=sum(op.cost_ns for op in problem.ops),
            copy_ns=sum(copies_ns),
            host_budget_bytes=problem.link.budget_bytes if problem.link else 0,
            sizes_bytes=[tensor.size_bytes for tensor in problem.tensors],
        )
        self._shared = frozenset(index for index in chain.shared if problem.tensors[index].may_keep)

    @cached_property
    def without_copies(self) -> "ChainSolver":
        """A solver of the same chain where nothing leaves for the host."""
        here = without_link(self._problem)
        return ChainSolver(here, cut(here, [cell.ops[0] for cell in self._chain.cells]))

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
        tolerance = gap * _TOLERANCE_SHARE
        first = Master(pool, budget_bytes).relax(tolerance=tolerance, deadline=PAST)
        best = Decomposed(kept=None, timeline=None, bound_ns=0)
        if first.excess_bytes < 1 and not self._problem.link:  # an early plan, for who does not wait for a better one
            best = self._plan(first, budget_bytes, 0, late=1, gap=gap, deadline=deadline)
        yield best
        if not pool.is_prepared:
            return
        master = Master(pool, budget_bytes)
        relaxed = master.relax(tolerance=tolerance, deadline=generating)
        bound_ns = max(0, round(relaxed.bound_ns))
        if bound_ns > self._pool.most_ns:  # no plan adds so much: the excess does
            yield Decomposed(kept=None, timeline=None, bound_ns=self._pool.most_ns, is_infeasible=True)
            return
        best = replace(best, bound_ns=bound_ns)
        yield best
        for parts, late in _LINK_FILLS if self._problem.link else [(parts, 1) for parts in _FILLS]:
            if parts:
                with suppress(OutOfTime):
                    _fill(pool, relaxed, parts, deadline=generating)
                # With so many more options, a new program is solved sooner than the old one from its last basis.
                master = Master(pool, budget_bytes, relaxed.rounded)
                relaxed = master.relax(tolerance=tolerance, deadline=generating)
                bound_ns = max(bound_ns, round(relaxed.bound_ns))
            found = self._plan(relaxed, budget_bytes, bound_ns, late=late, gap=gap, deadline=deadline)
            best = _cheaper(best, found)
            yield best
            if found.timeline is None and parts:
                break
            for _ in range(_ROUNDINGS if parts else 0):
                if _is_within(best, gap) or not master.tighten(relaxed):
                    break
                relaxed = master.relax(tolerance=tolerance, deadline=generating)
                bound_ns = max(bound_ns, round(relaxed.bound_ns))
                best = replace(best, bound_ns=bound_ns)
                yield best
            if _is_within(best, gap) or time.monotonic() > generating:
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

    def _plan(
        self, relaxed: Relaxed, budget_bytes: int, bound_ns: int, *, late: int, gap: float, deadline: float
    ) -> Decomposed:
        """A plan from the options, if there is one and time to find it.

        Args:
            relaxed: has the options.
            budget_bytes, bound_ns, gap, deadline: as elsewhere.
            late: copies may be behind by what so many cells copy.
        """
        best = Decomposed(kept=None, timeline=None, bound_ns=bound_ns)

        def over(room: _Room) -> _Room | None:
            """Put plans together; by how much the first is over the budget with the staging that is worth it.

            None without any.
            """
            nonlocal best
            candidates = self._assemble(relaxed, room, link, gap, deadline)
            plans = [self._decisions(chosen.options) for chosen in candidates]
            stagings = [Stagings(self._problem, *plan) for plan in plans]
            for chosen, (kept, _), staged in zip(candidates, plans, stagings, strict=True):
                if best.timeline is None or chosen.added_ns < best.timeline.added_ns:
                    timeline = staged.best(budget_bytes)
                    if timeline.peak_bytes <= budget_bytes:
                        best = _cheaper(best, Decomposed(kept=kept, timeline=timeline, bound_ns=bound_ns))
            if not candidates:
                return None
            wanted = stagings[0].cheapest(budget_bytes, relaxed.byte_price)
            over_forward, over_windows = stagings[0].excess_bytes(wanted, budget_bytes)
            return _Room(forward_bytes=over_forward, window_bytes=over_windows)

        def lower(room_bytes: int, excess_bytes: int, correction: int) -> int:
            """A limit for plans that should be over it by no more."""
            if self._problem.link is None or not excess_bytes:
                return room_bytes - (excess_bytes << correction)
            return room_bytes - max(excess_bytes, round(_LEAST_CORRECTION * (budget_bytes - room_bytes)))

        whole = _Room(forward_bytes=budget_bytes, window_bytes=budget_bytes)
        link = _link_room(self._problem, self._chain, budget_bytes, relaxed, late=late)
        with suppress(OutOfTime):
            room = too_much = whole
            for correction in range(_CORRECTIONS):
                excess = over(room)
                if excess is None or not (excess.forward_bytes or excess.window_bytes):
                    break
                too_much = room
                room = _Room(
                    forward_bytes=lower(room.forward_bytes, excess.forward_bytes, correction),
                    window_bytes=lower(room.window_bytes, excess.window_bytes, correction),
                )
            for _ in range(_REFINEMENTS if room != too_much else 0):  # the last correction may have been too large
                middle = _Room(
                    forward_bytes=(room.forward_bytes + too_much.forward_bytes) // 2,
                    window_bytes=(room.window_bytes + too_much.window_bytes) // 2,
                )
                excess = over(middle)
                if excess is None or excess.forward_bytes or excess.window_bytes:
                    too_much = middle
                else:
                    room = middle
        return best

    def _decisions(self, chosen: Sequence[Option]) -> tuple[frozenset[int], frozenset[int]]:
        """What is kept, and what of it on the host."""
        kept = set(self._problem.must_keep | self._shared)
        offloaded: set[int] = set()
        for cell, option in zip(self._chain.cells, chosen, strict=True):
            kept.update(cell.tensors[place] for place in option.kept)
            offloaded.update(cell.tensors[place] for place in option.offloaded)
        return frozenset(kept), frozenset(offloaded)

    def _assemble(
        self, relaxed: Relaxed, room: "_Room", link: LinkRoom, gap: float, deadline: float
    ) -> tuple[Assembled, ...]:
        """The cheapest plans that the options allow, the cheapest first.

        Once one is found, only better ones are looked for, but all; unless it is well within the gap already.
        """
        found: tuple[Assembled, ...] = ()
        has_link = self._problem.link is not None
        least_ns = max(1.0, _LEAST_ADDED * self._problem.step_ns if has_link else 0.0)
        for slack in _SLACKS:
            slack_ns = slack * max(relaxed.value_ns, least_ns)
            # Where tensors may leave, there are too many partial plans to carry them all, and more room hardly helps.
            is_last = bool(found) and (slack >= _MOST_LINK_SLACK or not has_link)
            if found:
                excess_ns = found[0].added_ns - relaxed.value_ns
                slack_ns = min(slack_ns, excess_ns) if has_link else excess_ns
            try:
                more = assemble(
                    self._chain,
                    relaxed.columns,
                    forward_budget_bytes=room.forward_bytes,
                    window_budget_bytes=room.window_bytes,
                    link=link,
                    slack_ns=slack_ns,
                    most=_CANDIDATES if has_link else 1,
                    deadline=deadline,
                )
            except OutOfTime:
                if not found:
                    raise
                break
            found = tuple(sorted(dict.fromkeys((*more, *found)), key=lambda one: one.added_ns))
            if found:
                excess_ns = found[0].added_ns - relaxed.value_ns
                if is_last or excess_ns <= max(slack_ns, gap * _GOOD_SHARE * found[0].added_ns):
                    break
        return found


def _link_room(problem: Problem, chain: Chain, budget_bytes: int, relaxed: Relaxed, *, late: int) -> LinkRoom:
    """Staging for what the relaxed answer copies: few plans move anything larger."""
    if problem.link is None:
        return LinkRoom()
    used = [(cell, option) for cell, shares in zip(chain.cells, relaxed.shares, strict=True) for option in shares]
    most_ns = max(option.copy_ns for _, option in used)
    largest_bytes = max(
        (problem.tensors[cell.tensors[place]].size_bytes for cell, option in used for place in option.offloaded),
        default=0,
    )
    longest_ns = problem.link.copy_ns(largest_bytes)
    staged = generous(largest_bytes, budget_bytes)
    return LinkRoom(
        host_bytes=problem.link.budget_bytes,
        staged_out_ns=min(late * most_ns, round(staged["out"] * longest_ns)),
        staged_back_ns=min(most_ns, round(staged["back"] * longest_ns)),
        grain_ns=max(1, longest_ns // _GRAINS),
        most_partial=_MOST_LINK_PARTIAL,
        host_price=relaxed.host_price,
        out_wait_ns=relaxed.out_wait_ns,
        back_wait_ns=relaxed.back_wait_ns,
    )


def _is_within(found: Decomposed, gap: float) -> bool:
    return found.timeline is not None and found.timeline.added_ns * (1 - gap) <= found.bound_ns


def _cheaper(first: Decomposed, second: Decomposed) -> Decomposed:
    """The cheaper plan, with the better bound."""
    bound_ns = max(first.bound_ns, second.bound_ns)
    plans = [one for one in (first, second) if one.timeline is not None]
    best = min(plans, key=lambda one: one.timeline.added_ns if one.timeline else 0, default=second)
    return replace(best, bound_ns=bound_ns)


def _copies_ns(shares: Mapping[Option, float]) -> tuple[int, ...]:
    """How long options may copy that are looked for around the relaxed answer, which copies so long on average."""
    mean_ns = sum(option.copy_ns * share for option, share in shares.items()) / sum(shares.values())
    return tuple(sorted({round(part * mean_ns) for part in _COPY_SHARES}))


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
                for copy_ns in _copies_ns(options):
                    prices = Prices(held=0.0, peak=peak, out=_TIE)
                    option = template.within(held_bytes, prices, copy_ns=copy_ns, deadline=deadline)
                    if option is not None:
                        pool.add(name, option)
