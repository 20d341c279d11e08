"""Cuts a retention problem into cells: stretches of the model that follow each other in forward and in backward.

A *cell* is a contiguous range of forward ops (a block, or what lies between blocks) together with the stretch of
backward in which its saved tensors are unpacked: its *window*. Every tensor has one role:

    internal  made, read and unpacked inside one cell
    link      made in one cell, read or unpacked by the next one too: the residual stream between blocks
    shared    everything else: rotary tables, an encoder's output; and what a replay of these would run or read, for
              such a replay changes when things happen in a cell

Two cells between which there is more than one link that a plan may keep or not are one cell: some of these could be
kept and others not, which options do not tell apart.

What is held from forward counts for the cell that it is internal to; a link counts for the cell it enters. A shared
tensor counts for none: what it takes under any plan is memory that no plan changes (`Chain.problem`). Cells of one
*template* are alike in all that a decision depends on, so an option for one is an option for all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import accumulate, pairwise

from planner.problem import Problem, ReplayOp, Tensor


class Demand(IntEnum):
    """What becomes of a link that every plan may keep or not.

    NONE: it is kept. LATE and EARLY: it is not, and a replay in a later cell needs it. EARLY: no later than the
    *critical* moment of the last cell, through a chain of such demands that the last cell begins; LATE: after it. The
    critical moment is where the last cell's backward peaks when everything is saved. UNUSED: it is not kept, and no
    later cell needs it.
    """

    NONE = 0
    LATE = 1
    EARLY = 2
    UNUSED = 3

    @property
    def is_demanded(self) -> bool:
        """Whether a later cell's replay needs the link."""
        return self in (Demand.LATE, Demand.EARLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One stretch of the model.

    Attributes:
        ops: first op and one past the last (positions in `Problem.ops`).
        forward: first forward step and one past the last.
        before: first forward step of the cell before; its own if there is none.
        window: first backward step and one past the last; empty if nothing of it is unpacked.
        entering, internal, leaving, shared: positions in `Problem.tensors` of the links from the cell before, the
            cell's own tensors, the links to the cell after, and the shared tensors it reads or writes.
        lasting: those of its own tensors that live past the next cell's forward in any case, such as weights that
            autocast has copied: held or not, that forward has them already.
        outliving: those of them that live past the whole of forward in any case.
        forward_moment: the step of its forward at which most is alive that no plan changes, counted from its first;
            only steps are looked at from which on what earlier cells hold, but for lasting tensors, has no other
            reason to be there. None if there is no such step.
        template: equal for cells that are alike.
    """

    ops: tuple[int, int]
    forward: tuple[int, int]
    before: int
    window: tuple[int, int]
    entering: tuple[int, ...]
    internal: tuple[int, ...]
    leaving: tuple[int, ...]
    shared: tuple[int, ...]
    lasting: frozenset[int]
    outliving: frozenset[int]
    forward_moment: int | None = None
    template: int = 0

    @property
    def tensors(self) -> tuple[int, ...]:
        """All its tensors, in the order of its local problem: those that count for the cell come first."""
        return (*self.entering, *self.internal, *self.leaving, *self.shared)

    @property
    def owned(self) -> int:
        """How many of `tensors` count for the cell."""
        return len(self.entering) + len(self.internal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The cells of a problem in forward order.

    Attributes:
        problem: the step, where what shared tensors take under any plan counts as what no plan changes.
        cells: at least one.
        shared: the tensors that belong to no cell.
        forward_base_bytes: per cell, what no plan changes at its forward moment; 0 if it has none.
        forward_end_bytes: what no plan changes at the last step of forward.
        forward_start_bytes, window_start_bytes: per cell, what no plan changes at the first step of its forward and of
            its window.
        forward_left_ns: per cell, the time from the start of its forward until copies to the host are waited for.
        backward_passed_ns: per cell, the time from the first unpack to the end of its window.
    """

    problem: Problem
    cells: tuple[Cell, ...]
    shared: frozenset[int]
    forward_base_bytes: tuple[int, ...]
    forward_end_bytes: int
    forward_start_bytes: tuple[int, ...]
    window_start_bytes: tuple[int, ...]
    forward_left_ns: tuple[int, ...]
    backward_passed_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProblem:
    """A cell as a problem of its own: its forward, one *early* step, and its window.

    Memory is relative: in forward to the base at the first forward step, in the window to that at its first step.
    Links that leave are there without effort, and count only while this cell's own backward uses them: from their first
    unpack on if only this cell unpacks them and they may lie on the host. Shared tensors are there and count for
    nothing.

    Where links that enter are demanded, they are not kept (but for those that every plan keeps) and come from a replay
    of the cell before, which here is one op without cost. Where links that leave are, they are made in the early step,
    before the cell's own window. Unused links are not kept; the cell that they leave may make them again for itself.

    What lives into backward in any case counts for nothing but in the last cell: to keep it costs nothing until then,
    and how long that is differs from window to window.

    Attributes:
        problem: the local problem; tensors are in the order of `Cell.tensors`.
        early: its early step.
        owned: how many tensors count for the cell.
        lasting, outliving: positions of such ones among them; see `Cell`.
        packed_before, packed_long_before: positions of those among them that are packed before the cell's forward, and
            before that of the cell before.
        copy_ns: of each tensor that may lie on the host, the time of a copy; empty if none may.
        forward_moment: a step; see `Cell`.
        demands_entering: op 0 is the replay of the cell before.
    """

    problem: Problem
    early: int
    owned: int
    lasting: frozenset[int]
    outliving: frozenset[int]
    packed_before: frozenset[int]
    packed_long_before: frozenset[int]
    copy_ns: Mapping[int, int]
    forward_moment: int | None
    demands_entering: bool

    def is_held_at_moment(self, index: int) -> bool:
        """Whether a tensor that counts is there at the forward moment because it is kept."""
        return self.forward_moment is not None and self.problem.tensors[index].free_step <= self.forward_moment


def cut(problem: Problem, starts: Iterable[int]) -> Chain:
    """The chain of cells that begin at the given ops.

    Args:
        problem: the step; with at least one op.
        starts: positions in `Problem.ops`; the first op starts a cell in any case.
    """
    bounds = sorted({0, *starts, len(problem.ops)})
    while True:
        ranges = list(pairwise(bounds))
        home = [place for place, (first, end) in enumerate(ranges) for _ in range(first, end)]
        windows = _windows(problem, home, len(ranges))
        cells, shared = _assign(problem, ranges, windows, home)
        many = {cell.ops[0] for cell in cells if sum(not problem.tensors[t].must_keep for t in cell.entering) > 1}
        if not many:
            break
        bounds = [bound for bound in bounds if bound not in many]
    problem = _with_shared(problem, shared)
    cells = _with_forward_moments(problem, cells)
    templates: dict[object, int] = {}
    cells = [
        # The last cell is a template of its own: when its links are demanded is told apart by its critical moment.
        replace(c, template=templates.setdefault((c is cells[-1], _signature(problem, c)), len(templates)))
        for c in cells
    ]
    return Chain(
        problem=problem,
        cells=tuple(cells),
        shared=shared,
        forward_base_bytes=tuple(_at_forward_moment(problem, cell) for cell in cells),
        forward_end_bytes=problem.base_bytes[problem.backward_step - 1],
        forward_start_bytes=tuple(_first(problem, cell.forward) for cell in cells),
        window_start_bytes=tuple(_first(problem, cell.window) for cell in cells),
        forward_left_ns=tuple(_time_ns(problem, cell.forward[0], problem.settle_step) for cell in cells),
        backward_passed_ns=tuple(_time_ns(problem, problem.first_return_step, cell.window[1]) for cell in cells),
    )


def _time_ns(problem: Problem, first: int, end: int) -> int:
    """Time from the start of a step to that of another, without replays and waiting."""
    return sum(problem.times_ns[first:end])


def _windows(problem: Problem, home: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Each cell's part of backward, from where its own tensors are first unpacked to where the cell before begins."""
    steps = len(problem.base_bytes)
    first = [steps] * count
    for tensor in problem.tensors:
        if tensor.uses and tensor.producer is not None:
            place = home[tensor.producer]
            if all(home[consumer] == place for consumer in tensor.consumers):
                # The last of its unpacks: what later cells unpack too is unpacked here at the end.
                first[place] = min(first[place], max(unpack for unpack, _ in tensor.uses))
    first[-1] = problem.backward_step
    # A cell without tensors of its own has an empty window where the next one ends.
    begins = list(accumulate(first, min))
    return [(begin, end) for begin, end in zip(begins, [steps, *begins], strict=False)]


def _assign(
    problem: Problem, ranges: Sequence[tuple[int, int]], windows: Sequence[tuple[int, int]], home: Sequence[int]
) -> tuple[list[Cell], frozenset[int]]:
    internal: list[list[int]] = [[] for _ in ranges]
    links: list[list[int]] = [[] for _ in range(len(ranges) + 1)]  # by the cell they enter
    shared: set[int] = set()
    for tensor in problem.tensors:
        places = {home[consumer] for consumer in tensor.consumers}
        if tensor.producer is not None:
            places.add(home[tensor.producer])
        for unpack, _ in tensor.uses:
            places |= {place for place, (first, end) in enumerate(windows) if first <= unpack < end}
        if len(places) == 1:
            internal[min(places)].append(tensor.index)
        elif (
            len(places) == 2
            and max(places) == min(places) + 1
            and tensor.may_keep
            and tensor.producer is not None
            and home[tensor.producer] == min(places)
        ):
            links[max(places)].append(tensor.index)
        else:
            shared.add(tensor.index)
    shared |= _behind(problem, shared)
    links = [[t for t in found if t not in shared] for found in links]
    internal = [[t for t in found if t not in shared] for found in internal]
    # Forward steps before the first replayable op belong to the first cell, those after the last to the last.
    begins = [0, *(problem.ops[first].step for first, _ in ranges[1:]), problem.backward_step, problem.backward_step]

    def is_lasting(index: int, place: int) -> bool:
        return problem.tensors[index].free_step >= begins[place + 2]

    cells = [
        Cell(
            ops=bounds,
            forward=(begins[place], begins[place + 1]),
            before=begins[max(0, place - 1)],
            window=windows[place],
            entering=tuple(links[place]),
            internal=tuple(internal[place]),
            leaving=tuple(links[place + 1]),
            lasting=frozenset(t for t in (*links[place], *internal[place]) if is_lasting(t, place)),
            outliving=frozenset(
                t for t in (*links[place], *internal[place]) if problem.tensors[t].free_step >= problem.backward_step
            ),
            shared=tuple(sorted({t for op in problem.ops[slice(*bounds)] for t in (*op.reads, *op.writes)} & shared)),
        )
        for place, bounds in enumerate(ranges)
    ]
    return cells, frozenset(shared)


def _behind(problem: Problem, shared: Iterable[int]) -> set[int]:
    """What replays of shared tensors could read or write, up to what every plan keeps.

    That included where only replays hold it: the last of them lets it go, and may be one of these.
    """
    found: set[int] = set()
    stack = [index for index in shared if not problem.tensors[index].must_keep]
    while stack:
        producer = problem.tensors[stack.pop()].producer
        if producer is None:
            continue
        op = problem.ops[producer]
        near = [problem.tensors[index] for index in {*op.reads, *op.writes} - found]
        found |= {tensor.index for tensor in near if not tensor.must_keep or not tensor.uses}
        stack += [tensor.index for tensor in near if not tensor.must_keep]
    return found


def _with_shared(problem: Problem, shared: Iterable[int]) -> Problem:
    """The same step with what these tensors take under any plan in `base_bytes`.

    What autograd saves is held until its last release: from its first unpack on, kept or replayed; if every plan keeps
    it on the device, from the end of its life in forward.
    """
    change = [0] * (len(problem.base_bytes) + 1)
    for tensor in (problem.tensors[index] for index in shared if problem.tensors[index].uses):
        start = tensor.free_step
        if not tensor.must_keep or tensor.packing is not None:
            start = max(start, tensor.first_unpack + 1)  # in the step itself, others may be replayed before it
        if start < tensor.last_release:
            change[start] += tensor.size_bytes
            change[tensor.last_release] -= tensor.size_bytes
    base_bytes = tuple(base + added for base, added in zip(problem.base_bytes, accumulate(change), strict=False))
    return replace(problem, base_bytes=base_bytes)


def _with_forward_moments(problem: Problem, cells: Sequence[Cell]) -> list[Cell]:
    found = []
    settled = 0  # from this step on, what earlier cells keep is there only because it is kept
    for cell in cells:
        steps = range(max(cell.forward[0], settled), cell.forward[1])
        highest = max(steps, key=lambda step: problem.base_bytes[step], default=None)
        found.append(replace(cell, forward_moment=None if highest is None else highest - cell.forward[0]))
        own = {*cell.entering, *cell.internal} - cell.lasting
        settled = max([settled, *(problem.tensors[index].free_step for index in own)])
    return found


def _at_forward_moment(problem: Problem, cell: Cell) -> int:
    return 0 if cell.forward_moment is None else problem.base_bytes[cell.forward[0] + cell.forward_moment]


def local_problem(
    problem: Problem, cell: Cell, *, entering: Demand = Demand.NONE, leaving: Demand = Demand.NONE
) -> LocalProblem:
    """The cell as a problem of its own; see `LocalProblem`."""
    early = cell.forward[1] - cell.forward[0]
    demands_entering = entering.is_demanded
    shift = int(demands_entering)  # the replay of the cell before comes first
    place_of_op = {op: place + shift for place, op in enumerate(range(*cell.ops))}
    position = {tensor: place for place, tensor in enumerate(cell.tensors)}
    roles = [role for role in ("entering", "internal", "leaving", "shared") for _ in getattr(cell, role)]
    tensors = tuple(
        _local_tensor(
            problem.tensors[index],
            place,
            role,
            cell=cell,
            place_of_op=place_of_op,
            early=early,
            entering=entering,
            leaving=leaving,
            backward_step=problem.backward_step,
            returns_step=_returns_step(problem, problem.tensors[index], cell) if role == "leaving" else None,
        )
        for place, (index, role) in enumerate(zip(cell.tensors, roles, strict=True))
    )
    before = ReplayOp(
        index=0,
        step=0,
        name="the cell before",
        module_fqn="",
        cost_ns=0,
        reads=(),
        writes=tuple(position[index] for index in cell.entering if not problem.tensors[index].must_keep),
        scratch_bytes=0,
    )
    ops = tuple(
        replace(
            op,
            index=place_of_op[op.index],
            step=op.step - cell.forward[0],
            reads=tuple(position[t] for t in op.reads),
            writes=tuple(position[t] for t in op.writes),
            scratch_bytes=op.scratch_bytes + sum(problem.tensors[t].size_bytes for t in op.writes if t in cell.shared),
        )
        for op in problem.ops[slice(*cell.ops)]
    )
    return LocalProblem(
        problem=Problem(
            tensors=tensors,
            ops=(before, *ops) if demands_entering else ops,
            base_bytes=(*_relative(problem, cell.forward), 0, *(_relative(problem, cell.window) or (0,))),
            backward_step=early,
            optimizer_peak_bytes=0,
            step_ns=0,
            link=problem.link,
        ),
        early=early,
        owned=cell.owned,
        lasting=frozenset(position[index] for index in cell.lasting),
        outliving=frozenset(position[index] for index in cell.outliving),
        packed_before=frozenset(t.index for t in tensors if t.packing and t.packing.step < cell.forward[0]),
        packed_long_before=frozenset(t.index for t in tensors if t.packing and t.packing.step < cell.before),
        copy_ns={t.index: problem.link.copy_ns(t.size_bytes) for t in tensors if t.packing and problem.link},
        forward_moment=cell.forward_moment,
        demands_entering=demands_entering,
    )


def _first(problem: Problem, steps: tuple[int, int]) -> int:
    first, end = steps
    return problem.base_bytes[first] if first < end else 0


def _relative(problem: Problem, steps: tuple[int, int]) -> tuple[int, ...]:
    base = problem.base_bytes[slice(*steps)]
    return tuple(size - base[0] for size in base)


def _returns_step(problem: Problem, tensor: Tensor, cell: Cell) -> int | None:
    """From when on a link that leaves is there again in the cell's window if it was on the host; None for all of it."""
    first, end = cell.window
    if tensor.packing is None or not tensor.uses or not first <= tensor.first_unpack < end:
        return None
    step = tensor.first_unpack
    # What other unpacks of the same step replay may come before.
    is_alone = sum(unpack == step for other in problem.tensors for unpack, _ in other.uses) == 1
    return step if is_alone else step + 1


def _local_tensor(
    tensor: Tensor,
    place: int,
    role: str,
    *,
    cell: Cell,
    place_of_op: dict[int, int],
    early: int,
    entering: Demand,
    leaving: Demand,
    backward_step: int,
    returns_step: int | None,
) -> Tensor:
    first, end = cell.window
    window_start = early + 1
    uses = tuple(
        (unpack - first + window_start, min(release, end) - first + window_start)
        for unpack, release in tensor.uses
        if first <= unpack < end
    )
    is_last = cell.forward[1] == backward_step
    lives_on = tensor.free_step > backward_step
    local = replace(
        tensor,
        index=place,
        size_bytes=0 if lives_on and not is_last else tensor.size_bytes,
        producer=None if tensor.producer is None else place_of_op.get(tensor.producer),
        free_step=tensor.free_step - first + window_start
        if lives_on and is_last
        else min(max(tensor.free_step - cell.forward[0], 0), early),
        uses=uses,
        consumers=tuple(place_of_op[op] for op in tensor.consumers if op in place_of_op),
    )
    # What every plan keeps but only replays need, such as links between the units of FSDP, is let go without them.
    is_idle = tensor.must_keep and not tensor.uses
    if role in ("shared", "leaving"):
        local = replace(local, packing=None)  # shared tensors stay here; a link is moved by the cell it enters
    if role == "shared":
        return replace(local, size_bytes=0, producer=None, may_keep=True, must_keep=True, uses=())
    if role == "entering":
        if entering.is_demanded and not tensor.must_keep:
            return replace(local, producer=0, may_keep=False, must_keep=False, packing=None)
        if entering is Demand.UNUSED and not tensor.must_keep:
            return replace(local, producer=None, may_keep=False, must_keep=False, packing=None)
        return replace(local, producer=None, must_keep=not is_idle)
    if role == "leaving":
        if leaving.is_demanded and not tensor.must_keep:
            return replace(
                local, size_bytes=0, may_keep=False, must_keep=False, uses=((early, early + 1),), consumers=()
            )
        if leaving is Demand.UNUSED and not tensor.must_keep:
            return replace(local, may_keep=False, must_keep=False)
        if returns_step is not None:
            local = replace(local, free_step=returns_step - first + window_start)
        return replace(local, producer=None, must_keep=True)
    return replace(local, producer=None, must_keep=False) if is_idle else local


def _signature(problem: Problem, cell: Cell) -> object:
    """Everything a decision in the cell depends on."""
    whole = local_problem(problem, cell)
    local = whole.problem
    return (
        (tuple(whole.copy_ns.items()), whole.packed_before, whole.packed_long_before),
        (len(cell.entering), len(cell.internal), len(cell.leaving)),
        tuple((t in cell.lasting, t in cell.outliving, problem.tensors[t].must_keep) for t in cell.tensors),
        cell.forward_moment,
        tuple(
            (t.size_bytes, t.producer, t.may_keep, t.must_keep, t.free_step, t.uses, t.consumers) for t in local.tensors
        ),
        tuple((op.cost_ns, op.reads, op.writes, op.scratch_bytes) for op in local.ops),
        local.base_bytes,
    )
