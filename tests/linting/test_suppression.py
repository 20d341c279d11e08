"""Comments that silence findings, on axolotl configs with a misspelt key (KEY001)."""

import pytest

from planner.diagnostics import Finding
from planner.linting.engine import Options, lint_text
from planner.linting.fixing import fix_text

HEAD = "base_model: m\ndatasets:\n  - path: d\n"


def lint(text: str) -> list[tuple[str, int]]:
    """Code and line of each finding."""
    findings = lint_text(HEAD + text, "config.yaml", Options())
    assert findings is not None
    return [(finding.rule.code, line_of(finding) - 3) for finding in findings]


def line_of(finding: Finding) -> int:
    place = finding.report.place
    return place.document.position(place.start)[0]


def test_without_a_comment_there_is_a_finding() -> None:
    assert [("KEY001", 1)] == lint("context_parapllel_size: 2\n")


@pytest.mark.parametrize("word", ["KEY001", "KEY", "misspelt-key", "ALL", "EST001, KEY001", " KEY001 "])
def test_a_comment_on_the_line_silences_by_code_prefix_name_or_all(word: str) -> None:
    assert [] == lint(f"context_parapllel_size: 2  # planner: ignore[{word}] on purpose\n")


def test_a_comment_that_names_another_rule_silences_nothing_and_is_unused_when_that_rule_ran() -> None:
    assert [("KEY001", 1), ("SUP001", 1)] == lint("context_parapllel_size: 2  # planner: ignore[KEY002]\n")


def test_a_comment_alone_above_a_key_covers_the_whole_block_and_no_more() -> None:
    text = "# planner: ignore[KEY001]\nfsdp_config:\n  aaaaa: 1\ncontext_parapllel_size: 2\n"
    assert [("SUP001", 1), ("KEY002", 3), ("KEY001", 4)] == lint(text)


def test_other_comments_and_empty_lines_may_stand_between_it_and_the_key() -> None:
    assert [] == lint("# planner: ignore[KEY001]\n# more\n\ncontext_parapllel_size: 2\n")


def test_a_comment_at_the_end_of_the_file_covers_nothing() -> None:
    assert [("KEY001", 1), ("SUP001", 2)] == lint("context_parapllel_size: 2\n# planner: ignore[KEY001]\n")


def test_ignore_file_covers_the_file_from_anywhere() -> None:
    assert [] == lint("context_parapllel_size: 2\n# planner: ignore-file[KEY001] generated\n")


@pytest.mark.parametrize("comment", ["# planner: ignore", "# planner: ignore[]", "# planner: ignroe[KEY001]"])
def test_a_comment_that_cannot_be_read_silences_nothing_and_is_reported(comment: str) -> None:
    assert [("KEY001", 1), ("SUP002", 1)] == lint(f"context_parapllel_size: 2  {comment}\n")


def test_a_hash_within_quotes_is_no_comment() -> None:
    assert [("KEY001", 1)] == lint('context_parapllel_size: "2 # planner: ignore[KEY001]"\n')


def test_a_block_is_silenced_to_its_last_line() -> None:
    config = "# planner: ignore[KEY002]\nanchors: &x\n  a:\n    - b\nothers: 1\n"
    findings = lint_text(config + HEAD, "config.yaml", Options())
    assert findings is not None
    assert [("KEY002", 5)] == [(finding.rule.code, line_of(finding)) for finding in findings]


def fixed(text: str) -> str:
    def run(changed: str) -> tuple[Finding, ...]:
        found = lint_text(changed, "config.yaml", Options(is_selected=lambda rule: rule.code in ("KEY001", "SUP001")))
        assert found is not None
        return tuple(finding for finding in found if finding.rule.code == "SUP001")

    return fix_text(HEAD + text, run, unsafe=False).text.removeprefix(HEAD)


@pytest.mark.parametrize(
    ("after", "before"),
    [
        ("bf16: true\n", "bf16: true  # planner: ignore[KEY001] because\n"),
        ("bf16: true\n", "# planner: ignore[KEY001] because\nbf16: true\n"),
        ("bf16: true", "bf16: true\t# planner: ignore[KEY001]"),
        (
            "context_parapllel_size: 2  # planner: ignore[KEY001] because\n",
            "context_parapllel_size: 2  # planner: ignore[KEY001, SUP001] because\n",
        ),
    ],
)
def test_the_fix_takes_away_what_is_unused_and_no_more(after: str, before: str) -> None:
    assert after == fixed(before)
