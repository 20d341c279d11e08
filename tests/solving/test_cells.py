"""Cutting a step into cells, and each cell as a problem of its own."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings

from planner.simulation.liveness import simulate
from planner.solving.cells import Demand, cut, local_problem
from planner.solving.search import without_idle_anchors
from tests.problems import ChainProblem, all_plans, chain_problems
from tests.simulation.test_liveness import chain, simulate_or_none


def test_what_the_next_cell_reads_is_a_link_and_the_rest_is_internal() -> None:
    found = cut(chain((1, 2, 4, 8, 16, 32)), (2, 4))

    assert [(), (1,), (3,)] == [cell.entering for cell in found.cells]
    assert [(0,), (2,), (4, 5)] == [cell.internal for cell in found.cells]
    assert [(1,), (3,), ()] == [cell.leaving for cell in found.cells]
    assert frozenset() == found.shared


def test_windows_follow_each_other_from_the_last_cell_to_the_first() -> None:
    # Six ops, and an unpack every two steps, the last tensor first.
    found = cut(chain((1, 2, 4, 8, 16, 32)), (2, 4))

    assert [(16, 18), (12, 16), (6, 12)] == [cell.window for cell in found.cells]


def test_a_cell_alone_shows_what_the_whole_step_does() -> None:
    problem = chain((1, 2, 4, 8, 16, 32))
    found = cut(problem, (2, 4))
    kept = frozenset({1, 3, 5})  # the links, and the last tensor

    whole = simulate(problem, kept)
    held = [0, 0, 2]  # from forward, by the cells before
    peaks = []
    cost_ns = 0
    for cell, before_bytes in zip(found.cells, held, strict=True):
        local = local_problem(problem, cell)
        alone = simulate(
            local.problem,
            {t.index for t in local.problem.tensors if t.must_keep or cell.tensors[t.index] in kept},
        )
        cost_ns += alone.recompute_ns
        peaks.append(before_bytes + alone.peak_bytes)

    assert whole.recompute_ns == cost_ns
    assert whole.peak_bytes == max(peaks)


def test_two_cells_with_two_links_that_could_be_kept_apart_are_one() -> None:
    problem = chain((1, 2, 4, 8))
    two_links = type(problem)(
        tensors=tuple(
            type(t)(**{**{name: getattr(t, name) for name in t.__slots__}, "consumers": (1, 2)}) if not t.index else t
            for t in problem.tensors
        ),
        ops=problem.ops,
        base_bytes=problem.base_bytes,
        backward_step=problem.backward_step,
        optimizer_peak_bytes=0,
        step_ns=0,
    )

    assert 2 == len(cut(problem, (2,)).cells)
    assert 1 == len(cut(two_links, (2,)).cells)


@pytest.mark.parametrize(
    ("must_keep", "added"),
    [
        pytest.param(True, [0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0], id="from the end of its life in forward"),
        pytest.param(False, [0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 0], id="from its first unpack"),
    ],
)
def test_what_all_cells_share_takes_memory_under_any_plan(must_keep: bool, added: list[int]) -> None:
    # Six ops, and an unpack every two steps; the first op's tensor is read by three cells, and unpacked from step 8 on.
    problem = chain((7, 1, 1, 1, 1, 1))
    first, *others = problem.tensors
    shared = replace(first, consumers=(1, 2, 4), must_keep=must_keep, free_step=4, uses=((8, 9), (12, 13)))
    found = cut(replace(problem, tensors=(shared, *others)), (2, 4))

    assert frozenset({0}) == found.shared
    more = [after - before for before, after in zip(problem.base_bytes, found.problem.base_bytes, strict=True)]
    assert [*added, *[0] * (len(more) - len(added))] == more


@settings(max_examples=60)
@given(chain_problems())
def test_every_tensor_has_one_role(made: ChainProblem) -> None:
    found = cut(made.problem, made.starts)
    counted = [t for cell in found.cells for t in (*cell.entering, *cell.internal)]

    assert sorted(t.index for t in made.problem.tensors) == sorted([*counted, *found.shared])
    for before, after in pairwise(found.cells):
        assert before.leaving == after.entering
        assert before.ops[1] == after.ops[0]
        assert after.window[1] == before.window[0]
    assert found.cells[-1].window[0] == made.problem.backward_step
    assert found.cells[0].window[1] == len(made.problem.base_bytes)


@settings(max_examples=60)
@given(chain_problems())
def test_cells_of_one_template_are_the_same_problem(made: ChainProblem) -> None:
    problem = made.problem
    by_template: dict[int, object] = {}
    found = cut(problem, made.starts)
    for cell in found.cells:
        for entering in Demand:
            local = local_problem(found.problem, cell, entering=entering).problem
            alike = (
                local.base_bytes,
                tuple((op.cost_ns, op.reads, op.writes, op.scratch_bytes) for op in local.ops),
                tuple((t.size_bytes, t.producer, t.may_keep, t.must_keep, t.uses) for t in local.tensors),
            )
            assert alike == by_template.setdefault(cell.template * 10 + entering, alike)


@settings(max_examples=40)
@given(chain_problems(max_choices=6))
def test_a_cell_alone_never_shows_more_than_the_whole_step(made: ChainProblem) -> None:
    problem = made.problem
    found = cut(problem, made.starts)
    links = {t for cell in found.cells for t in cell.entering}
    for plan in all_plans(problem):
        if not links <= plan or simulate_or_none(problem, plan) is None:
            continue
        kept = without_idle_anchors(problem, plan)
        if not links <= kept:
            continue  # a link that nothing needs: an option of another kind
        whole = simulate(problem, plan)
        before_bytes = cost_ns = 0
        for cell, base_bytes in zip(found.cells, found.window_start_bytes, strict=True):
            local = local_problem(found.problem, cell)
            chosen = {t.index for t in local.problem.tensors if t.must_keep or cell.tensors[t.index] in kept}
            alone = simulate(local.problem, chosen)
            cost_ns += alone.recompute_ns
            window = [
                size
                for point, size in zip(alone.points, alone.live_bytes, strict=True)
                if point.step > local.early and cell.window[0] < cell.window[1]
            ]
            assert before_bytes + base_bytes + max(window, default=-base_bytes - before_bytes) <= whole.peak_bytes
            before_bytes += sum(local.problem.tensors[place].size_bytes for place in chosen if place < local.owned)
        assert cost_ns <= whole.recompute_ns
        assert found.shared or cost_ns == whole.recompute_ns
