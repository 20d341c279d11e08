"""What goes to the host and back in a step, in the order in which the runtime does it, and how long the device waits.

Program order alone decides when memory is taken and given back, never the clock, so that a peak can be predicted:

    forward   A tensor's copy out begins when it is packed for the first time. What has begun to leave lies in a queue,
              and while that holds more than *staging*, the device waits for the oldest copy and lets its source go.
              At each packing this happens first to what was packed more than `Staging.lead` packings before. When the
              model's forward ends, all are waited for.
    backward  The first time a tensor on the host is asked for, its copy back begins, unless it has begun already, and
              the device waits for it. After that, others begin to come back in the reverse order of their last
              packing, as long as what has begun and was not asked for yet fits staging. For the first ones this
              happens before any is asked for: when the tensor is unpacked that was packed `Staging.lead` packings
              after them, or the last one of the model's forward if there are fewer. Parameters count; if that tensor
              is never unpacked, nothing happens then.

The clock says only how long each wait takes.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import accumulate

from planner.link import HostLink, Staging, host_bytes
from planner.problem import Packing, Problem

Schedule = Mapping[int, tuple[int, ...]]  # unpack step -> ops (positions in Problem.ops) replayed there, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A tensor's way to the host and back. Times in nanoseconds from the start of the step.

    Attributes:
        tensor: position in `Problem.tensors`.
        gone_step: from this step on its source is no longer held for the copy.
        back_step, back_replay: the moment at which its memory on the device is taken again: a step, or within it the
            replay of an op.
        out_ns, back_ns: when each copy starts and when it is done.
    """

    tensor: int
    gone_step: int
    back_step: int
    back_replay: int | None
    out_ns: tuple[int, int]
    back_ns: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """All copies of a step in the order in which they leave, and what they cost.

    Attributes:
        offloaded: what leaves.
        staging: what may be on its way.
        copies: one for each of them that is asked for.
        host_bytes: of host memory that they take together.
        forward_stall_ns, backward_stall_ns: how long the device waits for copies out, and for copies back.
    """

    offloaded: frozenset[int]
    staging: Staging
    copies: tuple[Copy, ...]
    host_bytes: int
    forward_stall_ns: int
    backward_stall_ns: int


NO_TRAFFIC = Traffic(
    offloaded=frozenset(), staging=Staging.of(()), copies=(), host_bytes=0, forward_stall_ns=0, backward_stall_ns=0
)


def traffic(
    problem: Problem, kept: Set[int], offloaded: Set[int], schedule: Schedule, *, staging: Staging | None = None
) -> Traffic:
    """The copies of a step.

    Args:
        problem: the step; it has a link, and every offloaded tensor has a packing.
        kept: positions of the tensors held from forward, here or on the host.
        offloaded: those of them that lie on the host.
        schedule: when what is replayed.
        staging: what may be on its way; what `Staging.of` says if not given.
    """
    if not offloaded:
        return NO_TRAFFIC
    assert problem.link is not None
    staging = staging or Staging.of(problem.tensors[index].size_bytes for index in offloaded)
    clock = _Clock(problem)
    out = _Out(problem, problem.link, clock, staging)
    for index in sorted(offloaded, key=lambda index: _packing(problem, index).first_rank):
        out.store(index)
    out.settle()
    forward_stall_ns = clock.waited_ns
    clock.go_to(problem.backward_step)
    back = _Back(problem, problem.link, clock, staging.back_bytes, offloaded, out.times_ns)
    turn = _turn_step(problem, offloaded, staging.lead)
    for step, replay, tensor in _asked(problem, kept, offloaded, schedule):
        if turn is not None and turn <= step:
            clock.go_to(turn)
            back.begin_ahead((turn, schedule[turn][0] if turn in schedule else None))
            turn = None
        clock.go_to(step)
        if tensor is not None:
            back.fetch(tensor, (step, replay))
        elif replay is not None:
            clock.spend(problem.ops[replay].cost_ns)
    return Traffic(
        offloaded=frozenset(offloaded),
        staging=staging,
        copies=tuple(
            Copy(
                tensor=index,
                gone_step=out.gone_step[index],
                back_step=back.begun[index][0],
                back_replay=back.begun[index][1],
                out_ns=out.times_ns[index],
                back_ns=back.times_ns[index],
            )
            for index in out.times_ns
        ),
        host_bytes=sum(host_bytes(problem.tensors[index].size_bytes) for index in offloaded),
        forward_stall_ns=forward_stall_ns,
        backward_stall_ns=clock.waited_ns - forward_stall_ns,
    )


