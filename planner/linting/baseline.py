"""A file of findings that are known, so that an old repository can adopt the linter: counts by file and rule.

Counts, not lines, because lines move with every edit. Where a file has more findings of a rule than are known, all of
them are reported: which of them is new cannot be told.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping

from planner.diagnostics import Finding
from planner.errors import LocatedError
from planner.records import record

FORM = 1  # of the file; another number is another form


class BaselineError(LocatedError):
    """A baseline file that cannot be used."""


@record
class Baseline:
    """Known findings: their number by file, relative to the baseline's directory, and by code."""

    counts: Mapping[str, Mapping[str, int]]


def baseline_of(findings: Iterable[Finding], directory: str) -> Baseline:
    """The baseline that knows these findings; `directory` is where its file will stand."""
    counts: dict[str, Counter[str]] = {}
    for finding in findings:
        counts.setdefault(_name(finding, directory), Counter())[finding.rule.code] += 1
    return Baseline(counts={name: dict(sorted(counts[name].items())) for name in sorted(counts)})


def unknown_findings(findings: Iterable[Finding], baseline: Baseline, directory: str) -> tuple[Finding, ...]:
    """The findings of files and rules with more findings than the baseline knows, in their order."""
    found = tuple(findings)
    counts = baseline_of(found, directory).counts
    return tuple(
        finding
        for finding in found
        if counts[name := _name(finding, directory)][finding.rule.code]
        > baseline.counts.get(name, {}).get(finding.rule.code, 0)
    )


def _name(finding: Finding, directory: str) -> str:
    path = os.path.abspath(finding.report.place.document.path)
    relative = os.path.relpath(path, directory)
    return (path if relative.split(os.sep)[0] == os.pardir else relative).replace(os.sep, "/")


def format_baseline(baseline: Baseline) -> str:
    """The baseline as a file's text."""
    return json.dumps({"form": FORM, "counts": baseline.counts}, indent=2) + "\n"


def parse_baseline(text: str, path: str) -> Baseline:
    """The baseline in a file's text; `path` is for messages.

    Raises:
        BaselineError: It is not one.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"not valid JSON: {error}", path=path) from None
    if not isinstance(data, dict) or data.get("form") != FORM or not _are_counts(data.get("counts")):
        hint = "write it anew with --write-baseline"
        raise BaselineError(f"expected a baseline of form {FORM}", path=path, hint=hint)
    return Baseline(counts=data["counts"])


def _are_counts(counts: object) -> bool:
    return isinstance(counts, dict) and all(
        isinstance(by_code, dict) and all(isinstance(count, int) and count >= 0 for count in by_code.values())
        for by_code in counts.values()
    )
