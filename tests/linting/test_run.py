"""A run over files: what is checked, what is passed over, and what configuration files change."""

import os
from collections import Counter
from pathlib import Path

import pytest

import planner
from planner.diagnostics import FixSafety
from planner.linting.run import Request, lint_content, lint_paths
from planner.linting.selection import Selection, SelectionError

HEAD = "base_model: m\ndatasets:\n  - path: d\nmicro_batch_size: 1\n"
TYPO = "gradient_accumulation_stepss: 2\n"
OFFLOAD = "activation_offloading: true\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, content: str | bytes) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def codes(*paths: str, request: Request | None = None) -> list[tuple[str, str]]:
    run = lint_paths(paths or (".",), request or Request())
    return [(finding.report.place.document.path, finding.rule.code) for finding in run.findings]


def test_findings_come_file_by_file_and_in_the_order_of_each_file() -> None:
    write("b.yaml", HEAD + OFFLOAD + TYPO)
    write("a.yaml", HEAD + TYPO)
    assert [("a.yaml", "KEY001"), ("b.yaml", "OF101"), ("b.yaml", "KEY001")] == codes()


def test_what_is_no_training_config_is_passed_over_in_a_directory() -> None:
    write("compose.yaml", "services: {db: {image: postgres}}\n")
    write("list.yaml", "- 1\n")
    write("empty.yaml", "")
    write("broken.yaml", "a: [1\n")
    write("binary.yaml", b"\xff\xfe\x00")
    write("template.yaml", "base_model: {{ model }}\n" + HEAD + "x: {% if y %}\n")
    write("large.json", '{"a": "' + "x" * 5_000_000 + '"}')
    run = lint_paths(["."], Request())
    assert ((), (), (), ()) == (run.findings, run.checked, run.unknown, run.unreadable)


