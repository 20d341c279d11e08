"""From timed calls to curves, and how fast the machine is meanwhile."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.runtime.profiling.curves import Sample, net_seconds, points, spread
from planner.runtime.profiling.reference import Speed, at_best, slowdown


def sample(place: float, work: float, seconds: float) -> Sample:
    return Sample(place=place, work=work, seconds=seconds, spread=0.0)


def test_a_curve_has_the_rate_of_each_sample_in_ascending_order() -> None:
    found = points([sample(1e6, 1e6, 0.5), sample(1e3, 1e3, 0.001)])
    assert [(1e3, 1e6), (1e6, 2e6)] == [(point.place, point.rate_per_s) for point in found]


def test_samples_at_nearly_the_same_place_become_one_point_at_their_geometric_means() -> None:
    (point,) = points([sample(100, 100, 1), sample(121, 484, 1)])
    assert (110, 220) == (point.place, point.rate_per_s)


def test_where_more_work_took_less_time_by_chance_its_rate_is_lowered_to_take_as_long() -> None:
    found = points([sample(100, 100, 1.0), sample(1000, 1000, 0.5)])
    assert [100, 1000] == [point.rate_per_s for point in found]


def test_what_took_no_time_is_no_sample() -> None:
    assert () == points([sample(100, 100, 0.0), sample(0, 0, 1.0)])


@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(1e-6, 1e3)), min_size=1, max_size=12))
def test_no_point_takes_less_time_than_a_smaller_one(timed: list[tuple[float, float]]) -> None:
    found = points([sample(place, place, seconds) for place, seconds in timed])
    times = [point.place / point.rate_per_s for point in found]
    assert all(before <= after * 1.001 for before, after in pairwise(times))


def test_the_work_of_a_call_is_what_an_empty_call_does_not_take_and_a_tenth_at_least() -> None:
    assert 3.0 == net_seconds(5.0, 2.0)
    assert 0.5 == net_seconds(5.0, 4.9)


def test_the_spread_is_the_distance_of_the_quartiles_over_the_median() -> None:
    assert pytest.approx(2 / 3) == spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert 0 == spread([1.0])


def test_a_machine_that_takes_twice_as_long_for_products_slows_down_what_is_products_by_two() -> None:
    best = Speed(product_s=1.0, elementwise_s=1.0)
    now = Speed(product_s=2.0, elementwise_s=1.5)
    assert 2.0 == slowdown([now, now], best, arithmetic_share=1.0)
    assert 1.5 == slowdown([now, now], best, arithmetic_share=0.0)
    assert 1.75 == slowdown([best, Speed(product_s=4.0, elementwise_s=1.0)], best, arithmetic_share=0.5)


def test_the_best_speed_is_the_lowest_tenth_of_each_call() -> None:
    found = at_best(Speed(product_s=float(n), elementwise_s=float(30 - n)) for n in range(21))
    assert (2.0, 12.0) == (found.product_s, found.elementwise_s)
