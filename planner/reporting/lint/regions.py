"""Places as lines and columns, and text that is safe to show: what several formats share."""

import os
import re
from functools import cache
from typing import TYPE_CHECKING

from planner.records import record

if TYPE_CHECKING:
    from planner.configs.tree import Document
    from planner.diagnostics import Edit, Place


_BYTE_ORDER_MARK = "\ufeff"


@record
class Region:
    """A stretch of a file: lines and columns from 1, in characters; the end is the first character after it."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int


def region(place: "Place | Edit") -> Region:
    """Where a place is, or what an edit replaces."""
    document = place.document
    line, column = document.position(place.start)
    end_line, end_column = document.position(place.end)
    if document.text.startswith(_BYTE_ORDER_MARK):  # which no editor counts
        column = max(1, column - (line == 1))
        end_column = max(1, end_column - (end_line == 1))
    return Region(path=document.path, line=line, column=column, end_line=end_line, end_column=end_column)


def line_of(document: "Document", number: int) -> str:
    """A line of a document, such that columns of regions count its characters."""
    line = document.line(number)
    return line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line


def one_line(text: str) -> str:
    """The text with characters that would not be seen, or break the line, written as escapes."""
    if text.isprintable():
        return text
    return unprintable().sub(lambda match: match[0].encode("unicode_escape").decode(), text)


@cache
def unprintable() -> re.Pattern[str]:
    """A character that must not be shown as it is.

    Control characters could move the cursor or colour what follows; those that change the direction of text or show
    nothing could make a line look like another (CVE-2021-42574); and halves of surrogate pairs, which JSON can write,
    no output can encode.
    """
    return re.compile(
        "[\\x00-\\x1f\\x7f-\\x9f\\u00ad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ud800-\\udfff]"
    )


def portable(path: str, directory: str) -> str:
    """The path as other programs want it: with slashes, and relative to the directory when it is in it."""
    whole = os.path.normpath(os.path.join(directory, path))
    relative = os.path.relpath(whole, directory)
    is_within = relative.split(os.sep)[0] != os.pardir
    return (relative if is_within else whole).replace(os.sep, "/")
