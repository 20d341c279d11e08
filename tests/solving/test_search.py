"""The solver against exhaustive search on random steps, and the promises made about budgets."""

import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.problem import Problem
from planner.simulation.liveness import retained, simulate
from planner.solving import search
from planner.solving.interruptible import SolverInterrupted, run
from planner.solving.search import Limits, SearchInterrupted, Status, lowest_peak, saved, solve
from tests.problems import all_plans, problems, run_slowly
from tests.simulation.test_liveness import chain, simulate_or_none

EXACT = Limits(time_s=60.0, gap=0.0)


def outcomes(problem: Problem) -> list[tuple[int, int]]:
    """(recompute, peak) of every plan that can run, by the slow runtime rather than the simulation under test."""
    runnable = [kept for kept in all_plans(problem) if simulate_or_none(problem, kept) is not None]
    return [(cost, peak) for peak, cost in (run_slowly(problem, kept) for kept in runnable)]


@settings(max_examples=200)
@given(problems(max_ops=6), st.data())
def test_the_optimum_equals_exhaustive_search(problem: Problem, data: st.DataObject) -> None:
    plans = outcomes(problem)
    peaks = sorted({peak for _, peak in plans})
    budget = data.draw(st.sampled_from([*peaks, max(1, peaks[0] - 1)]))
    affordable = [cost for cost, peak in plans if peak <= budget]

    solution = solve(problem, budget_bytes=budget, limits=EXACT)

    if not affordable:
        assert Status.INFEASIBLE == solution.status
        return
    assert Status.OPTIMAL == solution.status
    assert solution.timeline is not None
    assert solution.kept is not None
    assert min(affordable) == solution.timeline.recompute_ns
    assert min(affordable) == solution.bound_ns
    assert run_slowly(problem, solution.kept)[0] <= budget


@settings(max_examples=60)
@given(problems(max_ops=5))
def test_the_lowest_peak_equals_exhaustive_search(problem: Problem) -> None:
    found = lowest_peak(problem, limits=EXACT)

    lowest = min(peak for _, peak in outcomes(problem))
    assert lowest == found.timeline.peak_bytes
    assert lowest == found.bound_bytes


@settings(max_examples=60)
@given(problems(max_ops=6))
def test_more_budget_never_costs_more_time(problem: Problem) -> None:
    peaks = sorted({peak for _, peak in outcomes(problem)})
    costs = [
        solution.timeline.recompute_ns
        for peak in peaks[:8]
        if (solution := solve(problem, budget_bytes=peak, limits=EXACT)).timeline is not None
    ]

    assert sorted(costs, reverse=True) == costs


def test_a_budget_for_everything_replays_nothing() -> None:
    problem = chain((1, 2, 4, 8))

    solution = solve(problem, budget_bytes=15, limits=EXACT)

    assert saved(problem) == solution.kept
    assert 0.0 == solution.gap
    assert Status.OPTIMAL == solution.status


def test_a_budget_one_byte_short_gives_up_the_cheapest_tensor_that_helps() -> None:
    problem = chain((1, 2, 4, 8))

    solution = solve(problem, budget_bytes=14, limits=EXACT)

    assert solution.timeline is not None
    # Dropping the first (cost 10) lowers every moment before its unpack by 1.
    assert 10 == solution.timeline.recompute_ns
    assert 14 == solution.timeline.peak_bytes


def test_what_is_kept_for_replays_alone_takes_no_memory_without_them() -> None:
    # The first tensor passes between two units of FSDP: no replay may make it, and only one of op 1 reads it.
    made = chain((1, 2, 4, 8))
    problem = replace(made, tensors=(replace(made.tensors[0], must_keep=True, uses=()), *made.tensors[1:]))

    everything = solve(problem, budget_bytes=14, limits=EXACT)
    less = solve(problem, budget_bytes=13, limits=EXACT)

    assert everything.timeline is not None
    assert less.timeline is not None
    assert (Status.OPTIMAL, 0, 14) == (everything.status, everything.bound_ns, everything.timeline.peak_bytes)
    assert (Status.OPTIMAL, 11, 13) == (less.status, less.bound_ns, less.timeline.peak_bytes)


