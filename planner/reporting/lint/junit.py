"""A test report in the form of JUnit, which most CI systems show: a suite per file, a failed case per finding.

There is no standard: this is what Jenkins, GitLab and GitHub actions read in common, https://github.com/testmoapp/junitxml.
"""

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from planner.reporting.lint.regions import one_line, region

if TYPE_CHECKING:
    from planner.diagnostics import Finding
    from planner.errors import ConfigError
    from planner.linting.run import LintRun

Element = ElementTree.Element


def text(run: "LintRun") -> str:
    """The XML document. A file without findings is a suite with one case, which passes."""
    by_path: dict[str, list[Finding]] = {path: [] for path in run.checked}
    for finding in run.findings:
        by_path.setdefault(finding.report.place.document.path, []).append(finding)
    suites = [_suite(path, [_failure(found) for found in findings]) for path, findings in by_path.items()]
    suites += [_suite(error.path, [_error(error)]) for error in run.unreadable]
    root = ElementTree.Element("testsuites", {"name": "planner lint", **_totals(suites)})
    root.extend(suites)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(path: str, cases: list[Element]) -> Element:
    cases = cases or [ElementTree.Element("testcase", name="no findings", classname=_clean(path), file=_clean(path))]
    counts = {kind: sum(case.find(singular) is not None for case in cases) for kind, singular in _KINDS.items()}
    numbers = {"tests": len(cases), **counts}
    suite = ElementTree.Element("testsuite", {"name": _clean(path), **{key: str(numbers[key]) for key in numbers}})
    suite.extend(cases)
    return suite


_KINDS = {"failures": "failure", "errors": "error"}


def _totals(suites: list[Element]) -> dict[str, str]:
    return {kind: str(sum(int(suite.attrib[kind]) for suite in suites)) for kind in ("tests", *_KINDS)}


def _failure(finding: "Finding") -> Element:
    rule, report = finding.rule, finding.report
    at = region(report.place)
    name = f"{rule.code} {rule.name} at {at.line}:{at.column}"
    lines = [f"{at.path}:{at.line}:{at.column}: {report.message}", *([f"help: {report.help}"] if report.help else [])]
    case = ElementTree.Element(
        "testcase", name=name, classname=_clean(at.path), file=_clean(at.path), line=str(at.line)
    )
    failure = ElementTree.SubElement(case, "failure", type=rule.severity, message=_clean(report.message))
    failure.text = "\n".join(map(_clean, lines))
    return case


def _error(error: "ConfigError") -> Element:
    path = _clean(error.path)
    case = ElementTree.Element("testcase", name="can be read", classname=path, file=path)
    ElementTree.SubElement(case, "error", type="unreadable", message=_clean(error.message)).text = _clean(str(error))
    return case


def _clean(text: str) -> str:
    """The text without the characters that XML 1.0 has no way to write."""
    return one_line(text).replace("\ufffe", "").replace("\uffff", "")
