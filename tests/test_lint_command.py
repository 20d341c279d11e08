"""`planner lint`, `planner rules` and `planner rule` as a user meets them."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft7Validator

from planner.cli import main
from planner.rules import RULES

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-c", "from planner.cli import main; main()"]
HEAD = "base_model: m\ndatasets:\n  - path: d\nmicro_batch_size: 1\n"
TYPO = "gradient_accumulation_stepss: 2\n"
OFFLOAD = "activation_offloading: true\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return tmp_path


def planner(*arguments: str, text: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=text)


def write(name: str, content: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode())


def test_findings_are_on_stdout_their_summary_on_stderr_and_the_status_is_one() -> None:
    write("train.yaml", HEAD + TYPO + OFFLOAD)
    result = planner("lint")
    assert 1 == result.exit_code
    assert "no-op[KEY001]" in result.stdout
    assert " --> train.yaml:5:1" in result.stdout
    assert "\033" not in result.stdout
    assert (
        "planner: 2 findings (1 error, 1 no-op) in 1 of 1 training config; 1 can be fixed with --fix\n" == result.stderr
    )
    assert "" == planner("lint", "--quiet").stderr


def test_without_findings_nothing_is_on_stdout_and_the_status_is_zero() -> None:
    write("train.yaml", HEAD)
    result = planner("lint")
    assert (0, "", "planner: no findings in 1 training config\n") == (result.exit_code, result.stdout, result.stderr)
    Path("train.yaml").unlink()
    result = planner("lint")
    assert (0, "", "planner: no training configs found\n") == (result.exit_code, result.stdout, result.stderr)


def test_what_cannot_be_read_makes_the_status_two_and_the_rest_is_still_checked() -> None:
    write("train.yaml", HEAD + TYPO)
    write("broken.yaml", "a: [\n")
    result = planner("lint", "train.yaml", "broken.yaml", "missing.yaml", "--exit-zero")
    assert 2 == result.exit_code
    assert "KEY001" in result.stdout
    lines = result.stderr.splitlines()
    assert lines[0].startswith("planner: error: broken.yaml:2: not valid YAML")
    assert "planner: error: missing.yaml: no such file" == lines[1]
    assert "Traceback" not in result.stderr


def test_a_named_file_of_no_framework_is_said_in_one_line_unless_that_is_not_wanted() -> None:
    write("compose.yaml", "services: {}\n")
    result = planner("lint", "compose.yaml", "-q")
    assert (0, "") == (result.exit_code, result.stdout)
    assert "planner: compose.yaml: skipped: no training config of a framework that is known\n" == result.stderr
    assert "" == planner("lint", "compose.yaml", "-q", "--skip-unknown").stderr


@pytest.mark.parametrize(
    ("level", "status"), [("error", 0), ("no-op", 1), ("waste", 1)], ids=["error", "no-op", "waste"]
)
def test_the_fail_level_is_the_least_that_makes_the_status_one(level: str, status: int) -> None:
    write("train.yaml", HEAD + TYPO)
    assert status == planner("lint", "--fail-level", level).exit_code
    assert 0 == planner("lint", "--fail-level", level, "--exit-zero").exit_code


def test_rules_are_selected_and_ignored_by_code_prefix_or_name() -> None:
    write("train.yaml", HEAD + TYPO + OFFLOAD)

    def codes(*options: str) -> list[str]:
        found = json.loads(planner("lint", "--output-format", "json", *options).stdout)
        return [finding["code"] for finding in found["findings"]]

    assert ["KEY001", "OF101"] == codes()
    assert ["KEY001"] == codes("--select", "KEY")
    assert ["KEY001"] == codes("--ignore", "OF,SUP")
    assert ["OF101"] == codes("--ignore", "misspelt-key")
    assert ["KEY001", "OF101"] == codes("--select", "KEY001, OF101", "--select", "SUP")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--select", "NOPE"),
        ("--dialect", "nobody"),
        ("--target-version", "axolotl"),
        ("--target-version", "axolotl=new"),
        ("--target-version", "nobody=1"),
        ("--unsafe-fixes",),
        ("--fix", "--diff"),
        ("--stdin-filename", "a.yaml", "train.yaml"),
        ("-", "train.yaml"),
        ("--statistics", "--output-format", "sarif"),
        ("--output-format", "xml"),
        ("--device", "no-such-device"),
        ("--output", "missing/dir/file"),
        ("--baseline", "missing.json"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_said_and_the_status_is_two(arguments: tuple[str, ...]) -> None:
    write("train.yaml", HEAD)
    result = planner("lint", *arguments)
    assert (2, "") == (result.exit_code, result.stdout)
    assert "rror: " in result.stderr
    assert "Traceback" not in result.stderr


def test_the_target_version_decides_which_keys_are_read() -> None:
    write("train.yaml", HEAD + "sequence_parallel_degree: 2\n")
    options = ("lint", "--select", "KEY006", "--output-format", "concise")
    assert "KEY006" in planner(*options).stdout
    assert "KEY006" not in planner(*options, "--target-version", "axolotl=0.9").stdout


def test_fixing_changes_the_file_and_nothing_else_of_it() -> None:
    text = "# ours\r\n" + (HEAD + TYPO + OFFLOAD).replace("\n", "\r\n").replace("stepss: 2", "stepss:   2 # two")
    write("train.yaml", text)
    result = planner("lint", "--fix")
    assert 1 == result.exit_code
    assert "OF101" in result.stdout
    assert "KEY001" not in result.stdout
    assert result.stderr.startswith("planner: 1 finding fixed; 1 finding (1 error)")
    assert text.replace("stepss", "steps").encode() == Path("train.yaml").read_bytes()
    again = planner("lint", "--fix")
    assert again.stderr.startswith("planner: 1 finding (1 error)")


def test_a_diff_is_what_fixing_would_do_and_changes_nothing() -> None:
    write("train.yaml", HEAD + TYPO)
    result = planner("lint", "--diff")
    assert 1 == result.exit_code
    assert ["-" + TYPO, "+" + TYPO.replace("stepss", "steps")] == result.stdout.splitlines(keepends=True)[-2:]
    assert HEAD + TYPO == Path("train.yaml").read_text()
    write("train.yaml", HEAD + OFFLOAD)
    result = planner("lint", "--diff")
    assert (0, "") == (result.exit_code, result.stdout)


def test_stdin_is_checked_under_the_name_it_is_given() -> None:
    for arguments in (("-",), ("--stdin-filename", "sub/train.yaml"), ("-", "--stdin-filename", "sub/train.yaml")):
        result = planner("lint", *arguments, "--output-format", "concise", text=HEAD + TYPO)
        assert 1 == result.exit_code
        assert result.stdout.startswith(f"{arguments[-1] if len(arguments) > 1 else 'stdin.yaml'}:5:1: KEY001")


def test_fixed_stdin_is_on_stdout_and_its_findings_on_stderr() -> None:
    result = planner("lint", "-", "--fix", text=HEAD + TYPO + OFFLOAD)
    assert HEAD + TYPO.replace("stepss", "steps") + OFFLOAD == result.stdout
    assert "OF101" in result.stderr
    untouched = planner("lint", "-", "--fix", text="services: {}\n")
    assert (0, "services: {}\n") == (untouched.exit_code, untouched.stdout)


def test_findings_go_to_a_file_when_one_is_named() -> None:
    write("train.yaml", HEAD + TYPO)
    result = planner("lint", "--output-format", "sarif", "-o", "findings.sarif")
    assert (1, "") == (result.exit_code, result.stdout)
    assert "KEY001" == json.loads(Path("findings.sarif").read_text())["runs"][0]["results"][0]["ruleId"]
    assert result.stderr.startswith("planner: 1 finding")


def test_sarif_of_every_rules_bad_example_is_valid_by_the_published_schema() -> None:
    schema = json.loads((ROOT / "tests/reporting/lint/sarif-2.1.0.schema.json").read_text(encoding="utf-8"))
    options = ("--select", "ALL", "--device", "h100-80gb", "--output-format", "sarif")
    result = planner("lint", *options, str(ROOT / "tests/rules/data"))
    log = json.loads(result.stdout)
    assert [] == [error.message for error in Draft7Validator(schema).iter_errors(log)]
    found = {finding["ruleId"] for finding in log["runs"][0]["results"]}
    # Some rules need a release that a comment in their example states to the tests of rules, and not to the command.
    assert len(found) > 0.9 * len(RULES)


def test_github_gets_one_annotation_for_each_finding_at_its_place() -> None:
    write("a/train.yaml", HEAD + TYPO + OFFLOAD)
    result = planner("lint", "--output-format", "github")
    assert 1 == result.exit_code
    annotations = [line.partition("::")[2].partition("::")[0] for line in result.stdout.splitlines()]
    assert [
        "warning file=a/train.yaml,line=5,endLine=5,col=1,endColumn=29,title=KEY001 misspelt-key",
        "error file=a/train.yaml,line=6,endLine=6,col=24,endColumn=28,"
        "title=OF101 activation-offloading-without-checkpointing",
    ] == annotations


def test_known_findings_are_in_a_baseline_until_there_are_more() -> None:
    write("a/train.yaml", HEAD + TYPO)
    assert 0 == planner("lint", "--write-baseline", "known.json").exit_code
    assert 0 == planner("lint", "--baseline", "known.json").exit_code
    write("pyproject.toml", '[tool.planner.lint]\nbaseline = "known.json"\n')
    assert 0 == planner("lint").exit_code
    assert 1 == planner("lint", "--isolated").exit_code
    write("a/train.yaml", HEAD + TYPO + OFFLOAD)
    result = planner("lint", "--output-format", "concise")
    assert ["OF101"] == [line.split()[1] for line in result.stdout.splitlines()]


def test_what_a_repository_wants_counts_unless_the_command_line_says_otherwise() -> None:
    write("pyproject.toml", '[tool.planner.lint]\nfail-level = "error"\nignore = ["OF101"]\n')
    write("train.yaml", HEAD + TYPO + OFFLOAD)
    assert 0 == planner("lint").exit_code
    assert 1 == planner("lint", "--fail-level", "waste").exit_code
    assert 1 == planner("lint", "--select", "OF101").exit_code
    write("pyproject.toml", "[tool.planner.lint]\nnothing = 1\n")
    result = planner("lint")
    assert 2 == result.exit_code
    assert "pyproject.toml: tool.planner.lint.nothing" in result.stderr


def test_statistics_are_counts_by_rule() -> None:
    write("train.yaml", HEAD + TYPO + OFFLOAD)
    result = planner("lint", "--statistics")
    assert ["code", "KEY001", "OF101"] == [line.split()[0] for line in result.stdout.splitlines()]
    assert 2 == len(json.loads(planner("lint", "--statistics", "--output-format", "json").stdout)["statistics"])


def test_every_rule_is_listed_and_explained_by_code_and_by_name() -> None:
    listed = planner("rules").stdout
    assert all(entry.code in listed and entry.name in listed for entry in RULES)
    by_code, by_name = planner("rule", "of101"), planner("rule", "activation-offloading-without-checkpointing")
    assert (0, by_code.stdout) == (by_name.exit_code, by_name.stdout)
    for part in ("Why", "Example", "Reported", "Instead", "References", "Severity    error"):
        assert f"\n{part}" in by_code.stdout
    assert "OF101" == json.loads(planner("rule", "OF101", "--json").stdout)["code"]
    assert len(RULES) == len(json.loads(planner("rules", "--json").stdout)["rules"])
    assert "OF101" not in planner("rules", "--dialect", "torchtitan").stdout


def test_an_unknown_rule_is_said_with_what_may_be_meant() -> None:
    result = planner("rule", "mispelt-key")
    assert 2 == result.exit_code
    assert "planner: error: 'mispelt-key' names no rule; did you mean 'misspelt-key'?\n" == result.stderr


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "NO_COLOR"])
def test_colours_are_forced_and_forbidden_by_the_usual_variables(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv(variable, "1")
    write("train.yaml", HEAD + TYPO)
    assert (variable == "FORCE_COLOR") == ("\033[" in planner("lint").stdout)
    planner("lint", "-o", "findings.txt")
    assert "\033[" not in Path("findings.txt").read_text()


@pytest.mark.parametrize("arguments", [("-o",), ("--write-baseline",), ("--diff", "-o"), ("--fix", "-o")])
def test_no_findings_are_written_over_a_config_that_was_checked(arguments: tuple[str, ...]) -> None:
    config = "base_model: m\ndatasets:\n  - path: d\ncontext_parapllel_size: 2\n"
    write("train.yaml", config)

    result = planner("lint", ".", *arguments, "train.yaml")

    assert (2, config) == (result.exit_code, Path("train.yaml").read_text())
    assert "train.yaml: is what was read, and would be lost; name another file" in result.stderr


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def test_linting_imports_nothing_that_it_does_not_need() -> None:
    write("train.yaml", HEAD + TYPO)
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom planner.cli import main\n"  # an editable install imports some
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(*sorted({'torch', 'transformers', 'networkx', 'ortools', 'numpy', 'jsonschema', 'dataclasses',"
        " 'pathlib', 'logging', 'tomllib'} & (set(sys.modules) - before)))"
    )
    command = [sys.executable, "-c", code, "lint", "train.yaml", "--isolated", "-q"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "KEY001" in result.stdout
    assert "" == result.stdout.splitlines()[-1]


def test_garbage_is_collected_again_after_a_run_whatever_its_end() -> None:
    assert gc.isenabled()
    write("train.yaml", HEAD)
    planner("lint")
    planner("lint", "--baseline", "missing.json")
    assert gc.isenabled()


def test_names_and_text_beyond_ascii_are_printed_whatever_the_locale_is() -> None:
    name = os.fsdecode(b"caf\xe9-\xc3\xa9.yaml")  # one byte of it is no UTF-8
    write(name, HEAD + TYPO.replace("2", "2  # 模型"))
    for options in (("--output-format", "full"), ("--output-format", "sarif"), ("--diff",)):
        result = run("lint", name, *options, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
        assert 1 == result.returncode, result.stderr
        assert b"Traceback" not in result.stderr
    assert "模型" in run("lint", name, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0").stdout.decode()