def test_the_same_problem_gives_the_same_plan_again() -> None:
    problem = chain((3, 1, 4, 1, 5, 9, 2, 6))

    plans = {solve(problem, budget_bytes=20, limits=EXACT).kept for _ in range(3)}

    assert 1 == len(plans)


def test_without_time_the_answer_is_honest() -> None:
    problem = chain((1, 2, 4, 8))

    solution = solve(problem, budget_bytes=14, limits=Limits(time_s=0.0))

    assert Status.UNKNOWN == solution.status
    assert solution.kept is None


def test_a_known_plan_is_the_answer_when_time_is_out() -> None:
    problem = chain((1, 2, 4, 8))
    known = frozenset({0, 2})

    solution = solve(problem, budget_bytes=14, limits=Limits(time_s=0.0), known=[retained(problem, known)])

    assert known == solution.kept
    assert Status.FEASIBLE == solution.status
    assert 1.0 == solution.gap
    assert solution.timeline is not None
    assert simulate(problem, known).recompute_ns == solution.timeline.recompute_ns


def test_a_peak_that_is_low_enough_ends_the_search_for_the_lowest() -> None:
    problem = chain((1, 2, 4, 8))
    everything = simulate(problem, saved(problem)).peak_bytes

    found = lowest_peak(problem, limits=EXACT, enough_bytes=everything)

    assert (saved(problem), everything) == (found.kept, found.timeline.peak_bytes)
    assert lowest_peak(problem, limits=EXACT).timeline.peak_bytes < everything


class SlowToStop:
    """A solver that goes on for a while after it was told to stop, as CP-SAT does."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self.is_finished = False

    def solve(self, _: object) -> int:
        assert self.told.wait(10)
        time.sleep(0.3)
        self.is_finished = True
        return 7

    def stop_search(self) -> None:
        self.told.set()


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C raises in Python, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_waits_for_the_solver_to_stop() -> None:
    solver: Any = SlowToStop()
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    timer.start()

    with pytest.raises(SolverInterrupted) as caught:
        run(solver, cast(Any, None))

    assert 7 == caught.value.status
    assert solver.is_finished
    timer.join()


def interrupt(*_: object) -> Any:
    raise KeyboardInterrupt


def test_an_interrupt_before_any_search_leaves_the_known_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "replay_windows", interrupt)
    problem, known = chain((1, 2, 4, 8)), frozenset({0, 2})

    with pytest.raises(SearchInterrupted) as caught:
        solve(problem, budget_bytes=14, limits=EXACT, known=[retained(problem, known)])

    assert (known, 0, 1.0) == (caught.value.solution.kept, caught.value.solution.bound_ns, caught.value.solution.gap)
    with pytest.raises(KeyboardInterrupt):  # which is what who does not know of plans expects
        solve(chain((1, 2, 4, 8)), budget_bytes=14, limits=EXACT)


def test_an_interrupt_without_any_plan_is_honest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "replay_windows", interrupt)

    with pytest.raises(SearchInterrupted) as caught:
        solve(chain((1, 2, 4, 8)), budget_bytes=14, limits=EXACT)

    assert (Status.UNKNOWN, None) == (caught.value.solution.status, caught.value.solution.kept)


def test_an_interrupted_solver_is_asked_for_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(solver: Any, model: Any) -> int:
        raise SolverInterrupted(run(solver, model))

    problem = chain((1, 2, 4, 8))
    monkeypatch.setattr(search, "run", stopped)

    with pytest.raises(SearchInterrupted) as caught:
        solve(problem, budget_bytes=14, limits=EXACT, known=[retained(problem, frozenset({0, 2}))])

    solution = caught.value.solution
    assert solution.timeline is not None
    assert (10, 10, Status.OPTIMAL) == (solution.timeline.recompute_ns, solution.bound_ns, solution.status)
