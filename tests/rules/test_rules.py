"""Every rule against its own examples, in tests/rules/data/<name>/.

Files named bad* must trigger the rule and nothing else of what is on by default; what is reported, and where, stands
in <file>.expected. Files named near* nearly trigger it, good* do it right: on both the rule is silent. Other files
are there to be referred to. A comment "# target-version: vllm=0.27" checks the file against that release. Set
UPDATE_EXPECTED=1 to write the .expected files anew, and read them before committing.
"""

import os
import re
from pathlib import Path

import pytest

from planner.configs.dialect import Version, parse_version
from planner.device import load_device
from planner.diagnostics import Finding, Rule
from planner.linting.engine import Options, lint_text
from planner.rules import RULES, RuleEntry, load_rule

DATA = Path(__file__).parent / "data"
DEVICE = "h100-80gb"  # for rules that need one
ROOT = Path(__file__).parents[2]


def examples(kind: str) -> list[Path]:
    return sorted(path for path in DATA.glob(f"*/{kind}*") if path.suffix != ".expected")


def findings(path: Path) -> tuple[Finding, ...]:
    name = path.parent.name.replace("_", "-")
    own = load_rule(next(entry for entry in RULES if entry.name == name))
    device = load_device(DEVICE) if own.needs_device else None
    options = Options(
        is_selected=lambda rule: not rule.opt_in or rule.name == name,
        device=device,
        target_versions=target_versions(path.read_text()),
    )
    found = lint_text(path.read_text(), str(path), options)
    assert found is not None, f"{path} is of no known dialect"
    return found


def target_versions(text: str) -> dict[str, Version]:
    return {name: parse_version(version) for name, version in re.findall(r"# target-version: (\w+)=([\d.]+)", text)}


def rendered(finding: Finding) -> str:
    place, report = finding.report.place, finding.report
    line, column = place.document.position(place.start)
    lines = [f"{line}:{column}: {finding.rule.code} {place.key}: {report.message}"]
    lines += [f"  help: {report.help}"] if report.help else []
    for related in report.related:
        other_line, other_column = related.place.document.position(related.place.start)
        lines.append(f"  {Path(related.place.document.path).name}:{other_line}:{other_column}: {related.message}")
    lines += [f"  {report.fix.safety} fix: {report.fix.title}"] if report.fix else []
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", examples("bad"), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_bad_example_has_its_finding_at_its_place(path: Path) -> None:
    found = findings(path)
    text = "".join(rendered(finding) for finding in found)
    expected = path.with_name(path.name + ".expected")
    if os.environ.get("UPDATE_EXPECTED"):
        expected.write_text(text)
    assert expected.read_text() == text
    assert {path.parent.name.replace("_", "-")} == {finding.rule.name for finding in found}


@pytest.mark.parametrize(
    "path", examples("near") + examples("good"), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_on_a_near_miss_and_a_good_example_the_rule_is_silent(path: Path) -> None:
    assert path.parent.name.replace("_", "-") not in {finding.rule.name for finding in findings(path)}


@pytest.mark.parametrize("entry", RULES, ids=lambda entry: entry.name)
def test_a_rule_is_one_module_with_examples_and_a_source(entry: RuleEntry) -> None:
    rule: Rule = load_rule(entry)
    assert entry == (rule.code, rule.name, " ".join(rule.dialects), rule.opt_in, rule.needs_device)
    for kind in ("bad", "near", "good"):
        assert list((DATA / rule.name.replace("-", "_")).glob(f"{kind}*")), f"{rule.name} has no {kind} example"
    assert rule.sources
    assert rule.summary.endswith(".")


def test_there_is_one_entry_for_each_module_and_no_code_twice() -> None:
    modules = {path.stem.replace("_", "-") for path in (ROOT / "rules").glob("*.py")} - {"--init--"}
    assert modules == {entry.name for entry in RULES}
    assert len(RULES) == len({entry.code for entry in RULES})
