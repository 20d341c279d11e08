"""Module patterns: written once, read back exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.patterns import MAX_EXPANSION, compress, expand

PARTS = st.one_of(
    st.integers(0, 12).map(str),
    st.sampled_from(["layers", "mlp", "layer1", "01", "007", "{", "}", "{0..3}", "²", "٣", "a{b}c", "", "é"]),
)
PATHS = st.lists(PARTS, max_size=4).map(".".join)


@pytest.mark.parametrize(
    ("paths", "patterns"),
    [
        (["model.layers.0.mlp", "model.layers.1.mlp", "model.layers.2.mlp"], ["model.layers.{0..2}.mlp"]),
        (["h.0", "h.2", "h.3", "h.7"], ["h.{0,2..3,7}"]),
        (["a.0.b.0", "a.0.b.1", "a.1.b.0", "a.1.b.1"], ["a.{0..1}.b.{0..1}"]),
        (["a.0", "b.0"], ["a.0", "b.0"]),
        (["layer1", "layer2"], ["layer1", "layer2"]),  # the number is not a part of its own
        (["a.1", "a.01"], ["a.1", "a.01"]),  # "01" is a name
        ([""], [""]),
        (["{x}"], ["{{x}}"]),
    ],
)
def test_paths_that_differ_in_their_numbers_share_a_pattern(paths: list[str], patterns: list[str]) -> None:
    assert patterns == [pattern for pattern, _ in compress((path, None) for path in paths)]
    assert sorted(paths) == sorted(path for pattern in patterns for path in expand(pattern))


def test_three_corners_of_a_square_are_not_called_a_square() -> None:
    paths = ["a.0.b.0", "a.0.b.1", "a.1.b.0"]
    patterns = [pattern for pattern, _ in compress((path, None) for path in paths)]
    assert paths == sorted(path for pattern in patterns for path in expand(pattern))


def test_modules_with_different_rows_stay_apart() -> None:
    assert [("h.{0,2}", "x"), ("h.1", "y")] == compress([("h.0", "x"), ("h.1", "y"), ("h.2", "x")])


@given(st.dictionaries(PATHS, st.integers(0, 1)))
def test_expanding_what_was_compressed_gives_every_path_its_payload_once(rows: dict[str, int]) -> None:
    expanded = [(path, payload) for pattern, payload in compress(rows.items()) for path in expand(pattern)]
    assert sorted(rows.items()) == sorted(expanded)


@given(st.dictionaries(PATHS, st.integers(0, 1)))
def test_compressing_the_expansion_again_changes_nothing(rows: dict[str, int]) -> None:
    once = compress(rows.items())
    assert once == compress((path, payload) for pattern, payload in once for path in expand(pattern))


@pytest.mark.parametrize(
    "pattern",
    ["a.{", "a.}", "a.{}", "a.{x}", "a.{3..1}", "a.{1..}", "a.{1,,2}", "a.{0..99999999999}", "{0..999}" * 3],
)
def test_a_pattern_that_cannot_be_read_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read|more than 1,000,000"):
        list(expand(pattern))


def test_the_largest_pattern_is_still_expanded() -> None:
    assert MAX_EXPANSION == sum(1 for _ in expand(f"{{0..{MAX_EXPANSION - 1}}}"))