def test_a_training_config_with_a_slip_in_its_syntax_is_said_with_its_line() -> None:
    write("train.yaml", HEAD + "lora_target_modules: [a, b\nadapter: lora\n")
    errors = [str(error) for error in lint_paths(["."], Request()).unreadable]
    assert 1 == len(errors)
    assert errors[0].startswith("train.yaml:6: not valid YAML")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.yaml", None, "missing.yaml: no such file"),
        ("broken.yaml", b"a: [1\nb: 2\n", "broken.yaml:2: not valid YAML"),
        ("binary.yaml", b"a: 1\nb: \xff\n", "binary.yaml:2: not UTF-8"),
        ("large.yaml", b"a" * 5_000_000, "large.yaml: larger than"),
        ("tag.yaml", b"a: !!python/object/apply:os.system [x]\n", "tag.yaml:1: the tag"),
        ("nul.yaml", b"a: \0\n", "nul.yaml:1: the character U+0000"),
    ],
)
def test_a_file_that_is_named_and_cannot_be_read_is_said_in_one_line(
    name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        write(name, content)
    errors = [str(error) for error in lint_paths([name], Request()).unreadable]
    assert 1 == len(errors)
    assert errors[0].startswith(message)
    assert "\n" not in errors[0]


def test_a_pipe_is_refused_before_anybody_waits_for_it() -> None:
    os.mkfifo("pipe.yaml")
    errors = [str(error) for error in lint_paths(["pipe.yaml", "."], Request()).unreadable]
    assert ["pipe.yaml: expected a file, found a pipe or a device; - reads standard input"] == errors


def test_names_are_compared_only_while_there_are_few_that_nobody_knows() -> None:
    write("a.yaml", HEAD + "".join(f"unheard_of_{number}: 1\n" for number in range(5_000)) + TYPO)
    assert {"KEY002": 5_001} == Counter(code for _, code in codes())
    write("a.yaml", HEAD + "unheard_of: 1\n" + TYPO)
    assert {"KEY001": 1, "KEY002": 1} == Counter(code for _, code in codes())


def test_a_file_that_is_named_and_is_no_training_config_is_said_unless_asked_to_skip() -> None:
    write("compose.yaml", "services: {}\n")
    write("README.md", "# x\n")
    assert ("compose.yaml", "README.md") == lint_paths(["compose.yaml", "README.md"], Request()).unknown
    skipped = lint_paths(["compose.yaml", "README.md"], Request(skip_unknown=True))
    assert ((), ()) == (skipped.unknown, skipped.unreadable)


def test_the_nearest_configuration_selects_ignores_and_excludes() -> None:
    write("pyproject.toml", "[tool.planner.lint]\nignore = ['KEY001']\nexclude = ['old']\n")
    write("a.yaml", HEAD + OFFLOAD + TYPO)
    write("old/a.yaml", HEAD + TYPO + OFFLOAD)
    write("new/.planner.toml", "[lint]\nselect = ['KEY']\n")
    write("new/a.yaml", HEAD + OFFLOAD + TYPO)
    assert [("a.yaml", "OF101"), ("new/a.yaml", "KEY001")] == codes()
    assert [("old/a.yaml", "OF101")] == codes("old/a.yaml")  # it is named
    assert [] == codes("old/a.yaml", request=Request(skip_unknown=True))
    isolated = codes(request=Request(is_isolated=True))
    assert 6 == len(isolated)


def test_what_is_asked_goes_before_what_configuration_files_say() -> None:
    write("pyproject.toml", "[tool.planner.lint]\nignore = ['KEY001', 'OF']\n")
    write("a.yaml", HEAD + OFFLOAD + TYPO)
    assert [] == codes()
    assert [("a.yaml", "KEY001")] == codes(request=Request(selection=Selection(select=("KEY001",))))
    both = Selection(select=("KEY", "OF"), ignore=("KEY001",))
    assert [("a.yaml", "OF101")] == codes(request=Request(selection=both))


def test_fixing_says_what_the_file_becomes_and_what_is_left() -> None:
    write("a.yaml", "\ufeff" + (HEAD + TYPO + OFFLOAD).replace("\n", "\r\n"))
    run = lint_paths(["a.yaml"], Request(fix=FixSafety.SAFE))
    (change,) = run.changes
    assert ["OF101"] == [finding.rule.code for finding in run.findings]
    assert ["KEY001"] == [finding.rule.code for finding in change.fixed]
    expected = "\ufeff" + (HEAD + TYPO.replace("stepss", "steps") + OFFLOAD).replace("\n", "\r\n")
    assert expected == change.after
    assert Path("a.yaml").read_bytes().decode() == change.before  # nothing is written here


def test_two_keys_that_may_mean_a_third_one_do_not_both_become_it() -> None:
    write("a.yaml", HEAD + "wandb_run: a\nwandb_runid: b\n")
    (change,) = lint_paths(["a.yaml"], Request(fix=FixSafety.UNSAFE)).changes
    assert HEAD + "wandb_run_id: a\nwandb_runid: b\n" == change.after


def test_content_that_is_in_no_file_is_checked_as_its_name_says() -> None:
    run = lint_content((HEAD + TYPO).encode(), "dir/train.yaml", Request())
    assert ["KEY001"] == [finding.rule.code for finding in run.findings]
    assert ("dir/train.yaml",) == run.checked
    assert ("train.txt",) == lint_content(b"x", "train.txt", Request()).unknown


def test_from_python_a_call_lints_paths() -> None:
    write("a.yaml", HEAD + OFFLOAD + TYPO)
    run = planner.lint([Path("a.yaml")], select=["misspelt-key"])
    assert ["KEY001"] == [finding.rule.code for finding in run.findings]
    assert os.getcwd() == run.directory
    with pytest.raises(SelectionError, match="'XYZ' names no rule"):
        planner.lint(["a.yaml"], ignore=["XYZ"])
    with pytest.raises(ValueError, match="one of the dialects"):
        planner.lint(["a.yaml"], target_versions={"nobody": "1"})
