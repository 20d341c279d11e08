"""Edits of what stands on lines of its own: entries of YAML by indentation, and of TOML's tables."""

import re

from planner.configs.edits.layout import (
    indent_of,
    is_block_collection,
    is_rest_empty,
    line_end,
    line_start,
    newline,
    next_line,
    skip_properties,
    trimmed_end,
    value_span,
)
from planner.configs.edits.literals import literal, pair_literal
from planner.configs.tree import Document, Entry, Mapping, Scalar, Sequence, SourceFormat

Replacement = tuple[int, int, str]  # from where to where, and what comes there

_ANCHOR = re.compile(r"(?<![^\s\[{,:-])&([^\s,\[\]{}]+)")
_BLOCK_HEADER = re.compile(r"[|>][-+0-9]*")
_OUTER_KEYS = re.compile(r"\ufeff?[ \t]*(?:(?:[\w-]+|\"(?:[^\"\\]|\\.)*\"|'[^']*')[ \t]*\.[ \t]*)*")
_TO_NEXT = re.compile(r"[ \t]*(?:#[^\n]*)?\r?\n?[\s]*")


def set_block_value(document: Document, entry: Entry, value: object) -> list[Replacement]:
    """Replaces a YAML value, flow or block; comments beside it stay."""
    span = value_span(document, entry)
    text = document.text
    if span is None:
        return []
    start, end = span
    if text[start : start + 1] == "&":  # others refer to it
        return []
    first = skip_properties(text, start)
    old = text[first:end]
    new = literal(value, SourceFormat.YAML, old if isinstance(entry.value, Scalar) else "")
    if new is None:
        return []
    if start == end:
        return [(start, start, f" {new}")]
    if old[0] in "|>" and isinstance(entry.value, Scalar):
        header = _BLOCK_HEADER.match(text, first)
        assert header is not None
        body = line_end(text, first)
        return [(start, header.end(), new), (body, max(body, trimmed_end(text, start, end)), "")]
    if text[start] == "*" or not is_block_collection(document, entry.value):
        return [(start, end, new)]
    if _anchors_used(text, start, end):
        return []
    colon = text.index(":", entry.key_end) + 1
    if indent_of(text, start) is None:  # a tag, then the collection below it
        return []
    return [(colon, colon, f" {new}"), (line_start(text, start) - 1, trimmed_end(text, start, end), "")]


def remove_lines(document: Document, mapping: Mapping, entry: Entry) -> list[Replacement]:
    """Removes an entry with its lines and the comment at their end; the last one leaves {}, or an empty table."""
    span = value_span(document, entry)
    if span is None:
        return []
    text = document.text
    start = entry.key_start
    end = trimmed_end(text, start, max(span[1], entry.key_end))
    if document.format is SourceFormat.TOML:
        return _remove_toml(document, mapping, entry)
    if _anchors_used(text, start, end) or not is_rest_empty(text, end):
        return []
    if not mapping.merges and len(mapping.entries) == 1:
        return [(start, end, "{}")]
    if indent_of(text, start) is not None:
        return [(line_start(text, start), next_line(text, end), "")]
    following = min((other.key_start for other in mapping.entries if other.key_start > start), default=None)
    match = _TO_NEXT.match(text, end)
    if following is None or match is None:
        return []
    return [(start, min(match.end(), following), "")]


def _remove_toml(document: Document, mapping: Mapping, entry: Entry) -> list[Replacement]:
    text = document.text
    value = entry.value
    is_only_part = entry.key_start > mapping.start and text[mapping.start] != "[" and len(mapping.entries) == 1
    if _toml_prefix(document, entry) is None or (is_only_part and mapping is not document.root):
        return []
    return [(line_start(text, entry.key_start), next_line(text, value.end), "")]


def is_table(document: Document, entry: Entry) -> bool:
    """Whether a TOML entry is a table with a header, or one that dotted keys make."""
    value = entry.value
    if isinstance(value, Mapping):
        return document.text[value.start] != "{"
    return isinstance(value, Sequence) and document.text.startswith("[[", value.start) and value.start < entry.key_start


def is_written_once(document: Document, entry: Entry) -> bool:
    """Whether a TOML key stands in one place only: those of tables are in the headers of tables in them too."""
    value = entry.value
    if not is_table(document, entry):
        return True
    if not isinstance(value, Mapping) or document.text[value.start] != "[":
        return False
    return not any(is_table(document, inner) for inner in value.entries)


def insert_line(document: Document, mapping: Mapping, entry: Entry, key: str, value: object) -> list[Replacement]:
    """Adds an entry on a line of its own after another one."""
    span = value_span(document, entry)
    prefix = _prefix(document, mapping, entry)
    pair = pair_literal(key, " = " if document.format is SourceFormat.TOML else ": ", value, document.format)
    if span is None or prefix is None or pair is None:
        return []
    text = document.text
    line = f"{prefix}{pair}"
    end = max(span[1], entry.key_end)
    before_indent = len(text[:end].rstrip(" "))
    if text[before_indent - 1 : before_indent] == "\n":  # lists in lists end with the next key's indentation
        end = before_indent
    if text[end - 1 : end] == "\n":  # a block scalar, whose last line ends are its own
        return [(end, end, line + newline(document))]
    if not is_rest_empty(text, end):
        return []
    at = line_end(text, end)
    return [(at, at, newline(document) + line)]


def _prefix(document: Document, mapping: Mapping, entry: Entry) -> str | None:
    """What stands before a key of this mapping on its line."""
    text = document.text
    if document.format is SourceFormat.TOML:
        return _toml_prefix(document, entry)
    for other in mapping.entries:
        indent = indent_of(text, other.key_start)
        if indent is not None:
            return indent.replace("\ufeff", "")
    before = text[line_start(text, entry.key_start) : entry.key_start]
    return " " * len(before)


def _toml_prefix(document: Document, entry: Entry) -> str | None:
    """What stands before a key on its line: blanks and outer parts. None for tables, and for what is in braces."""
    before = document.text[line_start(document.text, entry.key_start) : entry.key_start]
    return before if not is_table(document, entry) and _OUTER_KEYS.fullmatch(before) else None


def _anchors_used(text: str, start: int, end: int) -> bool:
    """Whether something in this stretch has a name that is used after it."""
    names = _ANCHOR.findall(text[start:end]) if "&" in text[start:end] else []
    return any(re.search(rf"\*{re.escape(name)}(?![^\s,\[\]{{}}])", text[end:]) for name in names)
