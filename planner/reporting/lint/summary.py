"""One line that says what a run came to."""

from collections import Counter
from typing import TYPE_CHECKING

from planner.diagnostics import FixSafety, Severity

if TYPE_CHECKING:
    from planner.linting.run import LintRun


def line(run: "LintRun") -> str:
    """How many findings of which severity, in how many files, and how many of them can be fixed."""
    files = _count(len(run.checked), "training config")
    fixed = sum(len(change.fixed) for change in run.changes)
    mended = f"{_count(fixed, 'finding')} fixed; " if fixed else ""
    if not run.checked and not run.findings:
        return "no training configs found"
    if not run.findings:
        return f"{mended}no findings{' left' if fixed else ''} in {files}"
    by_severity = Counter(finding.rule.severity for finding in run.findings)
    parts = ", ".join(f"{by_severity[severity]} {severity}" for severity in Severity if by_severity[severity])
    bad_files = len({finding.report.place.document.path for finding in run.findings})
    found = f"{mended}{_count(len(run.findings), 'finding')} ({parts}) in {bad_files} of {files}"
    return found + _fixable(run)


def _fixable(run: "LintRun") -> str:
    by_safety = Counter(finding.report.fix.safety for finding in run.findings if finding.report.fix)
    safe, unsafe = by_safety[FixSafety.SAFE], by_safety[FixSafety.UNSAFE]
    if safe and unsafe:
        return f"; {safe} can be fixed with --fix, {unsafe} more with --unsafe-fixes"
    if safe or unsafe:
        return f"; {safe or unsafe} can be fixed with --fix{' --unsafe-fixes' if unsafe else ''}"
    return ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
