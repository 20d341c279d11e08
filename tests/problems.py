"""Small retention problems: random ones for property tests, and a slow, obvious way to run a plan."""

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations

from hypothesis import strategies as st

from planner.link import HostLink, Staging
from planner.problem import Pack, Packing, Problem, ReplayOp, Tensor


@st.composite
def problems(draw: st.DrawFn, max_ops: int = 7, max_movable: int = 0) -> Problem:
    """A step of up to `max_ops` forward ops on random data flow, and a backward that unpacks what was saved.

    Backward unpacks in any order, more than once, and holds for any time; some ops cannot be replayed, some write two
    tensors, some outputs cannot be kept, and memory that no plan changes varies freely.

    Args:
        draw: from hypothesis.
        max_ops: the most ops of forward.
        max_movable: the most tensors that may lie on the host; without any, there is no link. With a link, several
            tensors may be unpacked in one step.
    """
    count = draw(st.integers(1, max_ops))
    reads: list[list[int]] = []
    writes: list[list[int]] = []
    producer: list[int] = []
    for op in range(count):
        known = len(producer)
        reads.append(draw(st.lists(st.integers(0, known - 1), max_size=3, unique=True)) if known else [])
        outputs = draw(st.integers(1, 2))
        writes.append(list(range(known, known + outputs)))
        producer += [op] * outputs
    total = len(producer)
    saved = [draw(st.booleans()) for _ in range(total)]
    saved[-1] = True
    backward = count
    unpacks = draw(st.permutations([t for t in range(total) if saved[t]] + draw(_repeats(saved))))
    length = backward + 2 * len(unpacks) + 1
    at_once = draw(st.integers(1, 2)) if max_movable else 1
    uses: dict[int, list[tuple[int, int]]] = {}
    for place, tensor in enumerate(unpacks):
        unpack = backward + 2 * (place // at_once)
        release = draw(st.integers(unpack + 1, min(unpack + 4, length)))
        uses.setdefault(tensor, []).append((unpack, release))
    is_boundary = [draw(st.booleans()) for _ in range(total)]
    can_replay = [draw(st.integers(0, 4)) > 0 for _ in range(count)]
    for op in range(count):  # an op is replayable only if each input can still be there
        can_replay[op] &= all(saved[t] or is_boundary[t] or can_replay[producer[t]] for t in reads[op])
    position = {op: place for place, op in enumerate(op for op in range(count) if can_replay[op])}
    tensors = tuple(
        Tensor(
            index=t,
            value=t,
            size_bytes=draw(st.integers(0, 9)),
            producer=position.get(producer[t]),
            may_keep=saved[t] or is_boundary[t],
            must_keep=saved[t] and producer[t] not in position,
            free_step=draw(st.integers(producer[t] + 1, backward + 1)),
            uses=tuple(sorted(uses.get(t, ()))),
            consumers=tuple(position[op] for op in range(count) if t in reads[op] and op in position),
        )
        for t in range(total)
    )
    ops = tuple(
        ReplayOp(
            index=place,
            step=op,
            name=f"op{op}",
            module_fqn="",
            cost_ns=draw(st.integers(1, 9)),
            reads=tuple(reads[op]),
            writes=tuple(writes[op]),
            scratch_bytes=draw(st.integers(0, 3)),
        )
        for op, place in position.items()
    )
    problem = Problem(
        tensors=tensors,
        ops=ops,
        base_bytes=tuple(draw(st.lists(st.integers(0, 9), min_size=length, max_size=length))),
        backward_step=backward,
        optimizer_peak_bytes=0,
        step_ns=100,
    )
    return _with_link(draw, problem, producer, max_movable=max_movable, unit_bytes=1) if max_movable else problem


def _repeats(saved: list[bool]) -> st.SearchStrategy[list[int]]:
    """Tensors that backward unpacks a second time."""
    return st.lists(st.sampled_from([t for t, is_saved in enumerate(saved) if is_saved]), max_size=2)


def _with_link(
    draw: st.DrawFn, problem: Problem, made_steps: Sequence[int], *, max_movable: int, unit_bytes: int
) -> Problem:
    """The same step with a link to the host, of any speed and with any room there."""
    backward = problem.backward_step
    settle = draw(st.sampled_from([backward, backward, draw(st.integers(0, backward))]))
    # Step 1: every saved tensor is packed once or twice; what does not count here is packed and unpacked in between.
    packs: list[tuple[int, int, int | None]] = []
    may_move: set[int] = set()
    for tensor in problem.tensors:
        first, last = made_steps[tensor.index] + 1, max(made_steps[tensor.index] + 1, min(tensor.free_step, backward))
        if not tensor.uses:
            continue
        is_free = len(may_move) < max_movable and draw(st.integers(0, 3)) > 0
        if is_free and tensor.may_keep and tensor.free_step <= backward and first <= settle:
            may_move.add(tensor.index)
            last = min(last, settle)
        for _ in range(draw(st.integers(1, 2))):
            packs.append((draw(st.integers(first, last)), draw(st.integers(0, 99)), tensor.index))
    for _ in range(draw(st.integers(0, 2))):
        packs.append((draw(st.integers(0, backward)), draw(st.integers(0, 99)), None))
    packs.sort(key=lambda pack: pack[:2])
    # Step 2: ranks, and when each is unpacked.
    ranks: defaultdict[int, list[int]] = defaultdict(list)
    unpack_steps: list[int | None] = []
    all_unpacks = sorted({unpack for tensor in problem.tensors for unpack, _ in tensor.uses})
    for rank, (_, _, index) in enumerate(packs):
        if index is None:
            unpack_steps.append(draw(st.sampled_from([None, *all_unpacks])))
        else:
            ranks[index].append(rank)
            unpack_steps.append(draw(st.sampled_from([unpack for unpack, _ in problem.tensors[index].uses])))
    tensors = tuple(
        replace(
            tensor,
            packing=Packing(
                step=packs[ranks[tensor.index][0]][0],
                first_rank=ranks[tensor.index][0],
                last_rank=ranks[tensor.index][-1],
            )
            if tensor.index in may_move
            else None,
        )
        for tensor in problem.tensors
    )
    # Step 3: times and the link.
    steps = len(problem.base_bytes)
    whole_bytes = sum(-(-problem.tensors[index].size_bytes // 256) * 256 for index in may_move)
    return replace(
        problem,
        tensors=tensors,
        times_ns=tuple(draw(st.lists(st.integers(0, 9), min_size=steps, max_size=steps))),
        link=HostLink(
            bytes_per_s=unit_bytes * 1e9 / draw(st.sampled_from([0.25, 0.5, 1, 2, 4])),
            launch_ns=draw(st.integers(0, 3)),
            budget_bytes=draw(st.sampled_from([whole_bytes, whole_bytes, whole_bytes // 2, whole_bytes // 4])),
        ),
        packs=tuple(
            Pack(step=step, unpack_step=unpack) for (step, _, _), unpack in zip(packs, unpack_steps, strict=True)
        ),
        settle_step=settle,
    )


def stagings(problem: Problem) -> st.SearchStrategy[Staging]:
    """What copies may hold: nothing, much, or anything."""
    most = sum(tensor.size_bytes for tensor in problem.tensors)
    size = st.sampled_from([0, most // 4, most // 2, most])
    return st.builds(Staging, out_bytes=size, back_bytes=size, lead=st.integers(0, 4))


def all_offloads(problem: Problem, kept: Set[int]) -> Iterator[frozenset[int]]:
    """Every set of the kept tensors that may lie on the host and has room there."""
    assert problem.link is not None
    movable = [tensor for tensor in problem.tensors if tensor.index in kept and tensor.packing is not None]
    for size in range(len(movable) + 1):
        for chosen in combinations(movable, size):
            if sum(-(-tensor.size_bytes // 256) * 256 for tensor in chosen) <= problem.link.budget_bytes:
                yield frozenset(tensor.index for tensor in chosen)


def all_plans(problem: Problem) -> Iterator[frozenset[int]]:
    """Every set of tensors a plan could keep."""
    choices = [tensor.index for tensor in problem.choices]
    for size in range(len(choices) + 1):
        for chosen in combinations(choices, size):
            yield problem.must_keep | frozenset(chosen)


def run_slowly(problem: Problem, kept: Set[int]) -> tuple[int, int]:
    """(peak bytes, recompute ns) of a plan, by acting the runtime out: a set of live copies, step after step."""
    unpacks = {unpack: t.index for t in problem.tensors for unpack, _ in t.uses}
    # What is replayed when: the needs of each unpack, worked out by recursion.
    replayed: set[int] = set()
    agenda: dict[int, list[int]] = {}

    def need(tensor: int, step: int) -> None:
        op = problem.tensors[tensor].producer
        if tensor in kept or op in replayed:
            return
        assert op is not None
        replayed.add(op)
        for read in problem.ops[op].reads:
            need(read, step)
        agenda.setdefault(step, []).append(op)

    for step in sorted(unpacks):
        need(unpacks[step], step)
    remaining = [(step, op) for step in sorted(agenda) for op in sorted(agenda[step])]

    def is_needed(tensor: int, step: int, after: int) -> bool:
        """Whether backward still holds or unpacks the tensor, or a replay after the `after`-th reads it."""
        held = any(release > step for _, release in problem.tensors[tensor].uses)
        return held or any(tensor in problem.ops[op].reads for _, op in remaining[after:])

    peak, done, made = 0, 0, set[int]()
    for step, base in enumerate(problem.base_bytes):
        held = {t for t in kept if problem.tensors[t].free_step <= step}
        if step >= problem.backward_step:
            made = {t for t in made if is_needed(t, step, done)}
        while done < len(remaining) and remaining[done][0] == step:
            op = problem.ops[remaining[done][1]]
            alive = {t for t in held if is_needed(t, step, done)}
            size = sum(problem.tensors[t].size_bytes for t in [*alive, *made, *op.writes])
            peak = max(peak, base + size + op.scratch_bytes)
            done += 1
            made = {t for t in (*made, *(set(op.writes) - kept)) if is_needed(t, step, done)}
        alive = {t for t in held if is_needed(t, step, done)}
        peak = max(peak, base + sum(problem.tensors[t].size_bytes for t in [*alive, *made]))
    return peak, sum(problem.ops[op].cost_ns for _, op in remaining)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """What a step with copies to the host comes to."""

    peak_bytes: int
    recompute_ns: int
    forward_stall_ns: int
    backward_stall_ns: int
    host_bytes: int


class OffloadedRun:
    """Acts out a step in which some tensors lie on the host: what lies where, and what time it is, moment by moment.

    Args:
        problem: the step; with a link.
        kept: held from forward.
        offloaded: those of them that go to the host.
        staging: what may be on its way.
    """

    def __init__(self, problem: Problem, kept: Set[int], offloaded: Set[int], staging: Staging) -> None:
        self.problem, self.kept, self.offloaded, self.staging = problem, kept, offloaded, staging
        self.now_ns = self.stall_ns = 0
        self.peak_bytes = problem.optimizer_peak_bytes
        self.out_free_ns = self.back_free_ns = 0  # when each direction of the link has done all it was given
        self.leaving: list[tuple[int, int]] = []  # (tensor, when its copy out is done), oldest first
        self.coming: dict[int, int] = {}  # what was not asked for yet, and when its copy back is done
        self.back: set[int] = set()  # what was asked for, or is coming
        self.out_done_ns: dict[int, int] = {}
        self.made: set[int] = set()
        self.ready: set[int] = set()  # ops that have been replayed
        self.reads_to_come = self._reads_to_come()

    def _lacking(self, tensor: int, ready: Set[int]) -> list[int]:
        """Ops to replay before a tensor is there."""
        op = self.problem.tensors[tensor].producer
        if tensor in self.kept or op in ready:
            return []
        assert op is not None
        found = {op}
        for read in self.problem.ops[op].reads:
            found.update(self._lacking(read, ready))
        return sorted(found)

    def _unpacked(self, step: int) -> list[int]:
        return [t.index for t in self.problem.tensors if any(unpack == step for unpack, _ in t.uses)]

    def _reads_to_come(self) -> list[int]:
        """The tensors that replays will read, one entry per read."""
        ready: set[int] = set()
        for step in range(len(self.problem.base_bytes)):
            for tensor in self._unpacked(step):
                ready.update(self._lacking(tensor, ready))
        return [read for op in ready for read in self.problem.ops[op].reads]

    def act(self) -> Acted:
        """Go through the whole step."""
        problem = self.problem
        for step in range(problem.backward_step):
            self._pack(step)
            self._see(step)
            self.now_ns += problem.times_ns[step]
        self._pack(problem.backward_step)
        assert not self.leaving
        forward_ns = self.stall_ns
        began_ns, recompute_ns = self.now_ns, 0
        for step in range(problem.backward_step, len(problem.base_bytes)):
            recompute_ns += self._go_back(step)
            self.now_ns += problem.times_ns[step]
        assert self.now_ns - began_ns == (
            sum(problem.times_ns[problem.backward_step :]) + recompute_ns + self.stall_ns - forward_ns
        )
        return Acted(
            peak_bytes=self.peak_bytes,
            recompute_ns=recompute_ns,
            forward_stall_ns=forward_ns,
            backward_stall_ns=self.stall_ns - forward_ns,
            host_bytes=sum(-(-problem.tensors[t].size_bytes // 256) * 256 for t in self.offloaded),
        )

    # -- forward ------------------------------------------------------------------------------------------------

    def _pack(self, step: int) -> None:
        for rank in [rank for rank, pack in enumerate(self.problem.packs) if pack.step == step]:
            while self.leaving and self._rank(self.leaving[0][0]) < rank - self.staging.lead:
                self._wait(self.leaving.pop(0)[1])
            for index in [t for t in self.offloaded if self._rank(t) == rank]:
                begin_ns = max(self.now_ns, self.out_free_ns)
                self.out_free_ns = self.out_done_ns[index] = begin_ns + self._copy_ns(index)
                self.leaving.append((index, self.out_free_ns))
                while sum(self._size(t) for t, _ in self.leaving) > self.staging.out_bytes:
                    self._wait(self.leaving.pop(0)[1])
        if step == self.problem.settle_step:
            for _, done_ns in self.leaving:
                self._wait(done_ns)
            self.leaving = []

    def _rank(self, index: int) -> int:
        packing = self.problem.tensors[index].packing
        assert packing is not None
        return packing.first_rank

    # -- backward -----------------------------------------------------------------------------------------------

    def _go_back(self, step: int) -> int:
        """The time of what is replayed."""
        spent_ns = 0
        if step == self._turn_step():
            self._come_ahead()
        for tensor in self._unpacked(step):
            if tensor in self.offloaded:
                self._ask(tensor)
            for op in self._lacking(tensor, self.ready):
                spent_ns += self._replay(step, op)
        self._see(step)
        return spent_ns

    def _replay(self, step: int, op: int) -> int:
        ran = self.problem.ops[op]
        for read in ran.reads:
            if read in self.offloaded:
                self._ask(read)
        self._see(step, *ran.writes, scratch_bytes=ran.scratch_bytes)
        self.ready.add(op)
        self.now_ns += ran.cost_ns
        for read in ran.reads:
            self.reads_to_come.remove(read)
        self.made.update(set(ran.writes) - set(self.kept))
        return ran.cost_ns

    def _turn_step(self) -> int | None:
        """When the first tensors begin to come back."""
        ranks = [p.last_rank for t in self.offloaded if (p := self.problem.tensors[t].packing) is not None]
        if not ranks:
            return None
        last = len(self.problem.packs) - 1
        return self.problem.packs[min(max(ranks) + self.staging.lead, last)].unpack_step

    def _ask(self, index: int) -> None:
        if index in self.back and index not in self.coming:
            return
        if index not in self.coming:
            self._come(index)
        self._wait(self.coming.pop(index))
        self._come_ahead()

    def _come_ahead(self) -> None:
        def last_rank(index: int) -> int:
            packing = self.problem.tensors[index].packing
            assert packing is not None
            return packing.last_rank

        for index in sorted(self.offloaded - self.back, key=last_rank, reverse=True):
            if sum(map(self._size, self.coming)) + self._size(index) > self.staging.back_bytes:
                break
            self._come(index)

    def _come(self, index: int) -> None:
        begin_ns = max(self.now_ns, self.back_free_ns)
        assert begin_ns >= self.out_done_ns[index]
        self.back_free_ns = self.coming[index] = begin_ns + self._copy_ns(index)
        self.back.add(index)

    # -- both ---------------------------------------------------------------------------------------------------

    def _copy_ns(self, index: int) -> int:
        link = self.problem.link
        assert link is not None
        return link.launch_ns + round(self._size(index) / link.bytes_per_s * 1e9)

    def _size(self, index: int) -> int:
        return self.problem.tensors[index].size_bytes

    def _wait(self, until_ns: int) -> None:
        late_ns = max(0, until_ns - self.now_ns)
        self.stall_ns += late_ns
        self.now_ns += late_ns

    def _see(self, step: int, *written: int, scratch_bytes: int = 0) -> None:
        """Take note of what is alive now."""
        leaving = {t for t, _ in self.leaving}
        here = [t for t in self.kept if t not in self.offloaded or t in leaving]
        alive = [t for t in here if self.problem.tensors[t].free_step <= step] + [*self.back, *self.made]
        needed = [t for t in alive if t in leaving or self._is_needed(t, step)]
        size_bytes = sum(map(self._size, [*needed, *written]))
        self.peak_bytes = max(self.peak_bytes, self.problem.base_bytes[step] + size_bytes + scratch_bytes)

    def _is_needed(self, index: int, step: int) -> bool:
        held = any(release > step for _, release in self.problem.tensors[index].uses)
        return held or index in self.reads_to_come


_INTO_BACKWARD = 100  # more than any chain has steps


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainProblem:
    """A step whose forward is a sequence of cells, and the ops at which they start."""

    problem: Problem
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A tensor of a template. Steps are relative: `lives` to its op; `unpacks` are places in the window of its cell."""

    op: int
    size_bytes: int
    is_saved: bool
    is_boundary: bool
    lives: int
    holds: int


@st.composite
def chain_problems(
    draw: st.DrawFn, unit_bytes: int = 1 << 26, max_choices: int = 11, max_movable: int = 0
) -> ChainProblem:
    """A step of 2 to 4 cells made from one or two random templates, with few enough choices to try every plan.

    Each cell reads what the one before hands on: one link, sometimes two. Backward unpacks the cells last first. Some
    links are saved by the cell that makes them, by the next, by both or by none; some must be kept; some ops write two
    tensors, and a tensor that every cell reads may be shared.

    Args:
        draw: from hypothesis.
        unit_bytes: sizes are small multiples of it: the decomposition does not see less than 64 KiB in a peak.
        max_choices: the most tensors that a plan may keep or not.
        max_movable: the most that may lie on the host; without any, there is no link. With one, windows may unpack in
            any order, and some tensors are made by what cannot be replayed.
    """
    size = st.integers(0, 6).map(lambda units: units * unit_bytes)
    templates = [draw(_templates(size)) for _ in range(draw(st.integers(1, 2)))]
    order = [draw(st.sampled_from(templates)) for _ in range(draw(st.integers(2, 4)))]
    can_keep_links = draw(st.integers(0, 5)) > 0
    has_shared = draw(st.integers(0, 4)) == 0
    is_sharing = [has_shared and draw(st.booleans()) for _ in order]
    bound_to_keep = draw(st.sampled_from([(), (), (), (0,), (1,), (0, 1, 2)]))
    gap = draw(st.integers(0, 1))  # forward steps between cells that no plan changes

    builder = _Builder()
    links: tuple[int, ...] = ()
    shared: int | None = None
    starts = []
    for place, template in enumerate(order):
        starts.append(len(builder.reads))
        if place == 0 and has_shared:
            made = _Made(op=0, size_bytes=draw(size), is_saved=draw(st.booleans()), is_boundary=True, lives=9, holds=1)
            (shared,) = builder.op(0, reads=(), makes=(made,), cost_ns=draw(st.integers(0, 9)), scratch_bytes=0)
        links = template.build(builder, place, links, shared if is_sharing[place] else None)
        if can_keep_links:
            builder.links.update(links)
        if place in bound_to_keep:
            builder.must_keep.update(links)
        builder.steps += gap
    if max_movable:
        builder.add_wild(draw, len(order), size)
    problem = builder.finish(draw, order, size, max_choices)
    if max_movable:
        problem = _with_link(draw, problem, builder.made_steps, max_movable=max_movable, unit_bytes=unit_bytes)
    return ChainProblem(problem=problem, starts=tuple(starts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Template:
    """A kind of cell: per op what it reads (negative: the link that enters, counted from the last) and makes."""

    reads: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[_Made, ...], ...]
    costs_ns: tuple[int, ...]
    scratch_bytes: tuple[int, ...]
    leaving: tuple[int, ...]
    saves_entering: bool
    reader_of_shared: int
    window_bytes: tuple[int, ...]

    def build(self, builder: "_Builder", cell: int, links: tuple[int, ...], shared: int | None) -> tuple[int, ...]:
        """Add a cell that the links enter; the links that leave it."""
        own: list[int] = []
        for op, (reads, makes) in enumerate(zip(self.reads, self.makes, strict=True)):
            found = {own[t] if t >= 0 else links[t % len(links)] for t in reads if t >= 0 or links}
            if shared is not None and op == self.reader_of_shared:
                found.add(shared)
            own += builder.op(
                cell,
                reads=tuple(sorted(found)),
                makes=makes,
                cost_ns=self.costs_ns[op],
                scratch_bytes=self.scratch_bytes[op],
            )
        if self.saves_entering:
            builder.unpacked_in[cell].extend(links[:1])
        return tuple(own[t] for t in self.leaving)


@st.composite
def _templates(draw: st.DrawFn, size: st.SearchStrategy[int]) -> _Template:
    reads: list[tuple[int, ...]] = []
    makes: list[tuple[_Made, ...]] = []
    total = 0
    count = draw(st.integers(2, 4))
    for op in range(count):
        before = list(range(-1, total)) if op else [-1]
        found = set(draw(st.lists(st.sampled_from(before), min_size=1, max_size=2)))
        if op == count - 1 and total:
            found.add(total - 1)
        reads.append(tuple(sorted(found)))
        outputs = 2 if draw(st.integers(0, 4)) == 0 else 1
        makes.append(
            tuple(
                _Made(
                    op=op,
                    size_bytes=draw(size),
                    is_saved=draw(st.booleans()),
                    is_boundary=draw(st.integers(0, 2)) == 0,
                    lives=draw(st.sampled_from([1, 1, 2, 2, 3, 3, _INTO_BACKWARD])),
                    holds=draw(st.integers(1, 3)),
                )
                for _ in range(outputs)
            )
        )
        total += outputs
    leaving = (total - 1,) if draw(st.integers(0, 3)) else (total - 1, draw(st.integers(0, total - 1)))
    return _Template(
        reads=tuple(reads),
        makes=tuple(makes),
        costs_ns=tuple(draw(st.integers(0, 20)) for _ in range(count)),
        scratch_bytes=tuple(draw(st.one_of(st.just(0), size)) for _ in range(count)),
        leaving=tuple(dict.fromkeys(leaving)),
        saves_entering=draw(st.booleans()),
        reader_of_shared=draw(st.integers(0, count - 1)),
        window_bytes=tuple(draw(size) for _ in range(10)),
    )


class _Builder:
    """Collects the ops and tensors of a chain, then lays out its backward."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, ...]] = []
        self.writes: list[tuple[int, ...]] = []
        self.op_steps: list[int] = []
        self.costs_ns: list[int] = []
        self.scratch_bytes: list[int] = []
        self.made: list[_Made] = []
        self.must_keep: set[int] = set()
        self.links: set[int] = set()
        self.unpacked_in: defaultdict[int, list[int]] = defaultdict(list)
        self.producer: list[int | None] = []
        self.made_steps: list[int] = []
        self.steps = 0
        self.shuffled: set[int] = set()  # the cells that unpack in any order

    def add_wild(self, draw: st.DrawFn, cells: int, size: st.SearchStrategy[int]) -> None:
        """Windows that unpack in any order, and tensors that no op of ours makes."""
        self.shuffled = {cell for cell in range(cells) if draw(st.booleans())}
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            place, index = draw(st.integers(0, len(self.reads) - 1)), len(self.made)
            self.made_steps.append(draw(st.integers(0, self.op_steps[place])))
            self.producer.append(None)
            self.made.append(
                _Made(
                    op=place,
                    size_bytes=draw(size),
                    is_saved=True,
                    is_boundary=False,
                    lives=draw(st.integers(1, 3)),
                    holds=draw(st.integers(1, 3)),
                )
            )
            if draw(st.booleans()):
                self.reads[place] = (*self.reads[place], index)
            self.unpacked_in[draw(st.integers(0, cells - 1))].append(index)
            self.must_keep.add(index)

    def op(
        self, cell: int, *, reads: tuple[int, ...], makes: tuple[_Made, ...], cost_ns: int, scratch_bytes: int
    ) -> tuple[int, ...]:
        """Add an op to the cell; the tensors it writes."""
        writes = tuple(range(len(self.made), len(self.made) + len(makes)))
        self.unpacked_in[cell].extend(t for t, made in zip(writes, makes, strict=True) if made.is_saved)
        self.producer += [len(self.reads)] * len(writes)
        self.made_steps += [self.steps] * len(writes)
        self.reads.append(reads)
        self.writes.append(writes)
        self.op_steps.append(self.steps)
        self.costs_ns.append(cost_ns)
        self.scratch_bytes.append(scratch_bytes)
        self.made += makes
        self.steps += 1
        return writes

    def _free_step(self, tensor: int, backward: int, steps: int) -> int:
        lives = self.made[tensor].lives
        return steps if lives == _INTO_BACKWARD else min(self.made_steps[tensor] + lives, backward)

    def finish(
        self, draw: st.DrawFn, order: list[_Template], size: st.SearchStrategy[int], max_choices: int
    ) -> Problem:
        """The whole step: windows in reverse order of the cells, a step or two per unpack."""
        stride = draw(st.integers(1, 2))
        forward_bytes = draw(st.lists(size, min_size=1, max_size=3))
        backward = max(1, self.steps)
        base_bytes = [forward_bytes[step % len(forward_bytes)] for step in range(backward)]
        uses: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        drift = draw(size)  # what each window adds to all that come later, such as gradients
        for place in reversed(range(len(order))):
            unpacks = list(dict.fromkeys(reversed(self.unpacked_in[place])))
            unpacks = draw(st.permutations(unpacks)) if place in self.shuffled else unpacks
            start = len(base_bytes)
            for number, tensor in enumerate(unpacks):
                unpack = start + stride * number
                uses[tensor].append((unpack, unpack + self.made[tensor].holds))
            shift = drift * (len(order) - 1 - place)
            window_bytes = order[place].window_bytes
            base_bytes += [shift + window_bytes[n % len(window_bytes)] for n in range(stride * len(unpacks))]
        base_bytes.append(0)
        steps = len(base_bytes)
        budget = max_choices
        tensors = []
        for t, made in enumerate(self.made):
            may_keep = bool(uses[t]) or (made.is_boundary and budget > 0) or t in self.links
            must_keep = may_keep and (t in self.must_keep or budget <= 0)
            budget -= int(may_keep and not must_keep)
            tensors.append(
                Tensor(
                    index=t,
                    value=t,
                    size_bytes=made.size_bytes,
                    producer=self.producer[t],
                    may_keep=may_keep,
                    must_keep=must_keep,
                    free_step=self._free_step(t, backward, steps),
                    uses=tuple(sorted((unpack, min(release, steps)) for unpack, release in uses[t])),
                    consumers=tuple(op for op, reads in enumerate(self.reads) if t in reads),
                )
            )
        ops = tuple(
            ReplayOp(
                index=op,
                step=self.op_steps[op],
                name=f"op{op}",
                module_fqn="",
                cost_ns=self.costs_ns[op],
                reads=self.reads[op],
                writes=self.writes[op],
                scratch_bytes=self.scratch_bytes[op],
            )
            for op in range(len(self.reads))
        )
        return Problem(
            tensors=tuple(tensors),
            ops=ops,
            base_bytes=tuple(base_bytes),
            backward_step=backward,
            optimizer_peak_bytes=0,
            step_ns=100,
        )
