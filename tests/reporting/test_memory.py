"""Memory over time in few columns: nothing that is a peak may be lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ortools")

from planner.reporting.memory import OPTIMIZER, fullest_by_column
from planner.simulation.kinds import MemoryKind
from tests.reports import MB, layered, plan_of, report_of, small_plan


def test_a_column_shows_the_fullest_of_the_moments_that_it_covers() -> None:
    # Moments of 1, 0, 3 and 4 units in four columns of two units.
    assert [1, 2, 3, 3] == fullest_by_column((0, 1, 1, 4, 8), (5, 9, 7, 8), 4)


def test_a_moment_without_any_time_at_the_very_end_is_in_the_last_column() -> None:
    assert [0, 1] == fullest_by_column((0, 2, 2), (1, 5), 2)


def test_a_step_that_takes_no_time_is_one_column() -> None:
    assert [1] == fullest_by_column((0, 0, 0, 0), (1, 3, 2), 480)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100)), min_size=1, max_size=60),
    st.integers(1, 20),
)
def test_the_highest_moment_is_in_some_column_and_every_column_has_one(
    moments: list[tuple[int, int]], columns: int
) -> None:
    bounds = [0]
    for time, _ in moments:
        bounds.append(bounds[-1] + time)
    totals = [total for _, total in moments]

    found = fullest_by_column(bounds, totals, columns)

    assert max(totals) == max(totals[place] for place in found)
    assert (columns if bounds[-1] else 1) == len(found)
    assert all(0 <= place < len(totals) for place in found)
    width = bounds[-1] / len(found)
    for column, place in enumerate(found):  # what a column shows is alive in it
        assert bounds[place] <= (column + 1) * width
        assert bounds[place + 1] >= column * width


def test_peaks_of_a_step_are_those_of_its_phases() -> None:
    graph = layered(3)
    memory = report_of(graph, plan_of(graph, budget=1000 * MB)).memory

    # Everything stays: six tensors of 20 MB beside 90 MB; the first op of backward holds all of them, too.
    assert ["forward", "backward", OPTIMIZER] == [peak.phase for peak in memory.peaks]
    assert [210 * MB, 210 * MB, 100 * MB] == [peak.total_bytes for peak in memory.peaks]
    forward = dict(zip(memory.kinds, memory.peaks[0].by_kind_bytes, strict=True))
    assert (30 * MB, 60 * MB, 120 * MB) == tuple(
        forward[kind] for kind in (MemoryKind.PARAMETERS, MemoryKind.OPTIMIZER_STATE, MemoryKind.KEPT)
    )
    assert "forward, mm of layers.2.b" == memory.peaks[0].at
    assert (210 * MB, 480) == (memory.peak_bytes, len(memory.columns))
    assert memory.peak_bytes == max(column.total_bytes for column in memory.columns)


def test_columns_follow_each_other_to_the_end_of_the_step() -> None:
    memory = report_of(layered(), small_plan()).memory

    assert 0 == memory.columns[0].start_s
    assert memory.end_s == pytest.approx(memory.columns[-1].end_s)
    assert all(one.end_s == two.start_s for one, two in zip(memory.columns, memory.columns[1:], strict=False))
    # The optimizer step takes no time on this device, and less memory than backward's end.
    assert ["forward", "backward"] == list(dict.fromkeys(column.phase for column in memory.columns))
