"""One line per finding, as compilers print them: ``path:line:column: CODE [name] message``."""

from typing import TYPE_CHECKING

from planner.reporting.lint.regions import one_line, region

if TYPE_CHECKING:
    from planner.diagnostics import Finding
    from planner.linting.run import LintRun


def text(run: "LintRun") -> str:
    """The findings, one a line."""
    return "".join(_line(finding) for finding in run.findings)


def _line(finding: "Finding") -> str:
    at, rule = region(finding.report.place), finding.rule
    return one_line(f"{at.path}:{at.line}:{at.column}: {rule.code} [{rule.name}] {finding.report.message}") + "\n"
