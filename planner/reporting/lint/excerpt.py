"""Lines of a file with marks under the characters that are meant.

Columns are those of a terminal: a tab goes to the next stop, wide characters take two, combining ones none, and what
would not be seen, or would move the cursor, is shown as a symbol.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from planner.records import record
from planner.reporting.lint.regions import line_of, region, unprintable

if TYPE_CHECKING:
    from planner.diagnostics import Place

_TAB_COLUMNS = 4
_MOST_CHARACTERS = 140  # of a line; more of a longer one, such as JSON without line ends, helps nobody
_CHARACTERS_BEFORE = 40  # of a longer line, what is shown before the mark
_LEFT_OUT = "…"
_CONTROL_PICTURES = 0x2400  # Unicode's block of pictures for the control characters, in their order
_REPLACEMENT = "\ufffd"


@record
class Mark:
    """A place, what is written beside it, and whether it is what the finding is about."""

    place: "Place"
    label: str
    is_primary: bool


@record
class Row:
    """A row of an excerpt.

    Attributes:
        number: The line of the file that it shows; None for a row of marks, or where lines are left out.
        text: The line, or the marks with their label.
        is_primary: Whether it has the marks of what the finding is about.
        is_gap: Whether lines are left out here.
    """

    number: int | None = None
    text: str = ""
    is_primary: bool = False
    is_gap: bool = False


def rows(marks: Sequence[Mark]) -> Iterator[Row]:
    """The lines that marks are in, in the order of the file, each followed by its marks. All are in one document.

    Of a place that goes over several lines, the first is shown.
    """
    by_line: dict[int, list[Mark]] = {}
    for mark in marks:
        by_line.setdefault(region(mark.place).line, []).append(mark)
    last: int | None = None
    for number in sorted(by_line):
        if last is not None and number > last + 1:
            yield Row(is_gap=True)
        yield from _line(number, by_line[number])
        last = number


def _line(number: int, marks: Sequence[Mark]) -> Iterator[Row]:
    line = line_of(marks[0].place.document, number)
    spans = [_span(mark, number, len(line)) for mark in marks]
    first, last = _window(len(line), min(start for start, _ in spans))
    shown, columns = _laid_out(line[first:last])
    before = _LEFT_OUT if first > 0 else ""
    after = _LEFT_OUT if last < len(line) else ""
    yield Row(number=number, text=(before + shown + after).rstrip())
    for mark, span in zip(marks, spans, strict=True):
        start, end = (columns[min(max(at, first), last) - first] for at in span)
        sign = "^" if mark.is_primary else "-"
        blank = " " * (len(before) + start)
        yield Row(text=f"{blank}{sign * max(end - start, 1)} {mark.label}".rstrip(), is_primary=mark.is_primary)


def _span(mark: Mark, number: int, length: int) -> tuple[int, int]:
    """The characters of the line that a mark means."""
    at = region(mark.place)
    return at.column - 1, at.end_column - 1 if at.end_line == number else length


def _window(length: int, meant: int) -> tuple[int, int]:
    """The characters that are shown of a line of this length: all, or those around what is meant."""
    if length <= _MOST_CHARACTERS:
        return 0, length
    first = max(0, min(meant - _CHARACTERS_BEFORE, length - _MOST_CHARACTERS))
    return first, first + _MOST_CHARACTERS


def _laid_out(text: str) -> tuple[str, Sequence[int]]:
    """The text as it is shown, and the column at which each of its characters begins; last, that of its end."""
    if text.isascii() and text.isprintable():
        return text, range(len(text) + 1)
    shown: list[str] = []
    columns = [0]
    for character in text:
        cell, width = _cell(character, columns[-1])
        shown.append(cell)
        columns.append(columns[-1] + width)
    return "".join(shown), columns


def _cell(character: str, column: int) -> tuple[str, int]:
    """What is shown of a character at this column, and how many columns that takes."""
    from unicodedata import combining, east_asian_width

    if character == "\t":
        width = _TAB_COLUMNS - column % _TAB_COLUMNS
        return " " * width, width
    if unprintable().match(character):
        is_control = ord(character) < ord(" ")
        return (chr(_CONTROL_PICTURES + ord(character)) if is_control else _REPLACEMENT), 1
    if combining(character):
        return character, 0
    return character, 2 if east_asian_width(character) in ("W", "F") else 1