def ideal_traffic(problem: Problem, kept: Set[int], offloaded: Set[int], schedule: Schedule) -> Traffic:
    """As if copies took no time and no staging: gone at once, and back only when asked for. Arguments as `traffic`.

    What is alive under it is alive under any traffic.
    """
    begun: dict[int, _Moment] = {}
    for step, replay, tensor in _asked(problem, kept, offloaded, schedule):
        if tensor is not None:
            begun.setdefault(tensor, (step, replay))
    return Traffic(
        offloaded=frozenset(offloaded),
        staging=Staging.of(()),
        copies=tuple(
            Copy(tensor=index, gone_step=0, back_step=step, back_replay=replay, out_ns=(0, 0), back_ns=(0, 0))
            for index, (step, replay) in begun.items()
        ),
        host_bytes=sum(host_bytes(problem.tensors[index].size_bytes) for index in offloaded),
        forward_stall_ns=0,
        backward_stall_ns=0,
    )


def _packing(problem: Problem, index: int) -> Packing:
    packing = problem.tensors[index].packing
    assert packing is not None, f"tensor {index} may not be offloaded"
    return packing


class _Clock:
    """The time at which the device reaches a point of the program, with what it has waited and replayed by then."""

    def __init__(self, problem: Problem) -> None:
        self._starts_ns = list(accumulate(problem.times_ns, initial=0))
        self._step = 0
        self._added_ns = 0
        self.waited_ns = 0

    @property
    def now_ns(self) -> int:
        return self._starts_ns[self._step] + self._added_ns

    def go_to(self, step: int) -> None:
        self._step = step

    def spend(self, time_ns: int) -> None:
        self._added_ns += time_ns

    def wait_until(self, time_ns: int) -> None:
        late_ns = max(0, time_ns - self.now_ns)
        self._added_ns += late_ns
        self.waited_ns += late_ns


class _Out:
    """The way to the host."""

    def __init__(self, problem: Problem, link: HostLink, clock: _Clock, staging: Staging) -> None:
        self._problem, self._link, self._clock, self._staging = problem, link, clock, staging
        self._free_ns = 0
        self._leaving: deque[int] = deque()
        self._leaving_bytes = 0
        self.times_ns: dict[int, tuple[int, int]] = {}
        self.gone_step: dict[int, int] = {}

    def store(self, index: int) -> None:
        packing = _packing(self._problem, index)
        self._let_old_go(packing.first_rank)
        self._clock.go_to(packing.step)
        size_bytes = self._problem.tensors[index].size_bytes
        start_ns = max(self._free_ns, self._clock.now_ns)
        self._free_ns = start_ns + self._link.copy_ns(size_bytes)
        self.times_ns[index] = start_ns, self._free_ns
        self._leaving.append(index)
        self._leaving_bytes += size_bytes
        while self._leaving_bytes > self._staging.out_bytes:
            self._let_go(packing.step)

    def settle(self) -> None:
        self._let_old_go(len(self._problem.packs) - 1)
        self._clock.go_to(self._problem.settle_step)
        while self._leaving:  # even without bytes
            self._let_go(self._problem.settle_step)

    def _let_old_go(self, rank: int) -> None:
        """Let go what is too old at a packing, or at one before it."""
        while self._leaving:
            due = _packing(self._problem, self._leaving[0]).first_rank + self._staging.lead + 1
            if due > rank or self._problem.packs[due].step >= self._problem.settle_step:
                return
            self._clock.go_to(self._problem.packs[due].step)
            self._let_go(self._problem.packs[due].step)

    def _let_go(self, step: int) -> None:
        index = self._leaving.popleft()
        self._clock.wait_until(self.times_ns[index][1])
        self._leaving_bytes -= self._problem.tensors[index].size_bytes
        self.gone_step[index] = step


