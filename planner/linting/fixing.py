"""Fixes applied to a file's text: those that do not touch each other, then again until nothing is left."""

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence

from planner.diagnostics import Edit, Finding, Fix, FixSafety
from planner.records import record

MAX_ROUNDS = 20  # a fix can make room for another; more rounds would mean two fixes that undo each other


@record
class Fixed:
    """A file after fixing.

    Attributes:
        text: Its new text.
        fixed: The findings that were mended, in the order of mending.
        remaining: Those that are left.
    """

    text: str
    fixed: tuple[Finding, ...]
    remaining: tuple[Finding, ...]


def fix_text(text: str, lint: Callable[[str], tuple[Finding, ...]], *, unsafe: bool) -> Fixed:
    """The text with its findings fixed as far as that goes.

    Args:
        text: The file's text.
        lint: The findings of a text, which may also be in files that it refers to.
        unsafe: Whether fixes that change what will be run are applied too.
    """
    findings = lint(text)
    fixed: list[Finding] = []
    for _ in range(MAX_ROUNDS):
        mended, edits = _compatible(findings, text, unsafe=unsafe)
        if not mended:
            break
        text = apply_edits(text, edits)
        fixed += mended
        findings = lint(text)
    return Fixed(text=text, fixed=tuple(fixed), remaining=tuple(findings))


def is_applicable(fix: Fix, *, unsafe: bool) -> bool:
    """Whether a fix is to be applied."""
    return unsafe or fix.safety is FixSafety.SAFE


def _compatible(findings: Iterable[Finding], text: str, *, unsafe: bool) -> tuple[list[Finding], tuple[Edit, ...]]:
    """Findings whose fixes can be made together, the first of the file first, and all their edits.

    Those cannot that touch a common stretch of this text, or that give two keys one name: misspelt keys may both have
    been meant for a third one, which must not come twice. The next round decides on the second of them.
    """
    mended: list[Finding] = []
    edits: dict[Edit, None] = {}  # in the order of the findings
    taken: list[Edit] = []  # the same, by place
    given: set[tuple[str, str]] = set()  # names that keys are given, and below which key
    for finding in findings:
        fix = finding.report.fix
        if fix is None or not is_applicable(fix, unsafe=unsafe) or not _is_of(fix.edits, text):
            continue
        new = [edit for edit in fix.edits if edit not in edits]
        names = _names_given(finding, new, text)
        if given.isdisjoint(names) and not any(_touches(edit, taken) for edit in new):
            given |= names
            for edit in new:
                edits[edit] = None
                insort(taken, edit, key=_place)
            mended.append(finding)
    return mended, tuple(edits)


def _names_given(finding: Finding, edits: Iterable[Edit], text: str) -> set[tuple[str, str]]:
    """The names that edits put in the place of the key that a finding is about, with the dotted key above it."""
    outer, _, name = finding.report.place.key.rpartition(".")
    return {(outer, edit.text) for edit in edits if name and text[edit.start : edit.end].strip("\"'-") == name}


def _place(edit: Edit) -> tuple[int, int]:
    return edit.start, edit.end


def _touches(edit: Edit, taken: Sequence[Edit]) -> bool:
    """Whether an edit touches one of others in order, which do not overlap: if so, it touches a neighbour."""
    at = bisect_left(taken, _place(edit), key=_place)
    return any(_touch(edit, other) for other in taken[max(at - 1, 0) : at + 1])


def _is_of(edits: Sequence[Edit], text: str) -> bool:
    """Whether a fix is of this file alone: one that mends a file it refers to is applied when that file is linted."""
    return bool(edits) and all(edit.document.text == text for edit in edits)


def _touch(one: Edit, other: Edit) -> bool:
    if one.start == one.end or other.start == other.end:  # an insertion: two at one place have no order
        return one.start <= other.end and other.start <= one.end
    return one.start < other.end and other.start < one.end


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits made; they must not overlap."""
    parts: list[str] = []
    end = 0
    for edit in sorted(edits, key=_place):
        parts += [text[end : edit.start], edit.text]
        end = edit.end
    return "".join((*parts, text[end:]))


def diff(path: str, before: str, after: str) -> str:
    """A unified diff, as patch and git take it; empty where nothing changes."""
    from difflib import unified_diff  # only for those who ask

    lines = unified_diff(_lines(before), _lines(after), path, path)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    # Not splitlines, which takes more characters than \n for the end of a line.
    return re.findall(r"[^\n]*\n|[^\n]+", text)
