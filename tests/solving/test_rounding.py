"""Rounded rows: the function that counts bytes in steps, and the rows that a relaxed answer breaks."""

from hypothesis import given
from hypothesis import strategies as st

from planner.solving.rounding import RoundedRow, Rounding, broken_rows

MB = 1_000_000

sizes = st.integers(-200, 200)
roundings = st.integers(1, 40).flatmap(
    lambda rise: st.builds(Rounding, rise_bytes=st.just(rise), free_bytes=st.integers(0, rise - 1))
)


def test_a_step_begins_where_what_is_free_ends() -> None:
    rounding = Rounding(rise_bytes=10, free_bytes=6)

    assert [-1, -0.5, 0, 0, 0.25, 1, 1] == [rounding.steps(size) for size in (-10, -2, 0, 6, 7, 10, 16)]


@given(roundings, sizes, sizes)
def test_parts_come_to_no_more_steps_than_their_sum(rounding: Rounding, one: int, other: int) -> None:
    together = rounding.steps(one + other)

    assert rounding.steps(one) + rounding.steps(other) <= together + 1e-9


@given(roundings, sizes)
def test_no_byte_costs_more_than_its_part_of_a_step(rounding: Rounding, size: int) -> None:
    rise = rounding.steps(size + 1) - rounding.steps(size)

    assert -1e-9 <= rise <= 1 / (rounding.rise_bytes - rounding.free_bytes) + 1e-9


def test_what_remains_beyond_whole_steps_is_free() -> None:
    row = RoundedRow.of((5, 7), rise_bytes=10, limit_bytes=39)

    assert Rounding(rise_bytes=10, free_bytes=7) == row.rounding
    assert 2 == row.most_steps
    assert 1 == row.steps(1, 17)


def test_an_answer_that_shares_a_step_among_cells_breaks_a_row() -> None:
    # Three cells hold 0 or 10 MB; 15 fit. Half a cell each is within the limit, but only one whole cell is.
    found = broken_rows([{0: 0.5, 10 * MB: 0.5}] * 3, ["alike"] * 3, 15 * MB, rises_bytes=[])

    assert [(5 * MB, RoundedRow.of((0, 0, 0), rise_bytes=10 * MB, limit_bytes=15 * MB))] == found[:1]


def test_each_kind_of_cell_has_a_reference_of_its_own() -> None:
    # As before, but one of the cells holds 3 MB more in any case.
    shares = [{0: 0.5, 10 * MB: 0.5}, {0: 0.5, 10 * MB: 0.5}, {3 * MB: 0.5, 13 * MB: 0.5}]

    found = broken_rows(shares, ["alike", "alike", "other"], 18 * MB, rises_bytes=[])

    assert (0, 0, 3 * MB) in [row.references_bytes for _, row in found]


def test_an_answer_of_whole_options_breaks_no_row() -> None:
    shares = [{10 * MB: 1.0}, {0: 1.0}, {0: 1.0}]

    assert [] == broken_rows(shares, ["alike", "alike", "other"], 15 * MB, rises_bytes=[6 * MB, 10 * MB])
