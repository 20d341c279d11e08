"""Every output format of planner lint: what it prints, byte for byte, and against the format's own description.

sarif-2.1.0.schema.json is the schema that OASIS publishes, in the copy of SchemaStore (Apache 2.0), from the package
schemastore 0.2.3; unchanged but for its line ends.
"""

import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from planner.records import replace
from planner.reporting.lint import FORMATS, render, statistics, summary
from planner.schemas import load_schema
from tests.reporting.lint import runs

HERE = Path(__file__).parent
SUFFIX = {"json": "json", "sarif": "sarif", "gitlab": "json", "junit": "xml"}


def snapshot(name: str, text: str) -> str:
    """What stands in the file of that name; set UPDATE_EXPECTED=1 to write it anew, and read it before committing."""
    path = HERE / "expected" / name
    if os.environ.get("UPDATE_EXPECTED"):
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_prints_what_it_is_known_to_print(name: str) -> None:
    text = render(runs.run(), name)
    if name == "sarif":  # the texts of rules are theirs
        log = json.loads(text)
        for rule in log["runs"][0]["tool"]["driver"]["rules"]:
            assert {"text", "markdown"} == set(rule["help"])
            rule["help"] = "..."
        text = json.dumps(log, indent=2, ensure_ascii=False) + "\n"
    assert snapshot(f"{name}.{SUFFIX.get(name, 'txt')}", text) == text


def test_colours_change_nothing_but_colours() -> None:
    coloured = render(runs.run(), "full", is_coloured=True)
    assert render(runs.run(), "full") == re.sub(r"\033\[[0-9;]*m", "", coloured)
    assert "\033[31;1merror[OF101]\033[0m" in coloured


@pytest.mark.parametrize("name", FORMATS)
def test_a_run_without_findings_is_well_formed_too(name: str) -> None:
    text = render(runs.empty_run(), name)
    if name in ("json", "sarif", "gitlab"):
        json.loads(text)
    elif name == "junit":
        assert "0" == ElementTree.fromstring(text).attrib["tests"]
    else:
        assert "" == text


@pytest.mark.parametrize("run", [runs.run(), runs.empty_run()], ids=["findings", "none"])
def test_sarif_is_valid_by_the_published_schema(run: Any) -> None:
    schema = json.loads((HERE / "sarif-2.1.0.schema.json").read_text(encoding="utf-8"))
    Draft7Validator.check_schema(schema)
    assert [] == [error.message for error in Draft7Validator(schema).iter_errors(json.loads(render(run, "sarif")))]


def test_the_sarif_schema_of_these_tests_refuses_what_is_wrong() -> None:
    schema = json.loads((HERE / "sarif-2.1.0.schema.json").read_text(encoding="utf-8"))
    log = json.loads(render(runs.run(), "sarif"))
    log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] = 0
    assert not Draft7Validator(schema).is_valid(log)


def test_sarif_counts_columns_in_utf16_code_units() -> None:
    result = json.loads(render(runs.run(), "sarif"))["runs"][0]["results"][3]
    region = result["locations"][0]["physicalLocation"]["region"]
    line = runs.SHARDING.rstrip("\n").encode("utf-16-le")
    meant = line[2 * (region["startColumn"] - 1) : 2 * (region["endColumn"] - 1)].decode("utf-16-le")
    assert '"none"' == meant
    assert region == result["fixes"][0]["artifactChanges"][0]["replacements"][0]["deletedRegion"]


def test_sarif_names_files_from_the_root_of_the_repository_as_addresses() -> None:
    locations = [
        result["locations"][0]["physicalLocation"]["artifactLocation"]
        for result in json.loads(render(runs.run(), "sarif"))["runs"][0]["results"]
    ]
    assert {"uri": "configs/train%201.yaml", "uriBaseId": "%SRCROOT%"} == locations[0]


def test_the_json_object_is_as_its_schema_says() -> None:
    schema = load_schema("findings")
    Draft202012Validator.check_schema(schema)
    for run in (runs.run(), runs.empty_run()):
        Draft202012Validator(schema).validate(json.loads(render(run, "json")))


