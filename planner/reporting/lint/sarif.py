"""SARIF 2.1.0, which GitHub's code scanning and editors read.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/sarif-v2.1.0-errata01-os-complete.html, and what
GitHub uses of it, "SARIF support for code scanning", https://docs.github.com/en/code-security/code-scanning.
"""

import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from planner import __version__
from planner.diagnostics import Edit, Finding, Fix, Place, Related, Rule, Severity
from planner.reporting.lint.fingerprints import fingerprints
from planner.reporting.lint.regions import line_of, portable, region
from planner.reporting.lint.rule_text import markdown, plain
from planner.rules import load_example

if TYPE_CHECKING:
    from planner.configs.tree import Document
    from planner.errors import ConfigError
    from planner.linting.run import LintRun

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_VERSION = "2.1.0"
_ROOT = "%SRCROOT%"  # what GitHub takes for the root of the repository
_FINGERPRINT = "plannerFinding/v1"
_LEVEL_BY_SEVERITY = {Severity.ERROR: "error", Severity.NO_OP: "warning", Severity.WASTE: "note"}
_PROBLEM_BY_SEVERITY = {Severity.ERROR: "error", Severity.NO_OP: "warning", Severity.WASTE: "recommendation"}

Object = dict[str, Any]


def text(run: "LintRun") -> str:
    """A log with one run as JSON text."""
    return json.dumps(_log(run), indent=2) + "\n"


def _log(run: "LintRun") -> Object:
    rules = {finding.rule.code: finding.rule for finding in run.findings}
    codes = sorted(rules)
    driver = {
        "name": "activation-planner",
        "semanticVersion": __version__,
        "rules": [_rule(rules[code]) for code in codes],
    }
    results = [
        _result(finding, codes.index(finding.rule.code), mark, run.directory)
        for finding, mark in zip(run.findings, fingerprints(run), strict=True)
    ]
    return {
        "$schema": _SCHEMA,
        "version": _VERSION,
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "utf16CodeUnits",
                "invocations": [_invocation(run)],
                "results": results,
            }
        ],
    }


def _rule(rule: Rule) -> Object:
    example = load_example(rule.name)
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.why},
        "help": {"text": plain(rule, example), "markdown": markdown(rule, example)},
        "defaultConfiguration": {"level": _LEVEL_BY_SEVERITY[rule.severity]},
        "properties": {
            "tags": [rule.severity, *rule.dialects],
            "precision": "high",
            "problem.severity": _PROBLEM_BY_SEVERITY[rule.severity],
        },
    }


def _invocation(run: "LintRun") -> Object:
    return {
        "executionSuccessful": not run.unreadable,
        "toolExecutionNotifications": [_notification(error, run.directory) for error in run.unreadable],
    }


def _notification(error: "ConfigError", directory: str) -> Object:
    location: Object = {"artifactLocation": _artifact(error.path, directory)}
    if error.line is not None:
        location["region"] = {"startLine": error.line}
    return {
        "level": "error",
        "message": {"text": error.message},
        "locations": [{"physicalLocation": location}],
    }


def _result(finding: Finding, rule_index: int, fingerprint: str, directory: str) -> Object:
    rule, report = finding.rule, finding.report
    result: Object = {
        "ruleId": rule.code,
        "ruleIndex": rule_index,
        "level": _LEVEL_BY_SEVERITY[rule.severity],
        "message": {"text": f"{report.message}; {report.help}" if report.help else report.message},
        "locations": [_location(report.place, directory)],
        "partialFingerprints": {_FINGERPRINT: fingerprint},
    }
    if report.related:
        result["relatedLocations"] = [
            _related(related, number, directory) for number, related in enumerate(report.related, start=1)
        ]
    if report.fix is not None:
        result["fixes"] = [_fix(report.fix, directory)]
    return result


def _location(place: Place, directory: str) -> Object:
    location: Object = {
        "physicalLocation": {
            "artifactLocation": _artifact(place.document.path, directory),
            "region": _region(place),
        }
    }
    if place.key:
        location["logicalLocations"] = [{"fullyQualifiedName": place.key, "kind": "property"}]
    return location


def _related(related: Related, number: int, directory: str) -> Object:
    return {"id": number, "message": {"text": related.message}, **_location(related.place, directory)}


def _fix(fix: Fix, directory: str) -> Object:
    by_document: dict[Document, list[Edit]] = {}
    for edit in fix.edits:
        by_document.setdefault(edit.document, []).append(edit)
    changes = [
        {
            "artifactLocation": _artifact(document.path, directory),
            "replacements": [_replacement(edit) for edit in edits],
        }
        for document, edits in by_document.items()
    ]
    return {"description": {"text": f"{fix.title} ({fix.safety})"}, "artifactChanges": changes}


def _replacement(edit: Edit) -> Object:
    return {"deletedRegion": _region(edit), "insertedContent": {"text": edit.text}}


def _region(place: Place | Edit) -> Object:
    """Lines and columns from 1; columns count UTF-16 code units, as `columnKind` says."""
    at = region(place)
    document = place.document
    return {
        "startLine": at.line,
        "startColumn": _utf16_column(line_of(document, at.line), at.column),
        "endLine": at.end_line,
        "endColumn": _utf16_column(line_of(document, at.end_line), at.end_column),
    }


def _utf16_column(line: str, column: int) -> int:
    """The column in UTF-16 code units: characters beyond the first 65,536 are two of them."""
    before = line[: column - 1]
    return column + (0 if before.isascii() else sum(ord(character) > 0xFFFF for character in before))


def _artifact(path: str, directory: str) -> Object:
    shown = portable(path, directory)
    if shown.startswith("/") or shown[1:3] == ":/":
        return {"uri": f"file://{'' if shown.startswith('/') else '/'}{_quoted(shown)}"}
    return {"uri": _quoted(shown), "uriBaseId": _ROOT}


def _quoted(path: str) -> str:
    return quote(os.fsencode(path))  # a file's name need not be UTF-8
