"""Files become plain data with line numbers, or one located error."""

import gc
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from planner.errors import PlanFileError, SpecError
from planner.yaml_source import (
    FLOAT_RESOLVER,
    MAX_FILE_BYTES,
    SourcePosition,
    load_json,
    load_yaml,
    parse_yaml,
)


def test_every_key_and_item_has_the_line_it_stands_on() -> None:
    document = parse_yaml("batch:\n  micro_batch: 1\nshape:\n  - 2\n  - 3\n", "a.yaml")
    assert {"batch": {"micro_batch": 1}, "shape": [2, 3]} == document.data
    assert SourcePosition(line=2, column=3) == document.lines[("batch", "micro_batch")]
    assert SourcePosition(line=5, column=5) == document.lines[("shape", 1)]


def test_an_unknown_key_path_has_the_position_of_what_surrounds_it() -> None:
    document = parse_yaml("a: 1\nb:\n  c: 2\n", "a.yaml")
    assert SourcePosition(line=2, column=1) == document.position(("b", "missing", 0))


def test_numbers_with_an_exponent_are_numbers_and_dates_and_times_are_text() -> None:
    document = parse_yaml("[1e-5, 1.5e9, 1E3, 2024-01-01, 1:30, 1:30.5, 0x10, 12e]", "a.yaml")
    assert [1e-5, 1.5e9, 1e3, "2024-01-01", "1:30", "1:30.5", 16, "12e"] == document.data


def test_keys_are_the_text_that_was_written() -> None:
    assert {"on": True, "1": "x"} == parse_yaml("on: yes\n1: x\n", "a.yaml").data


def test_merged_keys_lose_against_the_mappings_own() -> None:
    document = parse_yaml("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  x: 3\n", "a.yaml")
    assert {"base": {"x": 1, "y": 2}, "use": {"x": 3, "y": 2}} == document.data


@pytest.mark.parametrize(
    ("line", "complaint", "text"),
    [
        (3, "b.x: this key was already given on line 2", "b:\n  x: 1\n  x: 2\n"),
        (2, "indent with spaces, not tabs", "a:\n\tb: 1\n"),
        (1, "not allowed", "a: !!python/object/apply:os.system ['true']\n"),
        (1, "not allowed", "!Custom {a: 1}\n"),
        (1, "not allowed", "a: !!binary aGk=\n"),
        (2, "not valid YAML", "a: {b: 1\nc: 2\n"),
        (2, "single document", "a: 1\n---\nb: 2\n"),
        (1, "text key", "[a, b]: 1\n"),
        (1, "cannot read 'x' as int", "a: !!int x\n"),
        (1, "cannot read", "a: " + "9" * 5000 + "\n"),
        (2, "not valid YAML", "a: 1\nb: \x07\n"),
        (1, "levels deep", "a: &a [*a]\n"),
        (1, "mapping after <<", "a: {<<: 3}\n"),
        (1, "cannot read '0xfff", f"a: 0x{'f' * 4000}\n"),
        (None, "nested too deeply", "a: &a {<<: *a}\n"),
        (None, "the file is empty", "# nothing\n"),
    ],
)
def test_a_file_that_is_not_plain_data_says_where(line: int | None, complaint: str, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_yaml(text, "a.yaml")
    assert line == caught.value.line
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("a.yaml:1: " if line == 1 else "a.yaml")


def test_aliases_cannot_multiply_without_bound() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(SpecError, match="more than 100,000 values"):
        parse_yaml("\n".join(lines), "bomb.yaml")


def test_nesting_without_end_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(SpecError):
        parse_yaml("[" * 100_000, "deep.yaml")


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(SpecError, match="no such file"):
        load_yaml(tmp_path / "absent.yaml")
    with pytest.raises(SpecError, match="found a directory"):
        load_yaml(tmp_path)
    with pytest.raises(SpecError, match=r"latin\.yaml:2: not UTF-8"):
        load_yaml(tmp_path / "latin.yaml")
    with pytest.raises(SpecError, match="larger than"):
        load_yaml(tmp_path / "large.yaml")


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert {"a": 1} == load_yaml(tmp_path / "bom.yaml").data


def test_broken_json_says_where(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{\n  "a": 1,\n}')
    with pytest.raises(SpecError, match=r"config\.json:3: not valid JSON"):
        load_json(tmp_path / "config.json")


def test_the_caller_chooses_which_error_a_bad_file_is() -> None:
    with pytest.raises(PlanFileError):
        parse_yaml("a: [", "plan.yaml", error_type=PlanFileError)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


class Dumper(yaml.SafeDumper):
    """Quotes text such as "0E0", which PyYAML alone takes for text and we for a number."""


Dumper.add_implicit_resolver(*FLOAT_RESOLVER)


@given(json_values)
@example("0E0")
def test_what_yaml_writes_is_read_back_unchanged(value: object) -> None:
    assert value == parse_yaml(yaml.dump(value, Dumper=Dumper, allow_unicode=False), "a.yaml").data


@given(st.text(alphabet="ab:-[]{}&*!<>|'\"\n\t #%@`,?1.~", max_size=40))
def test_any_text_is_data_or_a_located_error(text: str) -> None:
    try:
        parse_yaml(text, "a.yaml")
    except SpecError as error:
        assert error.path == "a.yaml"


def test_nothing_of_what_was_read_stays() -> None:
    def nodes() -> int:
        gc.collect()
        return sum(issubclass(type(one), yaml.Node) for one in gc.get_objects())  # isinstance would ask them, too

    before = nodes()
    for number in range(10):
        parse_yaml(f"a: {number}\nb: [x, 1.5]\n", "f")
    assert nodes() <= before
