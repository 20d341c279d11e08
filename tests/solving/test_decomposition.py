"""The decomposition against exhaustive search: on random chains, and on steps that once fooled its bound."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from planner.blocks import block_levels
from planner.device import load_device
from planner.graph import modules
from planner.problem import Problem, ReplayOp, Tensor, build_problem
from planner.simulation.liveness import Retained, retained, simulate
from planner.solving import decomposition, options
from planner.solving.assembly import LinkRoom, assemble
from planner.solving.cells import Demand, cut
from planner.solving.deadline import PAST, OutOfTime
from planner.solving.decomposition import ChainSolver, Decomposed, chain_solver
from planner.solving.interruptible import run
from planner.solving.master import Column, Master
from planner.solving.model import RetentionModel, replay_windows
from planner.solving.options import Amount, Prices, Stairs, Template
from planner.solving.rounding import Rounding
from planner.solving.search import (
    Limits,
    SearchInterrupted,
    Status,
    lowest_peak,
    saved,
    solve,
    without_idle_anchors,
)
from planner.spec import from_mapping
from planner.tracing import prepare, trace
from tests.problems import ChainProblem, all_plans, chain_problems
from tests.simulation.test_liveness import simulate_or_none
from tests.solving.rows import Rows

EXACT = Limits(time_s=60.0, gap=0.0)
GB = 1_000_000_000
US, MS = 1_000, 1_000_000  # ns


def outcomes(problem: Problem) -> list[tuple[int, int]]:
    """(peak, recompute) of every plan that can run."""
    timelines = [simulate_or_none(problem, kept) for kept in all_plans(problem)]
    return sorted({(t.peak_bytes, t.recompute_ns) for t in timelines if t is not None})


def budgets_of(plans: Sequence[tuple[int, int]]) -> list[int]:
    """One that no plan fits, the tightest, and some more."""
    peaks = sorted({peak for peak, _ in plans})
    return [peaks[0] - 1, *peaks[:2], *peaks[2 :: max(1, len(peaks) // 3)]]


def decompose(solver: ChainSolver, budget_bytes: int) -> Decomposed:
    return solver.solve(budget_bytes, gap=0.0, deadline=time.monotonic() + 60)


@settings(max_examples=14)
@given(chain_problems(max_choices=8))
def test_no_plan_beats_the_bound_and_every_plan_fits(made: ChainProblem) -> None:
    problem = made.problem
    plans = outcomes(problem)
    solver = ChainSolver(problem, cut(problem, made.starts))
    for budget in budgets_of(plans):
        affordable = [cost for peak, cost in plans if peak <= budget]

        found = decompose(solver, budget)

        if affordable:
            assert not found.is_infeasible
            assert found.bound_ns <= min(affordable)
        if found.kept is not None:
            timeline = simulate(problem, found.kept)
            assert timeline == found.timeline
            assert timeline.peak_bytes <= budget
            assert timeline.recompute_ns >= min(affordable)


@settings(max_examples=12)
@given(chain_problems(max_choices=8), st.data())
def test_decomposition_and_flat_model_together_equal_exhaustive_search(made: ChainProblem, data: st.DataObject) -> None:
    problem = made.problem
    plans = outcomes(problem)
    budget = data.draw(st.sampled_from(budgets_of(plans)))
    affordable = [cost for peak, cost in plans if peak <= budget]

    solution = solve(problem, budget_bytes=budget, limits=EXACT, chain=ChainSolver(problem, cut(problem, made.starts)))

    if not affordable:
        assert Status.INFEASIBLE == solution.status
        return
    assert Status.OPTIMAL == solution.status
    assert solution.timeline is not None
    assert min(affordable) == solution.timeline.recompute_ns == solution.bound_ns


@settings(max_examples=6)
@given(chain_problems(max_choices=7))
def test_the_lowest_peak_of_a_chain_equals_exhaustive_search(made: ChainProblem) -> None:
    found = lowest_peak(made.problem, limits=EXACT, chain=ChainSolver(made.problem, cut(made.problem, made.starts)))

    assert outcomes(made.problem)[0][0] == found.timeline.peak_bytes == found.bound_bytes


@settings(max_examples=4)
@given(chain_problems(max_choices=7))
def test_the_same_chain_gives_the_same_plan_again(made: ChainProblem) -> None:
    budget = outcomes(made.problem)[0][0]

    chain = cut(made.problem, made.starts)
    first, second = (decompose(ChainSolver(made.problem, chain), budget) for _ in range(2))

    assert first == second


@settings(max_examples=3)
@given(chain_problems(max_choices=7))
def test_more_budget_never_costs_more_when_the_former_plan_is_known(made: ChainProblem) -> None:
    # Without it, a cost may rise by as much as the tolerance allows.
    problem = made.problem
    chain = ChainSolver(problem, cut(problem, made.starts))
    peaks = [peak for peak, _ in outcomes(problem)]
    known: list[Retained] = []
    costs_ns = []
    for part in range(11):
        budget = peaks[0] + (max(peaks) - peaks[0]) * part // 10
        solution = solve(problem, budget_bytes=budget, limits=Limits(gap=0.05), known=known, chain=chain)
        assert solution.timeline is not None
        assert solution.kept is not None
        known = [retained(problem, solution.kept | problem.must_keep)]
        costs_ns.append(solution.timeline.recompute_ns)

    assert sorted(costs_ns, reverse=True) == costs_ns


def tensor(
    size: int,
    made_by: int | None,
    *,
    read_by: tuple[int, ...] = (),
    unpacked: tuple[int, int] | None = None,
    **given: int,
) -> Tensor:
    """A tensor of so many GB that dies in forward as soon as it is read. It may be kept, unless said otherwise."""
    return Tensor(
        index=0,
        value=0,
        size_bytes=size * GB,
        producer=made_by,
        may_keep=bool(given.get("may_keep", True)),
        must_keep=bool(given.get("must_keep", False)),
        free_step=given.get("free_step", 1 + max((*read_by, made_by or 0))),
        uses=(unpacked,) if unpacked else (),
        consumers=read_by,
    )


def step(tensors: list[Tensor], costs_ns: list[int], base: list[int], scratch: dict[int, int] | None = None) -> Problem:
    """A step whose ops follow from the tensors; `base` and `scratch` are in GB."""
    return Problem(
        tensors=tuple(
            Tensor(**{**{name: getattr(t, name) for name in t.__slots__}, "index": place, "value": place})
            for place, t in enumerate(tensors)
        ),
        ops=tuple(
            ReplayOp(
                index=op,
                step=op,
                name=f"op{op}",
                module_fqn="",
                cost_ns=cost_ns,
                reads=tuple(place for place, t in enumerate(tensors) if op in t.consumers),
                writes=tuple(place for place, t in enumerate(tensors) if t.producer == op),
                scratch_bytes=(scratch or {}).get(op, 0) * GB,
            )
            for op, cost_ns in enumerate(costs_ns)
        ),
        base_bytes=tuple(size * GB for size in base),
        backward_step=len(costs_ns),
        optimizer_peak_bytes=0,
        step_ns=0,
    )


def link_nobody_needs(*, must_keep: bool) -> tuple[Problem, tuple[int, ...], int]:
    """What the first cell hands to the second is not saved, and with all that is, no replay reads it."""
    tensors = [
        tensor(1, 0, unpacked=(5, 6)),
        tensor(4, 0, read_by=(1,), must_keep=must_keep),
        tensor(1, 1, unpacked=(4, 5)),
        tensor(1, 2, unpacked=(3, 4)),
    ]
    return step(tensors, [50, 50, 50], [0] * 6), (1, 2), 3


def two_links() -> tuple[Problem, tuple[int, ...], int]:
    """Keeping one of two links is enough, and the other is cheap to make again."""
    tensors = [
        tensor(4, 0, read_by=(2,), unpacked=(4, 6)),
        tensor(4, 1, read_by=(2,), unpacked=(5, 6)),
        tensor(0, 2, unpacked=(3, 4)),
    ]
    return step(tensors, [10, 1, 0], [0, 0, 0, 5, 0, 0]), (2,), 9


def held_in_any_case() -> tuple[Problem, tuple[int, ...], int]:
    """The script holds on to what the first cell makes until the step is over."""
    tensors = [tensor(4, 0, read_by=(1,), unpacked=(3, 4), free_step=4), tensor(1, 1, unpacked=(2, 3))]
    return step(tensors, [50, 50], [0, 4, 4, 4]), (1,), 5


def link_that_replays_use_up() -> tuple[Problem, tuple[int, ...], int]:
    """Replays from a kept link make the next one, and then it is gone."""
    tensors = [
        tensor(4, 0, read_by=(1,)),
        tensor(5, 1, read_by=(2,), unpacked=(6, 8)),
        tensor(0, 2, unpacked=(5, 6)),
        tensor(0, 2, read_by=(3,), must_keep=True, unpacked=(7, 8)),
        tensor(0, 3, unpacked=(4, 5)),
    ]
    return step(tensors, [100, 1, 0, 0], [0, 6, 6, 6, 0, 0, 0, 5]), (1, 2, 3), 10


def replays_that_add() -> tuple[Problem, tuple[int, ...], int]:
    """The last cell peaks before it demands its link; what the demand leaves behind comes after that peak."""
    tensors = [
        tensor(5, 0, read_by=(1,), unpacked=(7, 8)),
        tensor(1, 1, read_by=(3,), unpacked=(5, 7), free_step=3),
        tensor(2, 2, unpacked=(4, 5)),
        tensor(0, 3, unpacked=(6, 7)),
    ]
    return step(tensors, [1, 1, 1, 1], [0, 0, 0, 12, 0, 0, 3, 0], {2: 10}), (2,), 12


def demanded_before_its_window() -> tuple[Problem, tuple[int, ...], int]:
    """Early replays use up what the first cell holds, before the window of the second begins."""
    tensors = [
        tensor(5, 0, read_by=(1,)),
        tensor(6, 1, read_by=(2,)),
        tensor(6, 2, read_by=(4,), unpacked=(5, 6)),
        tensor(0, 3, unpacked=(6, 7)),
        tensor(0, 4, unpacked=(5, 6), free_step=5),
    ]
    return step(tensors, [100, 1, 1, 0, 0], [0, 0, 7, 7, 7, 0, 8, 0]), (2, 4), 12


def shared_tensor_replays_early() -> tuple[Problem, tuple[int, ...], int]:
    """A replay of what all cells share uses up an anchor, and leaves what is smaller and cannot be kept."""
    tensors = [
        tensor(5, 0, read_by=(1,)),
        tensor(0, 1, read_by=(2,), may_keep=False),
        tensor(6, 1, read_by=(3, 4), unpacked=(5, 6)),
        tensor(9, 2, unpacked=(7, 8)),
        tensor(0, 3, unpacked=(6, 7)),
        tensor(0, 4, unpacked=(5, 6), free_step=5),
    ]
    return step(tensors, [100, 1, 1, 0, 0], [0, 0, 7, 7, 7, 0, 8, 0]), (3, 4), 12


def relieved_by_what_it_demands() -> tuple[Problem, tuple[int, ...], int]:
    """In the window of the second of three cells, a replay in the first uses up what that holds; then more is alive."""
    tensors = [
        tensor(5, 0, read_by=(1,)),
        tensor(6, 1, read_by=(2,), unpacked=(6, 8)),
        tensor(0, 2, unpacked=(5, 6)),
        tensor(0, 3, unpacked=(4, 5)),
    ]
    return step(tensors, [100, 1, 1, 0], [0, 0, 0, 0, 6, 0, 0, 4]), (2, 3), 11


def used_up_before_the_last_peak() -> tuple[Problem, tuple[int, ...], int]:
    """The last cell demands its link before it peaks, and that replay uses up what the cell before holds."""
    tensors = [
        tensor(5, 0, read_by=(1,)),
        tensor(6, 1, read_by=(2,), unpacked=(3, 6)),
        tensor(0, 2, unpacked=(6, 7)),
    ]
    return step(tensors, [100, 1, 0], [0, 0, 6, 0, 4, 0, 0]), (2,), 11


CASES = [
    pytest.param(link_nobody_needs(must_keep=False), id="a link that nobody needs"),
    pytest.param(link_nobody_needs(must_keep=True), id="a link that FSDP would hold for replays"),
    pytest.param(two_links(), id="two links"),
    pytest.param(held_in_any_case(), id="held in any case"),
    pytest.param(link_that_replays_use_up(), id="a link that replays use up"),
    pytest.param(replays_that_add(), id="replays that add"),
    pytest.param(demanded_before_its_window(), id="demanded before its window"),
    pytest.param(shared_tensor_replays_early(), id="a shared tensor replays early"),
    pytest.param(relieved_by_what_it_demands(), id="relieved by what it demands"),
    pytest.param(used_up_before_the_last_peak(), id="used up before the last peak"),
]


@pytest.mark.parametrize("case", CASES)
def test_the_bound_holds_for(case: tuple[Problem, tuple[int, ...], int]) -> None:
    problem, starts, budget = case
    affordable = [cost for peak, cost in outcomes(problem) if peak <= budget * GB]

    found = decompose(ChainSolver(problem, cut(problem, starts)), budget * GB)

    assert affordable
    assert not found.is_infeasible
    assert found.bound_ns <= min(affordable)


@pytest.mark.parametrize("case", CASES)
def test_no_plan_breaks_a_row_of(case: tuple[Problem, tuple[int, ...], int]) -> None:
    problem, starts, _ = case
    rows = Rows.of(problem, cut(problem, starts))
    for kept in all_plans(problem):
        timeline = simulate_or_none(problem, kept)
        if timeline is not None and without_idle_anchors(problem, kept) | problem.must_keep == kept:
            assert not rows.broken(rows.options(kept, frozenset()), timeline, timeline)


def cells_alike(count: int) -> tuple[Problem, tuple[int, ...]]:
    """Cells of one saved tensor of 2 GB each, which its op makes again from nothing in 10 ms."""
    unpacks = [count + 2 * (count - 1 - op) for op in range(count)]
    tensors = [tensor(2, op, unpacked=(unpacks[op], unpacks[op] + 1)) for op in range(count)]
    return step(tensors, [10 * MS] * count, [0] * (3 * count)), tuple(range(1, count))


@pytest.mark.parametrize(("roundings", "bound_ms"), [(0, 25), (decomposition._ROUNDINGS, 30)])
def test_no_share_of_a_cell_is_held(roundings: int, bound_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # 5 GB: two tensors and half of a third; of the tensors that are replayed, one is there at a time.
    monkeypatch.setattr(decomposition, "_ROUNDINGS", roundings)
    problem, starts = cells_alike(5)

    found = decompose(ChainSolver(problem, cut(problem, starts)), 5 * GB)

    assert found.timeline is not None
    assert 30 * MS == found.timeline.recompute_ns
    assert bound_ms * MS == pytest.approx(found.bound_ns, rel=1e-3)  # peaks are rounded


def test_what_an_answer_breaks_is_known_after_options_were_added_to_the_program(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    problem, starts = cells_alike(5)
    pool = ChainSolver(problem, cut(problem, starts))._pool
    later = time.monotonic() + 60
    pool.prepare(later)
    master = Master(pool, 5 * GB)
    known = master.relax(tolerance=0.0, deadline=later).columns[0][0].option

    def find_one_and_stop(*_: object, **__: object) -> None:
        assert master._add(0, replace(known, replay_ns=known.replay_ns + 1))
        raise OutOfTime

    monkeypatch.setattr(master, "_generate", find_one_and_stop)
    master.relax(tolerance=0.0, deadline=later)

    assert master.tighten()
    assert "" == capfd.readouterr().err  # where OR-Tools says that it is asked for what it no longer knows


def step_of_prices(draw: st.DrawFn, sizes: Sequence[int]) -> Stairs:
    rise = draw(st.sampled_from(sizes)) * draw(st.sampled_from([1, 2])) // draw(st.sampled_from([1, 3]))
    return Stairs(
        amount=draw(st.sampled_from([Amount.HELD, Amount.PEAK])),
        rounding=Rounding(rise_bytes=rise, free_bytes=draw(st.integers(0, 9)) * rise // 10),
        reference_bytes=draw(st.sampled_from([0, *sizes])) - draw(st.sampled_from([0, *sizes])),
        price_ns=draw(st.integers(0, 20)) * US,
    )


@st.composite
def prices_of_steps(draw: st.DrawFn, sizes: Sequence[int]) -> Prices:
    """What bytes of these sizes cost, also in steps and with relief."""
    byte_ns = st.integers(0, 9).map(lambda price: price * US / max(sizes))
    return Prices(
        held=draw(byte_ns),
        peak=draw(byte_ns),
        relief_bytes=draw(st.sampled_from([0, min(sizes), 2 * max(sizes)])),
        stairs=tuple(step_of_prices(draw, sizes) for _ in range(draw(st.integers(0, 2)))),
    )


@settings(max_examples=200)
@given(chain_problems(max_choices=6), st.data())
def test_no_decision_in_a_cell_is_cheaper_than_its_price(made: ChainProblem, data: st.DataObject) -> None:
    problem = replace(made.problem, ops=tuple(replace(op, cost_ns=op.cost_ns * US) for op in made.problem.ops))
    chain = cut(problem, made.starts)
    cell = chain.cells[data.draw(st.integers(0, len(chain.cells) - 1))]
    template = Template(chain.problem, cell, is_last=False)
    plain_or_late = st.sampled_from([Demand.NONE, Demand.LATE, Demand.LATE])
    entering = data.draw(plain_or_late) if template.can_demand else Demand.NONE
    leaving = data.draw(plain_or_late) if template.can_be_demanded else Demand.NONE
    sizes = sorted({t.size_bytes for t in problem.tensors if t.size_bytes}) or [GB]
    prices = data.draw(prices_of_steps(sizes))
    if not entering.is_demanded:
        prices = replace(prices, relief_bytes=0)
    local, _ = template._local(entering, leaving)

    priced = template.price(prices, entering, leaving)

    assert priced is not None
    costs_ns = [
        template._measure(kept, frozenset(), entering, leaving).price_ns(prices.rounded())
        for kept in all_plans(local.problem)
        if simulate_or_none(local.problem, kept) is not None
    ]
    assert priced.bound_ns <= min(costs_ns) + 1e-6
    if entering or leaving:  # otherwise the model may claim replays that do not happen
        # Peaks and parts of steps are counted in units of 64 KiB, and each of them in thousandths of a ns.
        loss_ns = prices.peak * 65_536 + US / 10
        loss_ns += sum(s.price_ns * 2 * 65_536 / (s.rounding.rise_bytes - s.rounding.free_bytes) for s in prices.stairs)
        assert min(costs_ns) == pytest.approx(priced.option.price_ns(prices.rounded()), abs=loss_ns)


@pytest.fixture(scope="module")
def llama() -> tuple[Problem, ChainSolver]:
    config = {
        "hidden_size": 32,
        "intermediate_size": 80,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 96,
    }
    spec = from_mapping(
        {
            "model": {"transformers": "LlamaForCausalLM", "config": config},
            "batch": {"micro_batch": 8, "sequence_length": 128},
        }
    )
    graph = trace(prepare(spec))
    problem = build_problem(graph, load_device("h100-80gb"))
    solver = chain_solver(problem, block_levels(modules(graph)))
    assert solver is not None
    return problem, solver


@pytest.mark.filterwarnings("ignore")  # what model libraries say of tiny configurations
@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_a_small_llama_costs_what_the_flat_model_proves(llama: tuple[Problem, ChainSolver], share: float) -> None:
    problem, chain = llama
    lowest = max(*problem.base_bytes, problem.optimizer_peak_bytes)
    highest = simulate(problem, saved(problem)).peak_bytes
    budget = round(lowest + share * (highest - lowest))

    flat = solve(problem, budget_bytes=budget, limits=EXACT)
    decomposed = solve(problem, budget_bytes=budget, limits=EXACT, chain=chain)

    assert flat.status == decomposed.status
    assert flat.bound_ns == decomposed.bound_ns
    assert (flat.timeline is None) == (decomposed.timeline is None)
    if flat.timeline is not None and decomposed.timeline is not None:
        assert flat.timeline.recompute_ns == decomposed.timeline.recompute_ns


@pytest.fixture(scope="module")
def half_way(llama: tuple[Problem, ChainSolver]) -> tuple[int, int]:
    """A budget, and what no plan within it costs less than."""
    problem, chain = llama
    lowest = max(*problem.base_bytes, problem.optimizer_peak_bytes)
    budget = (lowest + simulate(problem, saved(problem)).peak_bytes) // 2
    return budget, solve(problem, budget_bytes=budget, limits=EXACT, chain=chain).bound_ns


@pytest.mark.filterwarnings("ignore")
def test_an_interrupted_search_keeps_what_it_had(
    llama: tuple[Problem, ChainSolver], half_way: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, chain = llama
    budget, _ = half_way
    grown = list(chain.improve(budget, gap=0.0, deadline=time.monotonic() + 60))
    fill = decomposition._fill
    fillings = 0

    def interrupted(*arguments: Any, **options: Any) -> None:
        nonlocal fillings
        fillings += 1
        if fillings == len(decomposition._FILLS):
            raise KeyboardInterrupt
        fill(*arguments, **options)

    monkeypatch.setattr(decomposition, "_fill", interrupted)
    with pytest.raises(SearchInterrupted) as caught:
        solve(problem, budget_bytes=budget, limits=EXACT, chain=chain)

    solution = caught.value.solution
    assert grown[-2].timeline == solution.timeline is not None
    assert 0 < grown[-2].bound_ns == solution.bound_ns


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("prices", "has_plan"), [(0, False), (40, False), (80, True), (160, True), (240, True)])
def test_what_time_cuts_short_still_fits_and_claims_no_more_than_is_proven(
    llama: tuple[Problem, ChainSolver],
    half_way: tuple[int, int],
    prices: int,
    has_plan: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, known_chain = llama
    budget, least_ns = half_way
    solve_cell, calls = Template._solve, 0

    def cut(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > prices:
            raise OutOfTime
        return solve_cell(*arguments, **options)

    monkeypatch.setattr(Template, "_solve", cut)
    found = decompose(ChainSolver(problem, known_chain._chain), budget)

    assert calls > prices
    assert not found.is_infeasible
    assert 0 <= found.bound_ns <= least_ns
    assert has_plan == (found.kept is not None)
    if found.kept is not None:
        assert found.timeline == simulate(problem, found.kept)
        assert found.timeline.peak_bytes <= budget
        assert found.timeline.recompute_ns >= least_ns


@pytest.mark.filterwarnings("ignore")
def test_nothing_begins_after_the_deadline_and_nothing_cut_short_is_remembered(
    llama: tuple[Problem, ChainSolver],
) -> None:
    problem, known_chain = llama
    chain = known_chain._chain
    template = Template(chain.problem, chain.cells[1], is_last=False)
    prices = Prices(held=1e-3)
    with pytest.raises(OutOfTime):
        template.price(prices, deadline=PAST)
    with pytest.raises(OutOfTime):
        template.within(0, prices, deadline=PAST)
    with pytest.raises(OutOfTime):
        template.largest_relief_bytes(continues=False, deadline=PAST)
    with pytest.raises(OutOfTime):
        RetentionModel(problem, replay_windows(problem), deadline=PAST)
    columns = [[Column(option=template.saved(), reduced_ns=0.0)] for _ in chain.cells]
    with pytest.raises(OutOfTime):
        assemble(
            chain,
            columns,
            forward_budget_bytes=0,
            window_budget_bytes=0,
            link=LinkRoom(),
            slack_ns=1.0,
            deadline=PAST,
        )

    found = template.price(prices)

    assert found is not None
    assert found is template.price(prices, deadline=PAST)  # which is known by now


@pytest.mark.filterwarnings("ignore")
def test_a_cell_that_cp_sat_gives_up_before_the_deadline_is_out_of_time_too(
    llama: tuple[Problem, ChainSolver], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_early(solver: Any, model: Any) -> int:
        solver.parameters.max_time_in_seconds = 0.0
        return run(solver, model)

    _, known_chain = llama
    template = Template(known_chain._chain.problem, known_chain._chain.cells[1], is_last=False)
    with monkeypatch.context() as patched:
        patched.setattr(options, "run", stop_early)
        with pytest.raises(OutOfTime):
            template.price(Prices(held=1e-3), deadline=time.monotonic() + 600)

    assert template.price(Prices(held=1e-3)) is not None


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(32, 32 * width)
        self.down = nn.Linear(32 * width, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


@pytest.mark.parametrize(("widths", "is_chain"), [((1, 2, 3, 4, 5), False), ((1, 2, 2, 2, 3), True)])
def test_blocks_of_which_no_two_are_alike_are_no_chain(widths: tuple[int, ...], is_chain: bool) -> None:
    graph = trace(nn.Sequential(*(Block(width) for width in widths)), (torch.randn(64, 32),))
    problem = build_problem(graph, load_device("h100-80gb"))

    assert is_chain == (chain_solver(problem, [tuple(str(place) for place in range(len(widths)))]) is not None)
