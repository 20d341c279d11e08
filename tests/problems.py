"""Small retention problems: random ones for property tests, and a slow, obvious way to run a plan."""

from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import combinations

from hypothesis import strategies as st

from planner.problem import Problem, ReplayOp, Tensor


@st.composite
def problems(draw: st.DrawFn, max_ops: int = 7) -> Problem:
    """A step of up to `max_ops` forward ops on random data flow, and a backward that unpacks what was saved.

    Backward unpacks in any order, more than once, and holds for any time; some ops cannot be replayed, some write two
    tensors, some outputs cannot be kept, and memory that no plan changes varies freely.
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
    uses: dict[int, list[tuple[int, int]]] = {}
    for place, tensor in enumerate(unpacks):
        unpack = backward + 2 * place
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
    return Problem(
        tensors=tensors,
        ops=ops,
        base_bytes=tuple(draw(st.lists(st.integers(0, 9), min_size=length, max_size=length))),
        backward_step=backward,
        optimizer_peak_bytes=0,
        step_ns=100,
    )


def _repeats(saved: list[bool]) -> st.SearchStrategy[list[int]]:
    """Tensors that backward unpacks a second time."""
    return st.lists(st.sampled_from([t for t, is_saved in enumerate(saved) if is_saved]), max_size=2)


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
def chain_problems(draw: st.DrawFn, unit_bytes: int = 1 << 26, max_choices: int = 11) -> ChainProblem:
    """A step of 2 to 4 cells made from one or two random templates, with few enough choices to try every plan.

    Each cell reads what the one before hands on: one link, sometimes two. Backward unpacks the cells last first. Some
    links are saved by the cell that makes them, by the next, by both or by none; some must be kept; some ops write two
    tensors, and a tensor that every cell reads may be shared.

    Args:
        draw: from hypothesis.
        unit_bytes: sizes are small multiples of it: the decomposition does not see less than 64 KiB in a peak.
        max_choices: the most tensors that a plan may keep or not.
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
    return ChainProblem(
        problem=builder.finish(draw, order, size, max_choices),
        starts=tuple(starts),
    )


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
        self.producer: list[int] = []
        self.steps = 0

    def op(
        self, cell: int, *, reads: tuple[int, ...], makes: tuple[_Made, ...], cost_ns: int, scratch_bytes: int
    ) -> tuple[int, ...]:
        """Add an op to the cell; the tensors it writes."""
        writes = tuple(range(len(self.made), len(self.made) + len(makes)))
        self.unpacked_in[cell].extend(t for t, made in zip(writes, makes, strict=True) if made.is_saved)
        self.producer += [len(self.reads)] * len(writes)
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
        return steps if lives == _INTO_BACKWARD else min(self.op_steps[self.producer[tensor]] + lives, backward)

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
