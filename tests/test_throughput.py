"""The search for a micro-batch on made-up costs, and the whole of it on a small model."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ortools")

import planner
from planner import throughput
from planner.errors import InfeasibleError, SpecError, TraceError
from planner.graph import step_info, to_node_link
from planner.plan import Retention
from planner.planning import solve_graph
from planner.spec import RunSpec, batched_inputs, from_mapping, with_micro_batch
from planner.throughput import Attempt, Verdict, fastest, growing_throughput, search, try_each


def costs(
    step_s: Callable[[int], float], *, largest: int = 10**6, smallest: int = 1
) -> tuple[Callable[[int], Attempt], list[int]]:
    """A way of trying micro-batches of one token a sample, and the list of those it is asked for."""
    asked: list[int] = []

    def try_batch(size: int) -> Attempt:
        asked.append(size)
        if size < smallest:
            return Attempt(micro_batch=size, verdict=Verdict.FAILED, why="too small")
        if size > largest:
            return Attempt(micro_batch=size, verdict=Verdict.TOO_LARGE, peak_bytes=size, why="too large")
        return Attempt(micro_batch=size, verdict=Verdict.FITS, tokens=size, step_s=step_s(size), peak_bytes=size)

    return try_batch, asked


def best_of(attempts: Iterable[Attempt]) -> int | None:
    best = fastest(attempts)
    return None if best is None else best.micro_batch


def rising_until(peak: int) -> Callable[[int], float]:
    """Seconds whose tokens per second rise up to a micro-batch and fall beyond it."""
    return lambda size: size / (size if size <= peak else peak * peak / size)


# ---- the search


@pytest.mark.parametrize("start", [1, 4, 24, 64])
def test_it_finds_the_peak_of_a_curve_from_either_side(start: int) -> None:
    try_batch, asked = costs(rising_until(24))

    found = best_of(search(try_batch, start))

    assert 24 == found
    assert len(asked) == len(set(asked))  # nothing is tried twice
    assert len(asked) <= 16


def test_a_dip_does_not_end_a_direction_but_two_in_a_row_do() -> None:
    rates = {8: 10.0, 16: 9.0, 32: 12.0, 64: 11.0, 128: 11.0}
    try_batch, asked = costs(lambda size: size / rates.get(size, 1.0))

    attempts = list(search(try_batch, 8))

    assert 32 == best_of(attempts)
    assert [8, 16, 32, 64, 128] == asked[:5]
    assert 256 not in asked


def test_on_a_plateau_it_stops_and_takes_the_smallest() -> None:
    try_batch, asked = costs(lambda size: size / 100)

    attempts = list(search(try_batch, 16))

    assert [16, 32, 64, 8, 4] == asked[:5]
    assert 64 == max(asked)
    assert min(asked) == best_of(attempts)


def test_gains_too_small_to_mean_anything_end_a_direction() -> None:
    try_batch, asked = costs(lambda size: size / (100 * (1 + 0.0001 * size.bit_length())))

    list(search(try_batch, 16))

    assert 64 == max(asked)


def test_what_does_not_fit_ends_the_search_upwards_and_the_border_is_approached() -> None:
    try_batch, asked = costs(lambda size: 1 + 0.01 * size, largest=23)

    attempts = list(search(try_batch, 8))

    assert 32 == max(asked)
    assert 22 == best_of(attempts)  # 16 of 32, then 24, then 20 and 22: within an eighth of the last doubling
    assert Verdict.TOO_LARGE in {attempt.verdict for attempt in attempts}


def test_a_start_that_does_not_fit_is_searched_below_only() -> None:
    try_batch, asked = costs(lambda size: 1 + 0.01 * size, largest=5)

    attempts = list(search(try_batch, 64))

    assert [64, 32, 16, 8, 4] == asked[:5]
    assert max(asked) == 64
    assert 5 == best_of(attempts)


def test_there_may_be_only_one_candidate() -> None:
    try_batch, asked = costs(lambda size: 1.0, largest=1)

    assert 1 == best_of(search(try_batch, 1))
    assert [1, 2] == asked


def test_nothing_fits() -> None:
    try_batch, asked = costs(lambda size: 1.0, largest=0)

    assert best_of(search(try_batch, 8)) is None
    assert [8, 4, 2, 1] == asked


def test_a_step_that_fits_with_no_micro_batch_is_tried_once() -> None:
    asked: list[int] = []

    def try_batch(size: int) -> Attempt:
        asked.append(size)
        return Attempt(micro_batch=size, verdict=Verdict.HOPELESS)

    assert best_of(search(try_batch, 8)) is None
    assert [8] == asked
    assert ["too large at any size", "not tried"] == [str(a.verdict) for a in try_each(try_batch, (1, 2))]


def test_a_model_that_does_not_run_is_tried_once() -> None:
    try_batch, asked = costs(lambda size: 1.0, smallest=9)

    assert best_of(search(try_batch, 8)) is None
    assert [8] == asked


def test_sizes_below_which_the_model_does_not_run_are_left_out() -> None:
    try_batch, _ = costs(rising_until(2), smallest=2)

    attempts = list(search(try_batch, 8))

    assert 2 == best_of(attempts)
    assert Verdict.FAILED is next(a.verdict for a in attempts if a.micro_batch == 1)


def test_given_sizes_are_tried_by_size_until_one_is_too_large() -> None:
    try_batch, asked = costs(rising_until(3), largest=8, smallest=2)

    attempts = list(try_each(try_batch, (16, 3, 1, 9, 3, 8)))

    assert [1, 3, 8, 9] == asked
    assert 3 == best_of(attempts)
    assert ["failed", "fits", "fits", "too large", "not tried"] == [str(a.verdict) for a in attempts]


# ---- a model


def small(micro_batch: int = 4, **more: Any) -> RunSpec:
    return from_mapping(
        {
            "model": {
                "transformers": "LlamaForCausalLM",
                "config": {
                    "vocab_size": 64,
                    "hidden_size": 32,
                    "intermediate_size": 64,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 2,
                },
            },
            "batch": {"micro_batch": micro_batch, "sequence_length": 16},
            **more,
        }
    )


@pytest.fixture(scope="module")
def everything_saved_bytes() -> int:
    pytest.importorskip("transformers")
    return solve_graph(planner.trace(small(16)), budget="1GB").plan.predicted.peak_bytes


def test_the_fastest_is_traced_rehearsed_and_its_plan_is_for_its_micro_batch(everything_saved_bytes: int) -> None:
    found = planner.best_throughput(small(), budget=everything_saved_bytes, micro_batches=(2, 4, 8, 16))

    assert found.chosen is not None
    best = found.chosen.attempt
    assert max(row.tokens_per_s for row in found.tried) == best.tokens_per_s
    assert [2, 4, 8, 16] == [row.micro_batch for row in found.tried]
    assert best in found.tried
    assert (True, False) == (best.is_rehearsed, best.is_scaled)
    plan = found.chosen.outcome.plan
    assert best.micro_batch == plan.model.micro_batch
    assert best.micro_batch * 16 == step_info(found.chosen.graph).tokens == best.tokens
    assert plan.predicted.peak_bytes <= everything_saved_bytes
    assert best.tokens / plan.predicted.step_s == best.tokens_per_s
    direct = solve_graph(planner.trace(small(best.micro_batch)), budget=everything_saved_bytes).plan
    assert direct.decisions == plan.decisions


def test_what_scales_is_traced_three_times_and_comes_to_the_same(everything_saved_bytes: int) -> None:
    budget_bytes = everything_saved_bytes * 3 // 4
    *before, last = growing_throughput(small(), budget=budget_bytes, micro_batches=(2, 4, 8, 12, 16))

    assert [False, False, False, True, True] == [row.is_scaled for row in before[-1].tried]
    assert [0, 1, 2, 3, 4, 5] == [len(found.tried) for found in before]
    assert [False] * 6 + [True] == [found.is_complete for found in (*before, last)]
    for row in last.tried:
        predicted = solve_graph(planner.trace(small(row.micro_batch)), budget=budget_bytes).plan.predicted
        assert (predicted.step_s, predicted.peak_bytes) == (row.step_s, row.peak_bytes)
        assert predicted.recompute_s == row.recompute_s
    assert last.tried[-1].recompute_s > 0


def test_one_that_turns_out_slower_once_rehearsed_gives_way_to_the_next(
    everything_saved_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearse = throughput.rehearse

    def over(step: Any, plan: Any) -> Any:
        found = rehearse(step, plan)
        is_refused = plan.model.micro_batch == 16
        return replace(found, peak_bytes=10 * found.peak_bytes) if is_refused else found

    monkeypatch.setattr(throughput, "rehearse", over)
    found = planner.best_throughput(small(), budget=everything_saved_bytes, micro_batches=(8, 16))

    assert found.chosen is not None
    assert 8 == found.chosen.attempt.micro_batch
    assert ["fits", "too large"] == [str(row.verdict) for row in found.tried]


def test_nothing_fits_is_an_error_about_the_smallest_tried() -> None:
    pytest.importorskip("transformers")
    static = step_info(planner.trace(small(optimizer={"name": "none"}))).static
    limit = static.optimizer_peak_bytes + 1  # without an optimizer, room for activations is what is missing
    found = list(growing_throughput(small(optimizer={"name": "none"}), budget=limit))[-1]

    assert found.refusal is not None
    assert (1, None) == (found.refusal.micro_batch, found.chosen)
    assert [(1, "too large"), (2, "too large"), (4, "too large")] == [
        (row.micro_batch, str(row.verdict)) for row in found.tried
    ]
    with pytest.raises(InfeasibleError) as caught:
        planner.best_throughput(small(optimizer={"name": "none"}), budget=limit, micro_batches=(2,))
    assert caught.value.smallest_peak_bytes > limit


def test_less_than_what_every_micro_batch_needs_is_known_after_one() -> None:
    pytest.importorskip("transformers")
    found = list(growing_throughput(small(), budget="10KB"))[-1]

    assert [(4, Verdict.HOPELESS)] == [(row.micro_batch, row.verdict) for row in found.tried]
    assert found.refusal is not None


def test_a_model_that_does_not_run_is_its_own_error() -> None:
    pytest.importorskip("transformers")
    broken = small(batch={"micro_batch": 4})
    with pytest.raises((SpecError, TraceError), match="sequence_length"):
        planner.best_throughput(broken, budget="1GB")


def test_a_micro_batch_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="from 1 to"):
        planner.best_throughput(small(), budget="1GB", micro_batches=(4, 0))


# ---- where the micro-batch is


def inputs(*shapes: list[int]) -> RunSpec:
    named = {f"x{place}": {"shape": shape, "dtype": "float32"} for place, shape in enumerate(shapes)}
    return from_mapping({"model": {"factory": "some:thing"}, "inputs": named})


def test_with_inputs_it_is_the_first_axis_of_those_as_long_as_the_first() -> None:
    spec = with_micro_batch(inputs([32, 3, 32], [32], [3, 32], []), 5)

    assert [(5, 3, 32), (5,), (3, 32), ()] == [item.shape for item in spec.inputs]
    assert 5 == spec.batch.micro_batch
    assert ("x0", "x1") == batched_inputs(spec)


def test_a_spec_without_such_an_axis_is_refused() -> None:
    spec = replace(inputs([32, 3]), batch=replace(inputs([32, 3]).batch, micro_batch=8))

    assert spec == with_micro_batch(spec, 8)
    with pytest.raises(SpecError, match="inputs: no input has the micro-batch of 8"):
        with_micro_batch(spec, 4)
    with pytest.raises(SpecError):
        planner.best_throughput(spec, budget="1GB")


def test_a_micro_batch_beyond_what_a_spec_may_have_is_refused_before_any_work() -> None:
    with pytest.raises(SpecError, match=r"micro-batch of 1000000000, x0: expected at most .* elements in all"):
        planner.best_throughput(inputs([32, 4096]), budget="1GB", micro_batches=(32, 10**9))
    with pytest.raises(ValueError, match="from 1 to 1,000,000,000"):
        planner.best_throughput(inputs([32, 4096]), budget="1GB", micro_batches=(10**30,))


def test_a_plan_that_saves_everything_has_no_recompute(everything_saved_bytes: int) -> None:
    found = planner.best_throughput(small(), budget="1GB", micro_batches=(4,))

    assert found.chosen is not None
    assert 0 == found.chosen.outcome.plan.count(Retention.RECOMPUTE)
    assert 4 == to_node_link(found.chosen.graph)["graph"]["step"]["micro_batch"]


@pytest.mark.slow
def test_the_documented_figures_are_what_the_example_comes_to() -> None:
    pytest.importorskip("transformers")
    root = Path(__file__).parent.parent
    spec = planner.load(root / "examples" / "llama-2-7b-throughput.yaml")
    shown = (root / "docs" / "throughput.md").read_text()

    for size, way in ((16, "no checkpointing"), (16, "every block"), (64, "every block")):
        graph = planner.trace(with_micro_batch(spec, size))
        plan = solve_graph(graph, budget="80GB").plan
        baseline = next(row for row in plan.baselines if row.name == way)
        assert baseline.fits
        cells = f"{step_info(graph).tokens / baseline.step_s:,.0f} | {baseline.peak_bytes / 1e9:.2f} GB |"
        (line,) = (line for line in shown.splitlines() if line.startswith(f"| {size} | "))
        assert cells in line
