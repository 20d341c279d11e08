"""A report for GitLab's code quality, which shows findings in merge requests.

Source: https://docs.gitlab.com/ci/testing/code_quality/, "Code Quality report format", 18.5.
"""

import json
from typing import TYPE_CHECKING, Any

from planner.diagnostics import Severity
from planner.reporting.lint.fingerprints import fingerprints
from planner.reporting.lint.regions import portable, region

if TYPE_CHECKING:
    from planner.diagnostics import Finding
    from planner.linting.run import LintRun

_SEVERITY = {Severity.ERROR: "critical", Severity.NO_OP: "major", Severity.WASTE: "minor"}


def text(run: "LintRun") -> str:
    """A JSON list with one object for each finding."""
    pairs = zip(run.findings, fingerprints(run), strict=True)
    return json.dumps([_finding(finding, mark, run.directory) for finding, mark in pairs], indent=2) + "\n"


def _finding(finding: "Finding", fingerprint: str, directory: str) -> dict[str, Any]:
    at = region(finding.report.place)
    return {
        "description": f"{finding.rule.code}: {finding.report.message}",
        "check_name": finding.rule.name,
        "fingerprint": fingerprint,
        "severity": _SEVERITY[finding.rule.severity],
        "location": {"path": portable(at.path, directory), "lines": {"begin": at.line, "end": at.end_line}},
    }
