"""The CP-SAT model of one retention problem.

Legend
    k[t]    tensor t is kept from forward
    h[t]    and lies on the host until backward asks for it
    y[o]    op o is replayed in backward, at some point
    x[o,s]  op o has been replayed by the end of unpack step s
    F, B    time that the device waits for copies out, and for copies back
    b[t]    bytes of tensor t;  c[o] nanoseconds of op o;  d[t] nanoseconds of a copy of tensor t

Objective, chosen by the caller
    minimize  Σ c[o]·y[o] + F + B  or the largest memory at the given moments, or a sum of prices

Constraints
    [Produce]  a saved tensor that is not kept is replayed:               y[producer(t)] ≥ 1 − k[t]
    [Inputs]   a replayed op finds its inputs kept or replayed:           y[producer(t)] ≥ y[o] − k[t]
    [Only if]  nothing is replayed that is not needed
    [Memory]   at each *moment* given:                                    base + kept alive + replayed alive ≤ limit
    [Out]      for each step s at which something is packed:              Σ d[t]·h[t] packed from s on
                                                                              ≤ time from s to the end of forward + F
    [Back]     for each step s at which something is unpacked:            Σ d[t]·h[t] unpacked by s
                                                                              ≤ time from the first unpack to s, with
                                                                                what could be replayed by then, + B
    [Host]     what lies on the host fits there

Copies are idealized in the model's favour: what leaves is gone at once, and comes back only when it is asked for. What
staging holds meanwhile, and when copies really run, only the simulation knows.

Memory is exact at the moments that are in the model, and the model holds only some of them: `search` adds those that
the simulation finds over budget. Leaving moments out only relaxes the problem, so the bound stays valid.

*When* an op is replayed follows from what is kept: at the first unpack that lacks it. `x` expresses that for the unpack
steps of the given moments. Without [Only if] the model could claim a replay that does not happen, or happens later, to
free the tensors it reads.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ortools.sat.python import cp_model

from planner.link import host_bytes
from planner.problem import Problem, Tensor
from planner.simulation.liveness import Point
from planner.solving.deadline import NEVER, check

Literal = Any  # a CP-SAT Boolean variable, its negation, or the constant 0 or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """For each op, the unpack steps at which it could first be replayed: `earliest <= step <= latest`."""

    earliest: tuple[int, ...]
    latest: tuple[int, ...]


def replay_windows(problem: Problem) -> Windows:
    """When each op could be replayed at all, whatever is kept: the first unpacks of what it can lead to."""
    never = len(problem.base_bytes) + 1
    earliest, latest = [never] * len(problem.ops), [-1] * len(problem.ops)
    for op in reversed(problem.ops):
        for index in op.writes:
            tensor = problem.tensors[index]
            if tensor.must_keep:
                continue
            if tensor.uses:
                earliest[op.index] = min(earliest[op.index], tensor.first_unpack)
                latest[op.index] = max(latest[op.index], tensor.first_unpack)
            for consumer in tensor.consumers:
                earliest[op.index] = min(earliest[op.index], earliest[consumer])
                latest[op.index] = max(latest[op.index], latest[consumer])
    return Windows(earliest=tuple(earliest), latest=tuple(latest))


def _is_lent(tensor: Tensor) -> bool:
    """Whether a tensor that every plan must keep is there for replays alone: without them it is let go in forward."""
    return tensor.must_keep and not tensor.uses


class RetentionModel:
    """A CP-SAT model under construction: its caller adds moments and sets the objective.

    Args:
        problem: the step.
        windows: of the same problem.
        is_strict: with [Only if] for y too. Where replays cost it is rarely needed: a replay that does not happen
            would have to pay for itself.
        is_part: the problem is a part of a step: what every plan must keep may be unpacked elsewhere, so it is held.
        deadline: when to give up building it.

    Raises:
        OutOfTime: the deadline passed, also while moments are added.
    """

    def __init__(
        self,
        problem: Problem,
        windows: Windows,
        *,
        is_strict: bool = False,
        is_part: bool = False,
        deadline: float = NEVER,
    ) -> None:
        self.problem = problem
        self._lent = frozenset(t.index for t in problem.tensors if _is_lent(t) and not is_part)
        self.cp = cp_model.CpModel()
        self._windows = windows
        self._keep: list[Literal] = [self._keep_literal(tensor) for tensor in problem.tensors]
        self._host: list[Literal] = [self._host_literal(tensor) for tensor in problem.tensors]
        self._replay: list[Literal] = [self.cp.new_bool_var(f"y{op.index}") for op in problem.ops]
        self._is_strict = is_strict
        self._deadline = deadline
        self._done: dict[tuple[int, int], Literal] = {}
        self._running: dict[tuple[int, int], Literal] = {}
        self._unpack_steps = sorted({unpack for t in problem.tensors for unpack, _ in t.uses})
        self._add_production()

    @property
    def replay_ns(self) -> Any:
        """Σ c[o]·y[o]."""
        return self.priced_replays(1.0)

    def priced_replays(self, price: float) -> Any:
        """Σ ⌊price·c[o]⌋·y[o]."""
        return sum(math.floor(price * op.cost_ns) * self._replay[op.index] for op in self.problem.ops)

    def keep(self, tensor: int) -> Literal:
        """k[t]."""
        return self._keep[tensor]

    def host(self, tensor: int) -> Literal:
        """h[t]."""
        return self._host[tensor]

    def replay(self, op: int) -> Literal:
        """y[o]."""
        return self._replay[op]

    def forbid(self, kept: Set[int], offloaded: Set[int]) -> None:
        """This very choice is not made."""
        differs = [
            literal if tensor not in chosen else negation(literal)
            for literals, chosen in ((self._keep, kept), (self._host, offloaded))
            for tensor, literal in enumerate(literals)
            if tensor not in self._lent
        ]
        self._at_least_one(*(literal for literal in differs if not _is_zero(literal)))

    def add_link(self) -> Any:
        """[Out], [Back] and [Host]; returns F + B, or 0 where nothing may leave."""
        movable = [tensor for tensor in self.problem.tensors if tensor.packing is not None]
        link = self.problem.link
        if not movable or link is None:
            return 0
        times_ns = list(accumulate(self.problem.times_ns, initial=0))
        copies = [(tensor, link.copy_ns(tensor.size_bytes)) for tensor in movable]
        most_ns = sum(copy_ns for _, copy_ns in copies)
        out_wait, back_wait = (self.cp.new_int_var(0, most_ns, name) for name in ("F", "B"))
        packs = {tensor.index: tensor.packing.step for tensor in movable if tensor.packing is not None}
        for step in sorted(set(packs.values())):
            leaving = sum(ns * self._host[t.index] for t, ns in copies if packs[t.index] >= step)
            self.cp.add(leaving <= times_ns[self.problem.settle_step] - times_ns[step] + out_wait)
        for step in sorted({tensor.first_unpack for tensor in movable}):
            coming = sum(ns * self._host[t.index] for t, ns in copies if t.first_unpack <= step)
            replayed = sum(
                op.cost_ns * self._replay[op.index]
                for op in self.problem.ops
                if self._windows.earliest[op.index] <= step
            )
            passed_ns = times_ns[step] - times_ns[self.problem.first_return_step]
            self.cp.add(coming <= passed_ns + replayed + back_wait)
        self.cp.add(sum(host_bytes(t.size_bytes) * self._host[t.index] for t in movable) <= link.budget_bytes)
        return out_wait + back_wait

    def largest_peak(self) -> Any:
        """A variable in bytes that can hold any peak."""
        return self.cp.new_int_var(0, _largest_peak(self.problem), "peak")

    def forbid_idle(self) -> None:
        """Nothing is kept that autograd does not save and no replay reads. No plan gets better by that."""
        for tensor in self.problem.tensors:
            if tensor.may_keep and not tensor.must_keep and not tensor.uses:
                self._implies(self._keep[tensor.index], *(self._replay[op] for op in tensor.consumers))

    def kept(self, solver: cp_model.CpSolver) -> frozenset[int]:
        """The tensors the solution keeps, and what every plan keeps as far as it needs it."""
        chosen = frozenset(t.index for t in self.problem.tensors if _is_true(solver, self._keep[t.index]))
        return chosen | self.problem.must_keep

    def offloaded(self, solver: cp_model.CpSolver) -> frozenset[int]:
        """Those of them that lie on the host."""
        return frozenset(t.index for t in self.problem.tensors if _is_true(solver, self._host[t.index]))

    # -- variables ----------------------------------------------------------------------------------------------

    def _keep_literal(self, tensor: Tensor) -> Literal:
        if tensor.index not in self._lent and (tensor.must_keep or not tensor.may_keep):
            return int(tensor.must_keep)
        return self.cp.new_bool_var(f"k{tensor.index}")

    def _host_literal(self, tensor: Tensor) -> Literal:
        if tensor.packing is None or self.problem.link is None:
            return 0
        host = self.cp.new_bool_var(f"h{tensor.index}")
        self._implies(host, self._keep[tensor.index])
        return host

    def done(self, op: int, step: int) -> Literal:
        """x[op, step]: the op has been replayed by the end of that unpack step."""
        place = bisect_right(self._unpack_steps, step)
        if place == 0:
            return 0
        step = self._unpack_steps[place - 1]
        if self._windows.latest[op] <= step:
            return self._replay[op]
        if self._windows.earliest[op] > step:
            return 0
        if (op, step) not in self._done:
            self._define_step(step)
        return self._done[op, step]

    # -- constraint families ------------------------------------------------------------------------------------

    def _add_production(self) -> None:
        """y[o] for every op, and for what no op can make again: kept, or nothing that reads it is replayed."""
        for op in reversed(self.problem.ops):
            self._define(
                self._replay[op.index],
                op.index,
                is_unpacked=lambda tensor: bool(tensor.uses),
                demand=lambda consumer: self._replay[consumer],
                only_if=self._is_strict,
            )
        for tensor in self.problem.tensors:
            if tensor.index in self._lent or (tensor.producer is None and not tensor.must_keep):
                for consumer in tensor.consumers:
                    self._implies(self._replay[consumer], self._keep[tensor.index])

    def _define_step(self, step: int) -> None:
        """All x[·, step] that are not settled by the windows, consumers before producers."""
        for op in reversed(range(len(self.problem.ops))):
            if self._windows.earliest[op] <= step < self._windows.latest[op]:
                self._done[op, step] = self.cp.new_bool_var(f"x{op},{step}")
                self._define_done(op, step)

    def _define_done(self, op: int, step: int) -> None:
        """x[op,s] holds exactly when an unpack up to s lacks an output of the op, directly or through a replay."""
        literal = self._done[op, step]
        self._implies(literal, self._replay[op])
        self._define(
            literal,
            op,
            is_unpacked=lambda tensor: bool(tensor.uses) and tensor.first_unpack <= step,
            demand=lambda consumer: self.done(consumer, step),
            only_if=True,
        )

    def _define(
        self,
        literal: Literal,
        op: int,
        *,
        is_unpacked: Callable[[Tensor], bool],
        demand: Callable[[int], Literal],
        only_if: bool,
    ) -> None:
        """The literal (x[o,s], or y[o] for the whole of backward) is true when an output of o is lacking.

        [Produce]  literal ≥ 1 − k[t] for outputs t that are unpacked
        [Inputs]   literal ≥ demand(d) − k[t] for every d reading an output t
        [Only if]  literal ≤ Σ over outputs t of lack[t], with lack[t] ≤ 1 − k[t] and lack[t] ≤ Σ of its demands
        """
        check(self._deadline)
        lacks: list[Literal] = []
        for index in self.problem.ops[op].writes:
            tensor = self.problem.tensors[index]
            if tensor.must_keep:
                continue
            keep = self._keep[index]
            demands = [demand(consumer) for consumer in tensor.consumers]
            if is_unpacked(tensor):
                self._at_least_one(keep, literal)
            for wanted in demands:
                self._implies(wanted, keep, literal)
            if only_if:
                lacks.append(self._lack(keep, is_unpacked(tensor), demands))
        if only_if:
            self._implies(literal, *lacks)

    def _lack(self, keep: Literal, is_unpacked: bool, demands: Sequence[Literal]) -> Literal:
        """A literal that may be true only if the tensor is not kept and something demands it."""
        if not is_unpacked and all(_is_zero(demand) for demand in demands):
            return 0
        if is_unpacked:
            return negation(keep)
        lack = self.cp.new_bool_var("")
        self._implies(lack, negation(keep))
        self._implies(lack, *demands)
        return lack

    def has_replayed(self, op: int, point: Point) -> Literal:
        """Whether the op's replay has begun by the moment."""
        return self._done_at(op, point, includes_own=True)

    def add_moment(self, point: Point, limit_bytes: Any, *, only_if: Literal = 1) -> None:
        """[Memory] for one moment: base + Σ b[t]·(t alive there) ≤ limit, a number or an expression.

        Args:
            point: the moment.
            limit_bytes: what may be alive there.
            only_if: the limit holds only where this literal is true.
        """
        if _is_zero(only_if):
            return
        check(self._deadline)
        step = point.step
        base_bytes = self.problem.base_bytes[step]
        terms: list[tuple[int, Literal]] = []
        for tensor in self.problem.tensors:
            if step < self.problem.backward_step:
                if tensor.free_step <= step:
                    terms.append((tensor.size_bytes, self._keep[tensor.index]))
                    terms.append((-tensor.size_bytes, self._host[tensor.index]))
            else:
                terms += [(tensor.size_bytes, literal) for literal in self.alive(tensor, point)]
        if point.replay is not None:
            terms.append((self.problem.ops[point.replay].scratch_bytes, self._runs(point.replay, step)))
        limit = self.cp.add(base_bytes + sum(size * literal for size, literal in terms) <= limit_bytes)
        if not isinstance(only_if, int):
            limit.only_enforce_if(only_if)

    def alive(self, tensor: Tensor, point: Point) -> list[Literal]:
        """Literals of which as many are true as copies of the tensor are alive: kept, replayed, being replayed."""
        keep = self._here(tensor, point) if tensor.free_step <= point.step else 0
        is_running = point.replay is not None and tensor.producer == point.replay
        made = self._done_at(tensor.producer, point, includes_own=not is_running)
        there = [literal for literal in (keep, self._made_and_not_kept(tensor, made)) if not _is_zero(literal)]
        if not self._is_held(tensor, point):
            later = [self._later(consumer, point) for consumer in tensor.consumers]
            there = [both for literal in there if (both := self._and_any(literal, later)) is not None]
        return [*there, self._runs(point.replay, point.step)] if is_running else there

    def _here(self, tensor: Tensor, point: Point) -> Literal:
        """A literal forced true when the tensor is kept and not on the host at a moment of backward."""
        keep, host = self._keep[tensor.index], self._host[tensor.index]
        unpacked_before = point.step + (1 if point.replay is None else 0)
        if _is_zero(host) or (tensor.uses and tensor.first_unpack < unpacked_before):
            return keep
        asked = [self._done_at(consumer, point, includes_own=True) for consumer in tensor.consumers]
        here = self.cp.new_bool_var("")
        self._implies(keep, here, host)
        for replayed in asked:
            self._implies(replayed, here, negation(keep))
        return here

    def _is_held(self, tensor: Tensor, point: Point) -> bool:
        """Whether backward still has to release the saved tensor after this moment."""
        return tensor.last_release > point.step

    def _done_at(self, op: int | None, point: Point, *, includes_own: bool) -> Literal:
        """The op has been replayed at the moment; during a step's replays those before it in order have been."""
        if op is None:
            return 0
        if point.replay is None or op < point.replay or (op == point.replay and includes_own):
            return self.done(op, point.step)
        return self._done_before(op, point.step)

    def _done_before(self, op: int, step: int) -> Literal:
        place = bisect_left(self._unpack_steps, step)
        return self.done(op, self._unpack_steps[place - 1]) if place else 0

    def _later(self, consumer: int, point: Point) -> tuple[Literal, Literal]:
        """(y, x): the consumer is replayed after the moment when y is true and x is not."""
        return self._replay[consumer], self._done_at(consumer, point, includes_own=False)

    def _made_and_not_kept(self, tensor: Tensor, made: Literal) -> Literal:
        """The tensor was replayed and stays; an output that is kept anyway is dropped as soon as its op has run."""
        if _is_zero(made) or tensor.producer is None or len(self.problem.ops[tensor.producer].writes) == 1:
            return made  # the only output of an op is not replayed when it is kept
        stays = self.cp.new_bool_var("")
        self._implies(made, stays, self._keep[tensor.index])
        return stays

    def _and_any(self, literal: Literal, later: Sequence[tuple[Literal, Literal]]) -> Literal | None:
        """A literal forced true when `literal` holds and some consumer is still to be replayed; None if none can."""
        open_consumers = [(y, x) for y, x in later if y is not x]
        if not open_consumers:
            return None
        both = self.cp.new_bool_var("")
        for y, x in open_consumers:
            self.cp.add_bool_or([both, negation(literal), negation(y), x])
        return both

    def _runs(self, op: int | None, step: int) -> Literal:
        """The op is replayed in exactly this unpack step: x[op, step] and not x[op, the step before]."""
        assert op is not None
        if (op, step) not in self._running:
            now, before = self.done(op, step), self._done_before(op, step)
            runs = 0 if _is_zero(now) else self.cp.new_bool_var("")
            self._implies(now, runs, before)
            self._running[op, step] = runs
        return self._running[op, step]

    # -- clauses ------------------------------------------------------------------------------------------------

    def _at_least_one(self, *literals: Literal) -> None:
        if any(isinstance(literal, int) and literal == 1 for literal in literals):
            return
        self.cp.add_bool_or([lit for lit in literals if not isinstance(lit, int)] or [self.cp.new_constant(0)])

    def _implies(self, cause: Literal, *effects: Literal) -> None:
        """Cause → one of the effects."""
        if _is_zero(cause):
            return
        self._at_least_one(negation(cause), *effects)


def _largest_peak(problem: Problem) -> int:
    """More than any plan can reach: everything alive at once."""
    copies = 2  # kept and replayed
    sizes = sum(t.size_bytes for t in problem.tensors) * copies + sum(op.scratch_bytes for op in problem.ops)
    return max(problem.base_bytes) + sizes


def negation(literal: Literal) -> Literal:
    """True where the literal is false."""
    return 1 - literal if isinstance(literal, int) else literal.negated()


def _is_zero(literal: Literal) -> bool:
    return isinstance(literal, int) and literal == 0


def _is_true(solver: cp_model.CpSolver, literal: Literal) -> bool:
    return bool(literal) if isinstance(literal, int) else bool(solver.boolean_value(literal))
