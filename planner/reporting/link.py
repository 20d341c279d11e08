"""What a plan asks of the link to the host: every copy, when it runs, and what the device waits for it."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.blocks import BlockIndex, block_levels
from planner.graph import OpGraph, Phase, modules, ops, saved_tensors, step_in_words, step_info
from planner.link import Staging
from planner.patterns import compress
from planner.problem import moment_in_words

if TYPE_CHECKING:
    from planner.problem import Problem
    from planner.simulation.liveness import Timeline
    from planner.simulation.transfers import Copy

_NS_PER_S = 1_000_000_000
# Stretches of each phase: so many of blocks and one of what is beside them, or equal parts of its time.
_BLOCK_STRETCHES = 4
_PARTS = 5
_REST = "the rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCopy:
    """A tensor's way to the host and back. Times in seconds from the start of the step, replays and waiting included.

    Attributes:
        module_fqn, op: as in the decision about it.
        out_s, back_s: when each copy starts and when it is done.
        gone_at, back_at: where in the step its memory on the device is given back, and taken again.
    """

    module_fqn: str
    op: str
    size_bytes: int
    out_s: tuple[float, float]
    gone_at: str
    back_s: tuple[float, float]
    back_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of the step, and what the link does meanwhile.

    Attributes:
        modules: the blocks that begin in it, or which part of the phase it is.
        busy: the share of its time with a copy under way.
        stall_s: of its time, with the device waiting for one.
    """

    phase: Phase
    modules: str
    start_s: float
    end_s: float
    out_bytes: int
    back_bytes: int
    busy: float
    stall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """The timeline of the link in a step.

    Attributes:
        tensors, size_bytes: what lies on the host until backward.
        host_bytes, host_budget_bytes: what that takes there, and what it may take.
        forward_busy, backward_busy: the share of their time with a copy under way.
        forward_stall_s, backward_stall_s: how long the device waits for copies in each.
        staging: what copies may hold of the device's memory.
        staged_out_bytes, staged_back_bytes: the most that they do hold, between the ops of the step.
        stretches: the step in parts, in order.
        copies: in the order in which they leave.
        waits_s: from when until when the device waits for copies, each time.
    """

    tensors: int
    size_bytes: int
    host_bytes: int
    host_budget_bytes: int
    forward_busy: float
    backward_busy: float
    forward_stall_s: float
    backward_stall_s: float
    staging: Staging
    staged_out_bytes: int
    staged_back_bytes: int
    stretches: tuple[Stretch, ...]
    copies: tuple[LinkCopy, ...]
    waits_s: tuple[tuple[float, float], ...]

    @property
    def stall_s(self) -> float:
        """How long the device waits in all."""
        return self.forward_stall_s + self.backward_stall_s


def summarize_link(timeline: "Timeline", problem: "Problem", graph: OpGraph) -> LinkUse | None:
    """What the step asks of the link; None if nothing leaves."""
    copies = timeline.traffic.copies
    if not copies:
        return None
    assert problem.link is not None
    clock = Clock(timeline, problem)
    sizes_bytes = [problem.tensors[copy.tensor].size_bytes for copy in copies]
    stretches = tuple(_stretch(clock, copies, sizes_bytes, *cut) for cut in _cuts(graph, clock))
    packed = {saved.value: saved for saved in reversed(saved_tensors(graph))}  # the first packing of each
    turn_ns, end_ns = clock.reached_ns[clock.first[problem.backward_step]], clock.reached_ns[-1]
    out, back = [copy.out_ns for copy in copies], [copy.back_ns for copy in copies]
    return LinkUse(
        tensors=len(timeline.traffic.offloaded),
        size_bytes=sum(problem.tensors[index].size_bytes for index in timeline.traffic.offloaded),
        host_bytes=timeline.traffic.host_bytes,
        host_budget_bytes=problem.link.budget_bytes,
        forward_busy=_busy_ns(out, turn_ns) / turn_ns if turn_ns else 0.0,
        backward_busy=_busy_ns(back, end_ns) / (end_ns - turn_ns) if end_ns > turn_ns else 0.0,
        forward_stall_s=timeline.traffic.forward_stall_ns / _NS_PER_S,
        backward_stall_s=timeline.traffic.backward_stall_ns / _NS_PER_S,
        staging=timeline.traffic.staging,
        staged_out_bytes=_most_held(
            (_packed_step(problem, copy), copy.gone_step, size) for copy, size in zip(copies, sizes_bytes, strict=True)
        ),
        staged_back_bytes=_most_held(
            (clock.begun(copy), clock.asked(copy.tensor), size) for copy, size in zip(copies, sizes_bytes, strict=True)
        ),
        stretches=stretches,
        copies=tuple(
            LinkCopy(
                module_fqn=packed[problem.tensors[copy.tensor].value].module_fqn,
                op=packed[problem.tensors[copy.tensor].value].op,
                size_bytes=size_bytes,
                out_s=_seconds(copy.out_ns),
                gone_at=_gone_at(problem, graph, copy),
                back_s=_seconds(copy.back_ns),
                back_at=moment_in_words(problem, graph, copy.back_step, copy.back_replay),
            )
            for copy, size_bytes in zip(copies, sizes_bytes, strict=True)
        ),
        waits_s=tuple(_seconds(wait) for wait in clock.waits_ns),
    )