def test_gitlab_has_the_fields_that_it_documents() -> None:
    # https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format
    found = json.loads(render(runs.run(), "gitlab"))
    for item in found:
        assert {"description", "check_name", "fingerprint", "severity", "location"} == item.keys()
        assert item["severity"] in {"info", "minor", "major", "critical", "blocker"}
        assert not item["location"]["path"].startswith(("./", "/"))
        assert item["location"]["lines"]["begin"] >= 1
    assert len(found) == len({item["fingerprint"] for item in found})


def test_a_fingerprint_stays_when_lines_move_and_the_message_changes() -> None:
    from planner.reporting.lint.fingerprints import fingerprints

    before = runs.finding_with_a_fix()
    moved = runs.document("configs/train 1.yaml", "a: 1\n\n" + runs.TRAIN)
    after = replace(
        before,
        report=replace(
            before.report, place=runs.place(moved, "sequence_lenght", "sequence_lenght"), message="another figure"
        ),
    )
    marks = [
        list(fingerprints(replace(runs.empty_run(), findings=findings)))
        for findings in ((before,), (after,), (before, before))
    ]
    assert marks[0] == marks[1]
    assert marks[0][0] == marks[2][0] != marks[2][1]


def test_junit_counts_its_cases_and_every_case_of_a_suite_has_its_own_name() -> None:
    root = ElementTree.fromstring(render(runs.run(), "junit").encode())
    assert "testsuites" == root.tag
    assert {"name": "planner lint", "tests": "6", "failures": "4", "errors": "1"} == root.attrib
    for suite in root:
        names = [case.attrib["name"] for case in suite]
        assert suite.attrib["tests"] == str(len(names)) == str(len(set(names)))


def test_github_commands_are_one_line_each_with_its_escapes() -> None:
    lines = render(runs.run(), "github").splitlines()
    assert 5 == len(lines)
    assert lines[2] == (
        "::warning file=configs/train 1.yaml,line=5,endLine=5,col=1,endColumn=16,title=KEY001 misspelt-key::"
        "there is no 'sequence_lenght': 100%25 dropped, silently"
    )
    assert "needs checkpointing, which is off%0Aset checkpointing" in lines[1]


@pytest.mark.parametrize("name", FORMATS)
def test_no_format_lets_a_file_control_the_terminal_or_break_a_line(name: str) -> None:
    hostile = 'a: "\x1b[31m\u202e\x07::error::x ]]> </failure> \u2028\x85"\n'
    source = runs.document("\x1b[2J\n%0A::error file=x,line=1::y.yaml", hostile)
    report = replace(
        runs.finding_with_a_fix().report,
        place=runs.place(source, "a"),
        message=hostile,
        help=hostile,
        fix=None,
    )
    run = replace(runs.empty_run(), findings=(replace(runs.finding_with_a_fix(), report=report),))
    text = render(run, name)
    assert not {"\x1b", "\u202e", "\x07", "\x85", "\u2028"} & set(text)
    if name == "github":
        assert 1 == len(text.splitlines())
    if name == "junit":
        assert 1 == len(ElementTree.fromstring(text).findall("testsuite/testcase/failure"))
    if name in ("json", "sarif", "gitlab"):
        json.loads(text)


@pytest.mark.parametrize("as_json", [False, True])
def test_statistics_count_findings_by_rule(as_json: bool) -> None:
    text = statistics.text(runs.run(), as_json=as_json)
    if as_json:
        counts = {row["code"]: (row["count"], row["fixable"]) for row in json.loads(text)["statistics"]}
        assert {"KEY007": (2, 1), "KEY001": (1, 1), "OF101": (1, 0)} == counts
    else:
        assert ["code", "KEY007", "KEY001", "OF101"] == [line.split()[0] for line in text.splitlines()]


def test_the_summary_counts_by_severity_and_says_what_can_be_fixed() -> None:
    assert (
        "4 findings (1 error, 1 no-op, 2 waste) in 2 of 2 training configs; 1 can be fixed with --fix, "
        "1 more with --unsafe-fixes"
    ) == summary.line(runs.run())
    assert "1 finding fixed; no findings left in 1 training config" == summary.line(runs.fixed_run())
    assert "no training configs found" == summary.line(runs.empty_run())
