"""Known findings, by file and rule."""

import pytest

from planner.diagnostics import Finding
from planner.linting.baseline import (
    Baseline,
    BaselineError,
    baseline_of,
    format_baseline,
    parse_baseline,
    unknown_findings,
)
from planner.linting.engine import Options, lint_text

HEAD = "base_model: m\ndatasets:\n  - path: d\n"


def findings(path: str, *lines: str) -> tuple[Finding, ...]:
    found = lint_text(HEAD + "".join(f"{line}\n" for line in lines), path, Options())
    assert found is not None
    return found


TWO = findings("/r/a/one.yaml", "context_parapllel_size: 2", "foo: 1", "bar: 1")


def test_counts_are_by_file_and_rule_relative_to_the_baseline() -> None:
    assert baseline_of(TWO, "/r") == Baseline(counts={"a/one.yaml": {"KEY001": 1, "KEY002": 2}})


def test_what_is_known_is_not_reported() -> None:
    assert unknown_findings(TWO, baseline_of(TWO, "/r"), "/r") == ()


def test_fewer_findings_than_are_known_are_known() -> None:
    fewer = findings("/r/a/one.yaml", "foo: 1")
    assert unknown_findings(fewer, baseline_of(TWO, "/r"), "/r") == ()


def test_where_there_are_more_than_are_known_all_of_that_rule_are_reported() -> None:
    more = findings("/r/a/one.yaml", "context_parapllel_size: 2", "foo: 1", "bar: 1", "baz: 1")
    new = unknown_findings(more, baseline_of(TWO, "/r"), "/r")
    assert ["KEY002"] * 3 == [finding.rule.code for finding in new]


def test_another_file_is_not_known() -> None:
    other = findings("/r/two.yaml", "foo: 1")
    assert unknown_findings(other, baseline_of(TWO, "/r"), "/r") == other


def test_a_baseline_comes_back_from_its_file() -> None:
    baseline = baseline_of(TWO, "/r")
    assert parse_baseline(format_baseline(baseline), "known.json") == baseline


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"form": 2, "counts": {}}', '{"form": 1, "counts": {"a": {"b": "c"}}}', "[" * 100_000]
)
def test_what_is_no_baseline_is_one_line(text: str) -> None:
    with pytest.raises(BaselineError) as caught:
        parse_baseline(text, "known.json")
    assert "known.json" in str(caught.value)
    assert "\n" not in str(caught.value)
