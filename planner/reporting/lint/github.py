"""Workflow commands of GitHub Actions, which show findings beside the lines of a pull request.

Source: https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions, "Setting a warning message";
its escapes are those of ``packages/core/src/command.ts`` of actions/toolkit 2.0.
"""

from typing import TYPE_CHECKING

from planner.diagnostics import Severity
from planner.reporting.lint.regions import one_line, portable, region

if TYPE_CHECKING:
    from planner.diagnostics import Finding
    from planner.errors import ConfigError
    from planner.linting.run import LintRun

_COMMAND_BY_SEVERITY = {Severity.ERROR: "error", Severity.NO_OP: "warning", Severity.WASTE: "notice"}


def text(run: "LintRun") -> str:
    """One command a line, for each finding and for each file that cannot be read."""
    lines = [_finding(finding, run.directory) for finding in run.findings]
    lines += [_unreadable(error, run.directory) for error in run.unreadable]
    return "".join(f"{line}\n" for line in lines)


def _finding(finding: "Finding", directory: str) -> str:
    rule, report = finding.rule, finding.report
    at = region(report.place)
    properties: dict[str, str | int] = {
        "file": one_line(portable(at.path, directory)),
        "line": at.line,
        "endLine": at.end_line,
    }
    if at.line == at.end_line:  # GitHub takes columns only within one line
        properties |= {"col": at.column, "endColumn": at.end_column}
    properties["title"] = f"{rule.code} {rule.name}"
    message = "\n".join(one_line(part) for part in (report.message, report.help) if part)
    return _command(_COMMAND_BY_SEVERITY[rule.severity], properties, message)


def _unreadable(error: "ConfigError", directory: str) -> str:
    properties: dict[str, str | int] = {"file": one_line(portable(error.path, directory))}
    if error.line is not None:
        properties["line"] = error.line
    return _command("error", properties, one_line(error.message))


def _command(name: str, properties: dict[str, str | int], message: str) -> str:
    shown = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
    return f"::{name} {shown}::{_data(message)}"


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
