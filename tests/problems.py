"""Small retention problems: random ones for property tests, and a slow, obvious way to run a plan."""

from collections.abc import Iterator, Set
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
