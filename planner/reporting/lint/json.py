"""Findings as one JSON object; docs/lint.md and schemas/findings.schema.json describe it."""

import json
from typing import TYPE_CHECKING, Any

from planner.records import as_dict
from planner.reporting.lint.regions import region

if TYPE_CHECKING:
    from planner.diagnostics import Edit, Finding, Fix, Place, Related
    from planner.linting.run import LintRun

FORM = 1  # of the object; another number is another form


def text(run: "LintRun") -> str:
    """The findings, and what could not be read, as JSON text."""
    return json.dumps(document(run), indent=2) + "\n"


def document(run: "LintRun") -> dict[str, Any]:
    """The findings, and what could not be read, as plain data."""
    return {
        "form": FORM,
        "checked": list(run.checked),
        "findings": [_finding(finding) for finding in run.findings],
        "unreadable": [{"path": error.path, "line": error.line, "message": error.message} for error in run.unreadable],
    }


def _finding(finding: "Finding") -> dict[str, Any]:
    rule, report = finding.rule, finding.report
    return {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity,
        "message": report.message,
        "help": report.help or None,
        **_place(report.place),
        "related": [_related(related) for related in report.related],
        "fix": _fix(report.fix) if report.fix else None,
    }


def _place(place: "Place") -> dict[str, Any]:
    return {**as_dict(region(place)), "key": place.key or None}


def _related(related: "Related") -> dict[str, Any]:
    return {"message": related.message, **_place(related.place)}


def _fix(fix: "Fix") -> dict[str, Any]:
    return {"title": fix.title, "safety": fix.safety, "edits": [_edit(edit) for edit in fix.edits]}


def _edit(edit: "Edit") -> dict[str, Any]:
    return {**as_dict(region(edit)), "text": edit.text}
