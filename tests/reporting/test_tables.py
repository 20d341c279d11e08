"""Quantities and columns as a reader sees them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.reporting.tables import (
    WIDTH,
    count,
    duration,
    gigabytes,
    percent,
    shape,
    shortened,
    table,
    wrapped,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0.00 GB", 0),
        ("40.00 GB", 40_000_000_000),
        ("42.95 GB", 40 * 2**30),
        ("1,234.50 GB", 1_234_500_000_000),
        ("0.10 GB", 100_000_000),
        ("0.054 GB", 53_950_000),
        ("0.0010 GB", 1_000_000),
        ("0.000000004 GB", 4),
        ("-1.00 GB", -1_000_000_000),
    ],
)
def test_sizes_are_always_in_gb(text: str, size_bytes: int) -> None:
    assert text == gigabytes(size_bytes)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0 ms", 0),
        ("0.05 ms", 5e-5),
        ("20.0 ms", 0.02),
        ("119 ms", 0.1188),
        ("1.00 s", 0.9999),
        ("1,000.00 s", 1000),
    ],
)
def test_times_are_in_milliseconds_or_seconds(text: str, seconds: float) -> None:
    assert text == duration(seconds)


def test_other_quantities() -> None:
    assert ("158 TFLOPs", "7.17 PFLOPs", "870 FLOPs") == tuple(
        count(number, "FLOPs") for number in (158.1e12, 7.17e15, 870)
    )
    assert ("0%", "0.01%", "2.1%", "54%", "117%") == tuple(
        percent(fraction) for fraction in (0, 0.000145, 0.021, 0.5354, 1.166)
    )
    assert ("1 × 8192", "scalar") == (shape((1, 8192)), shape(()))


def test_long_names_lose_their_middle() -> None:
    assert "abc" == shortened("abc", 3)
    assert "a…f" == shortened("abcdef", 3)


def test_text_aligns_left_and_numbers_right() -> None:
    assert ["name  size", "a        1", "bcd     22"] == table(("name", "size"), [("a", "1"), ("bcd", "22")])


@given(
    st.lists(
        st.tuples(st.text("abc.{}", max_size=300), st.text("xyz", max_size=90), st.text("0123456789", max_size=12))
    )
)
def test_a_table_fits_the_terminal_whatever_its_names(rows: list[tuple[str, str, str]]) -> None:
    for line in table(("module", "class", "size"), rows, left=2):
        assert len(line) <= WIDTH


@given(st.text("ab ", max_size=400))
def test_wrapped_text_fits_and_keeps_its_words(text: str) -> None:
    lines = wrapped(text)
    assert text.split() == " ".join(lines).split() or any(len(word) > WIDTH - 4 for word in text.split())
    assert all(len(line) <= WIDTH for line in lines)