_Moment = tuple[int, int | None]  # a step, or within it the replay of an op


class _Back:
    """The way back."""

    def __init__(
        self,
        problem: Problem,
        link: HostLink,
        clock: _Clock,
        limit_bytes: int,
        offloaded: Set[int],
        out_ns: Mapping[int, tuple[int, int]],
    ) -> None:
        self._problem, self._link, self._clock, self._limit_bytes = problem, link, clock, limit_bytes
        self._out_ns = out_ns
        self._queue = sorted(offloaded, key=lambda index: _packing(problem, index).last_rank)
        self._free_ns = 0
        self._coming: set[int] = set()
        self._coming_bytes = 0
        self.begun: dict[int, _Moment] = {}
        self.times_ns: dict[int, tuple[int, int]] = {}

    def fetch(self, index: int, moment: _Moment) -> None:
        if index not in self.begun:
            self._begin(index, moment)
        if index not in self._coming:
            return  # it is there
        self._clock.wait_until(self.times_ns[index][1])
        self._coming.remove(index)
        self._coming_bytes -= self._problem.tensors[index].size_bytes
        self.begin_ahead(moment)

    def begin_ahead(self, moment: _Moment) -> None:
        while self._queue:
            following = self._queue[-1]
            if following not in self.begun:
                if self._coming_bytes + self._problem.tensors[following].size_bytes > self._limit_bytes:
                    return
                self._begin(following, moment)
            self._queue.pop()

    def _begin(self, index: int, moment: _Moment) -> None:
        size_bytes = self._problem.tensors[index].size_bytes
        start_ns = max(self._free_ns, self._clock.now_ns, self._out_ns[index][1])
        self._free_ns = start_ns + self._link.copy_ns(size_bytes)
        self.times_ns[index] = start_ns, self._free_ns
        self.begun[index] = moment
        self._coming.add(index)
        self._coming_bytes += size_bytes


def _turn_step(problem: Problem, offloaded: Set[int], lead: int) -> int | None:
    """When the first tensors begin to come back."""
    rank = max(_packing(problem, index).last_rank for index in offloaded) + lead
    return problem.packs[min(rank, len(problem.packs) - 1)].unpack_step if problem.packs else None


def _asked(
    problem: Problem, kept: Set[int], offloaded: Set[int], schedule: Schedule
) -> Iterator[tuple[int, int | None, int | None]]:
    """(step, replay, tensor) of backward in program order: a tensor on the host is asked for, or an op is replayed.

    A tensor is asked for by an unpack, at the next replay of the same step if one follows, or by a replay that reads
    it; where `tensor` is None, the op runs.
    """
    unpacked: dict[int, list[int]] = {}
    for tensor in problem.tensors:
        if tensor.index not in kept or tensor.index in offloaded:
            for step, _ in tensor.uses:
                unpacked.setdefault(step, []).append(tensor.index)
    for step in sorted(set(unpacked) | set(schedule)):
        replays = deque(schedule.get(step, ()))
        for index in unpacked.get(step, ()):
            if index in offloaded:
                yield step, (replays[0] if replays else None), index
                continue
            producer = problem.tensors[index].producer
            if producer in replays:
                while replays[0] != producer:
                    yield from _replay(problem, offloaded, step, replays.popleft())
                yield from _replay(problem, offloaded, step, replays.popleft())
        for op in replays:
            yield from _replay(problem, offloaded, step, op)


def _replay(problem: Problem, offloaded: Set[int], step: int, op: int) -> Iterator[tuple[int, int | None, int | None]]:
    for read in problem.ops[op].reads:
        if read in offloaded:
            yield step, op, read
    yield step, op, None