class Clock:
    """When the device reaches each moment of the timeline, and how long it has waited by then.

    Attributes:
        first: of each step, the place of its first moment; one past the last step, that of the end.
        reached_ns, waited_ns: at each place, when copies out have been waited for, and before copies back are.
        waits_ns: from when until when it waits, each time.
    """

    def __init__(self, timeline: "Timeline", problem: "Problem") -> None:
        self._problem = problem
        self._replay: dict[int, int] = {}  # op -> place
        self.first: dict[int, int] = {}
        for place, point in enumerate(timeline.points):
            self.first.setdefault(point.step, place)
            if point.replay is not None:
                self._replay[point.replay] = place
        self.first[len(problem.base_bytes)] = len(timeline.points)
        self._asked: dict[int, int] = {}
        gone, asked = defaultdict(list), defaultdict(list)
        for copy in timeline.traffic.copies:
            gone[self.first[copy.gone_step]].append(copy.out_ns[1])
            self._asked[copy.tensor] = self._first_asked(copy.tensor)
            asked[self._asked[copy.tensor]].append(copy.back_ns[1])
        self.reached_ns: list[int] = []
        self.waited_ns: list[int] = []
        self.waits_ns: list[tuple[int, int]] = []
        now_ns = waited_ns = 0
        for place, point in enumerate(timeline.points):
            for done_ns in (max(gone[place], default=0), max(asked[place], default=0)):
                late_ns = max(0, done_ns - now_ns)
                if late_ns:
                    self.waits_ns.append((now_ns, done_ns))
                now_ns, waited_ns = now_ns + late_ns, waited_ns + late_ns
                if len(self.reached_ns) == place:
                    self.reached_ns.append(now_ns)
                    self.waited_ns.append(waited_ns)
            is_replay = point.replay is not None
            now_ns += problem.ops[point.replay].cost_ns if is_replay else problem.times_ns[point.step]  # type: ignore[index]
        self.reached_ns.append(now_ns)
        self.waited_ns.append(waited_ns)

    def asked(self, tensor: int) -> int:
        """The place at which a tensor that comes back is first asked for."""
        return self._asked[tensor]

    def begun(self, copy: "Copy") -> int:
        """The place at which its copy back begins."""
        return self.first[copy.back_step] if copy.back_replay is None else self._replay[copy.back_replay]

    def _first_asked(self, tensor: int) -> int:
        record = self._problem.tensors[tensor]
        return min(
            [self.first[unpack] for unpack, _ in record.uses]
            + [self._replay[op] for op in record.consumers if op in self._replay]
        )


def _cuts(graph: OpGraph, clock: Clock) -> list[tuple[Phase, str, int, int]]:
    """(phase, name, place, place after it) of each stretch."""
    turn, steps = step_info(graph).backward_step, step_info(graph).steps
    phases = ((Phase.FORWARD, 0, turn), (Phase.BACKWARD, turn, steps))
    found = []
    for phase, start, end in phases:
        cuts = _block_cuts(graph, phase, start, end)
        if cuts:
            found += [(phase, name, clock.first[a], clock.first[b]) for name, a, b in cuts]
        else:
            parts = _equal_parts(clock.reached_ns, clock.first[start], clock.first[end])
            found += [(phase, f"part {number} of {len(parts)}", a, b) for number, (a, b) in enumerate(parts, start=1)]
    return [cut for cut in found if clock.reached_ns[cut[3]] > clock.reached_ns[cut[2]]]


