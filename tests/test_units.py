"""Sizes, times and dtype names as people write them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import UnitError
from planner.units import (
    BYTES_BY_UNIT,
    DTYPE_BYTES,
    as_bytes,
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_dtype,
)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (40_000_000_000, "40GB"),
        (42_949_672_960, "40GiB"),
        (1_500_000, " 1.5 mb "),
        (512, "512B"),
        (1_100_000_000_000, "1.1TB"),
        (500, ".5kb"),
        (1, "1.9B"),
    ],
)
def test_a_size_with_a_unit_is_its_bytes(size_bytes: int, text: str) -> None:
    assert size_bytes == parse_bytes(text)


@pytest.mark.parametrize(
    ("complaint", "text"),
    [
        ("has no unit; write 40GB", "40"),
        ("write 40GB or 40GiB", "40G"),
        ("unknown unit 'GC'", "40GC"),
        ("at least one byte", "-1GB"),
        ("at least one byte", "0GB"),
        ("at least one byte", "0.1B"),
        ("cannot read", "nan"),
        ("cannot read", "1e9GB"),
        ("cannot read", ""),
        ("cannot read", "GB"),
        ("cannot read", "9" * 5000 + "GB"),
        ("cannot read", "4٠GB"),
        ("64-bit", "9999999999TB"),
    ],
)
def test_a_size_that_cannot_be_read_says_why(complaint: str, text: str) -> None:
    with pytest.raises(UnitError, match=complaint) as caught:
        parse_bytes(text)
    assert text == caught.value.text


@pytest.mark.parametrize("size", ["0", " 0 ", "0.0", "0GB", "0.1B", 0])
def test_no_bytes_are_a_size_only_where_that_is_an_answer(size: str | int) -> None:
    assert 0 == as_bytes(size, least=0)
    with pytest.raises(UnitError):
        as_bytes(size)


@pytest.mark.parametrize("size", [-1, "-0", "-1GB", "5", "", 1e9, float("nan"), None])
def test_what_names_no_whole_bytes_is_refused(size: Any) -> None:
    with pytest.raises(UnitError):
        as_bytes(size, least=0)


@given(st.integers(1, 10**6), st.sampled_from(list(BYTES_BY_UNIT)))
def test_whole_numbers_of_any_unit_are_exact(count: int, unit: str) -> None:
    assert count * BYTES_BY_UNIT[unit] == parse_bytes(f"{count}{unit}") == parse_bytes(f"{count} {unit.lower()}")


@given(st.integers(1, 10**15), st.booleans())
def test_a_formatted_size_reads_back_within_its_last_digit(size_bytes: int, binary: bool) -> None:
    # One decimal of a number of at least 1 is off by at most 0.05, which is 5%.
    assert parse_bytes(format_bytes(size_bytes, binary=binary)) == pytest.approx(size_bytes, rel=0.05)


@pytest.mark.parametrize(
    ("text", "size_bytes", "binary"),
    [
        ("0 B", 0, False),
        ("999 B", 999, False),
        ("1.0 KB", 1000, False),
        ("1.0 GB", 999_960_000, False),
        ("999.9 MB", 999_940_000, False),
        ("40.0 GB", 40_000_000_000, False),
        ("37.3 GiB", 40_000_000_000, True),
        ("-64.0 MiB", -(64 * 2**20), True),
        ("2500.0 TB", 2_500_000_000_000_000, False),
    ],
)
def test_a_size_is_shown_in_the_largest_unit_that_fits(text: str, size_bytes: int, binary: bool) -> None:
    assert text == format_bytes(size_bytes, binary=binary)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0.00 µs", 0.0),
        ("4.00 µs", 4e-6),
        ("9.00 ms", 9e-3),
        ("45.6 ms", 0.0456),
        ("1.00 s", 0.9999),
        ("12.3 s", 12.34),
        ("2.0 min", 120.0),
        ("2.5 h", 9000.0),
        ("-1.50 s", -1.5),
    ],
)
def test_a_time_is_shown_with_three_figures(text: str, seconds: float) -> None:
    assert text == format_seconds(seconds)


@pytest.mark.parametrize("text", ["bf16", "BF16", "bfloat16", "torch.bfloat16", " bfloat16 "])
def test_the_usual_names_of_a_dtype_are_one_dtype(text: str) -> None:
    assert parse_dtype(text) == "bfloat16"
    assert DTYPE_BYTES[parse_dtype(text)] == 2


def test_an_unknown_dtype_suggests_the_closest_one() -> None:
    with pytest.raises(UnitError, match=r"did you mean 'float32'\?"):
        parse_dtype("flaot32")


@pytest.mark.parametrize(
    ("text", "per_s"), [("11,830", 11_830.4), ("100", 100.0), ("79.7", 79.66), ("0.0123", 0.01234)]
)
def test_a_rate_is_whole_from_a_hundred_on(text: str, per_s: float) -> None:
    assert text == format_rate(per_s)
