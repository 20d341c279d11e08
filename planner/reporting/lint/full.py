"""Findings for people: what, where in the file, and what to write instead."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from planner.diagnostics import FixSafety, Severity
from planner.reporting.lint.excerpt import Mark, Row, rows
from planner.reporting.lint.regions import one_line, region

if TYPE_CHECKING:
    from planner.diagnostics import Finding, Related
    from planner.linting.run import LintRun

Paint = Callable[..., str]  # text and SGR codes to text

# SGR codes of ECMA-48, which terminals understand.
_RED, _YELLOW, _BLUE, _CYAN, _BOLD = "31", "33", "34", "36", "1"
_COLOUR_BY_SEVERITY = {Severity.ERROR: _RED, Severity.NO_OP: _YELLOW, Severity.WASTE: _CYAN}
_OPTION_BY_SAFETY = {FixSafety.SAFE: "--fix", FixSafety.UNSAFE: "--fix --unsafe-fixes"}


def text(run: "LintRun", *, is_coloured: bool = False) -> str:
    """The findings with excerpts of their files, an empty line after each."""
    return "".join(f"{line}\n" for finding in run.findings for line in (*_lines(finding, is_coloured), ""))


def _lines(finding: "Finding", is_coloured: bool) -> Iterator[str]:
    def paint(text: str, *codes: str) -> str:
        return f"\033[{';'.join(codes)}m{text}\033[0m" if is_coloured and text else text

    rule, report = finding.rule, finding.report
    colour = _COLOUR_BY_SEVERITY[rule.severity]
    here = [related for related in report.related if related.place.document is report.place.document]
    elsewhere = [related for related in report.related if related.place.document is not report.place.document]
    blocks = [[Mark(place=report.place, label=rule.name, is_primary=True), *map(_mark, here)]]
    blocks += [[_mark(related)] for related in elsewhere]
    # Numbers of all blocks are aligned, so that their bars stand in one line.
    width = max(len(str(region(mark.place).line)) for marks in blocks for mark in marks)
    bar = paint(f"{' ' * width} |", _BLUE)

    yield f"{paint(f'{rule.severity}[{rule.code}]', colour, _BOLD)}{paint(f': {one_line(report.message)}', _BOLD)}"
    for marks in blocks:
        at = region(marks[0].place)
        arrow = "-->" if marks is blocks[0] else ":::"
        yield f"{' ' * width}{paint(arrow, _BLUE)} {one_line(at.path)}:{at.line}:{at.column}"
        yield bar
        for row in rows(marks):
            yield _row(row, width, bar, colour, paint)
    notes = [("help", report.help)] if report.help else []
    if report.fix is not None:
        notes.append(("fix", f"{report.fix.title} ({_OPTION_BY_SAFETY[report.fix.safety]})"))
    if notes:
        yield bar
    for name, note in notes:
        yield f"{' ' * width} {paint('=', _BLUE)} {paint(f'{name}:', _BOLD)} {one_line(note)}"


def _mark(related: "Related") -> Mark:
    return Mark(place=related.place, label=one_line(related.message), is_primary=False)


def _row(row: Row, width: int, bar: str, colour: str, paint: Paint) -> str:
    if row.is_gap:
        return paint("...", _BLUE)
    if row.number is not None:
        return f"{paint(f'{row.number:>{width}} |', _BLUE)} {row.text}".rstrip()
    return f"{bar} {paint(row.text, *((colour, _BOLD) if row.is_primary else (_BLUE, _BOLD)))}"