def _block_cuts(graph: OpGraph, phase: Phase, start: int, end: int) -> list[tuple[str, int, int]]:
    """(modules, step, step after it) by repeated blocks, in the order in which they begin; nothing without blocks."""
    levels = block_levels(modules(graph))
    block_of = BlockIndex(levels[0] if levels else ())
    begins: dict[str, int] = {}
    before = start - 1
    last = start
    for op in ops(graph):
        if op.phase is phase:
            block = block_of(op.module_fqn)
            if block is not None:
                begins.setdefault(block, before + 1)  # what its op unpacks comes before it
                last = op.step
            before = op.step
    if len(begins) < 2:
        return []
    groups = list(_even(tuple(begins), _BLOCK_STRETCHES))
    steps = [begins[group[0]] for group in groups]
    names = [", ".join(pattern for pattern, _ in compress((fqn, None) for fqn in group)) for group in groups]
    if phase is Phase.FORWARD:  # what precedes the blocks counts with the first of them, ...
        bounds = [start, *steps[1:], last + 1, end]
        return [*((name, a, b) for name, (a, b) in zip([*names, _REST], pairwise(bounds), strict=True))]
    bounds = [start, *steps, end]  # ... and in backward with the last
    return [*((name, a, b) for name, (a, b) in zip([_REST, *names], pairwise(bounds), strict=True))]


def _even(items: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    count = min(most, len(items))
    for part in range(count):
        yield items[part * len(items) // count : (part + 1) * len(items) // count]


def _equal_parts(reached_ns: Sequence[int], start: int, end: int) -> list[tuple[int, int]]:
    start_ns, length_ns = reached_ns[start], reached_ns[end] - reached_ns[start]
    inner = (
        bisect_left(reached_ns, start_ns + part * length_ns // _PARTS, lo=start, hi=end) for part in range(1, _PARTS)
    )
    return list(pairwise(dict.fromkeys((start, *inner, end))))  # fewer where the device waits for longer than one


def _stretch(
    clock: Clock, copies: Sequence["Copy"], sizes_bytes: Sequence[int], phase: Phase, name: str, start: int, end: int
) -> Stretch:
    start_ns, end_ns = clock.reached_ns[start], clock.reached_ns[end]
    out, back = [copy.out_ns for copy in copies], [copy.back_ns for copy in copies]
    busy_ns = _busy_ns(out, end_ns) - _busy_ns(out, start_ns) + _busy_ns(back, end_ns) - _busy_ns(back, start_ns)
    return Stretch(
        phase=phase,
        modules=name,
        start_s=start_ns / _NS_PER_S,
        end_s=end_ns / _NS_PER_S,
        out_bytes=_moved_bytes(out, sizes_bytes, end_ns) - _moved_bytes(out, sizes_bytes, start_ns),
        back_bytes=_moved_bytes(back, sizes_bytes, end_ns) - _moved_bytes(back, sizes_bytes, start_ns),
        busy=busy_ns / (end_ns - start_ns),
        stall_s=(clock.waited_ns[end] - clock.waited_ns[start]) / _NS_PER_S,
    )


def _busy_ns(spans: Iterable[tuple[int, int]], until_ns: int) -> int:
    return sum(max(0, min(end, until_ns) - start) for start, end in spans)


def _moved_bytes(spans: Iterable[tuple[int, int]], sizes_bytes: Iterable[int], until_ns: int) -> int:
    """Of copies under way, the share of their time that has passed."""
    return sum(
        size if end <= until_ns else size * max(0, until_ns - start) // (end - start)
        for (start, end), size in zip(spans, sizes_bytes, strict=True)
    )


def _most_held(lives: Iterable[tuple[int, int, int]]) -> int:
    """The most bytes at a time, of (from, until, bytes)."""
    change: dict[int, int] = defaultdict(int)
    for start, stop, size_bytes in lives:
        change[start] += size_bytes
        change[stop] -= size_bytes
    held_bytes = most_bytes = 0
    for place in sorted(change):
        held_bytes += change[place]
        most_bytes = max(most_bytes, held_bytes)
    return most_bytes


def _packed_step(problem: "Problem", copy: "Copy") -> int:
    packing = problem.tensors[copy.tensor].packing
    assert packing is not None
    return packing.step


def _gone_at(problem: "Problem", graph: OpGraph, copy: "Copy") -> str:
    return "end of forward" if copy.gone_step >= problem.settle_step else step_in_words(graph, copy.gone_step)


def _seconds(span_ns: tuple[int, int]) -> tuple[float, float]:
    return span_ns[0] / _NS_PER_S, span_ns[1] / _NS_PER_S
