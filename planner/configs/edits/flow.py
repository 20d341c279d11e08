"""Edits of entries between braces that commas part: JSON, YAML's flow style and TOML's inline tables."""

from planner.configs.edits.blocks import Replacement
from planner.configs.edits.layout import (
    indent_of,
    is_rest_empty,
    line_end,
    line_start,
    newline,
    next_line,
    value_span,
)
from planner.configs.edits.literals import pair_literal
from planner.configs.tree import Document, Entry, Mapping, SourceFormat

_SEPARATORS = {SourceFormat.JSON: ": ", SourceFormat.YAML: ": ", SourceFormat.TOML: " = "}


def remove_item(document: Document, mapping: Mapping, entry: Entry) -> list[Replacement]:
    """Removes an entry with one comma, and with its line and the comment there if it has one to itself."""
    end = _end(document, entry)
    if end is None:
        return []
    text = document.text
    start = _start(document, mapping, entry)
    number = _number(mapping, entry)
    if len(mapping.entries) == 1:
        return _remove_only(document, mapping, start, end)
    comma = _comma(document, end)
    after = comma + 1 if comma is not None else end
    has_own_line = indent_of(text, start) is not None and is_rest_empty(text, after)
    if comma is not None:
        if has_own_line:
            return [(line_start(text, start), next_line(text, after), "")]
        if is_rest_empty(text, after):  # the last of its line
            return [(_skip_blank_back(text, start), after, "")]
        return [(start, _skip_blank(text, after), "")]
    before = _end(document, mapping.entries[number - 1])
    previous = _comma(document, before) if before is not None else None
    if previous is None:
        return []
    if not text[previous + 1 : start].strip():
        # A comment on the line of what goes is about that.
        return [(previous, line_end(text, end) if has_own_line else end, "")]
    line = (line_start(text, start), next_line(text, end), "") if has_own_line else (start, end, "")
    return [(previous, previous + 1, ""), line]


def insert_item(document: Document, mapping: Mapping, entry: Entry, key: str, value: object) -> list[Replacement]:
    """Adds an entry after another one, on a line of its own where that has one."""
    end = _end(document, entry)
    pair = pair_literal(key, _separator(document, entry), value, document.format)
    if end is None or pair is None:
        return []
    text = document.text
    start = _start(document, mapping, entry)
    indent = indent_of(text, start)
    comma = _comma(document, end)
    after = comma + 1 if comma is not None else end
    if indent is None or not is_rest_empty(text, after):
        return [(end, end, f", {pair}")]
    at = line_end(text, after)
    line = f"{newline(document)}{indent}{pair}"
    return [(at, at, f"{line},")] if comma is not None else [(end, end, ","), (at, at, line)]


def _separator(document: Document, entry: Entry) -> str:
    """What this entry has between key and value, if it is of the kind that is usual."""
    text = document.text[entry.key_end : entry.value.start]
    mark = _SEPARATORS[document.format].strip()
    is_usual = text.strip(" ") == mark and (document.format is not SourceFormat.YAML or text.endswith(" "))
    return text if is_usual else _SEPARATORS[document.format]


def _remove_only(document: Document, mapping: Mapping, start: int, end: int) -> list[Replacement]:
    text = document.text
    comma = _comma(document, end)
    end = comma + 1 if comma is not None else end
    first = text.index("{", mapping.start) + 1
    if not text[first:start].strip() and not text[end : mapping.end - 1].strip():
        return [(first, mapping.end - 1, "")]
    return [(start, end, "")]


def _start(document: Document, mapping: Mapping, entry: Entry) -> int:
    """Where an entry begins: in TOML its key may have outer parts before it."""
    if document.format is not SourceFormat.TOML:
        return entry.key_start
    number = _number(mapping, entry)
    before = mapping.entries[number - 1].value.end if number else mapping.start + 1
    start = _skip_blank(document.text, before)
    return _skip_blank(document.text, start + 1) if document.text.startswith(",", start) else start


def _end(document: Document, entry: Entry) -> int | None:
    span = value_span(document, entry)
    return None if span is None else max(span[1], entry.key_end)


def _number(mapping: Mapping, entry: Entry) -> int:
    return next(number for number, other in enumerate(mapping.entries) if other is entry)


def _comma(document: Document, offset: int) -> int | None:
    """The comma after an entry, past blanks and comments."""
    text = document.text
    comments = {comment.start: comment for comment in document.comments}
    while offset < len(text):
        if offset in comments:
            offset += len(comments[offset].text)
        elif text[offset].isspace():
            offset += 1
        else:
            return offset if text[offset] == "," else None
    return None


def _skip_blank(text: str, offset: int) -> int:
    while offset < len(text) and text[offset] in " \t\r\n":
        offset += 1
    return offset


def _skip_blank_back(text: str, offset: int) -> int:
    while offset and text[offset - 1] in " \t":
        offset -= 1
    return offset
