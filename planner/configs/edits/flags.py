"""Edits of a command's flags in a shell script, wherever they stand: on its lines, in an array or in a string."""

import re
from itertools import pairwise

from planner.configs.edits.blocks import Replacement
from planner.configs.edits.layout import indent_of, line_end, line_start, newline, next_line
from planner.configs.edits.literals import key_literal, literal
from planner.configs.tree import Document, Entry, Mapping, Scalar, Sequence

_GAP = re.compile(r"=|(?:[ \t]|\\\r?\n|\r?\n)+")
# A value that stands elsewhere: the variable that is written here.
_VARIABLE = re.compile(r"(?:=|[ \t]+)(\"?\$(?:\w+|\{[^}\s]*\})\"?)(?=[\s\"')]|\Z)")
# What may follow the last flag of a line: a backslash, a comment, or what closes the array or string around it.
_REST = re.compile(r"[ \t]*(\\?)(?:[ \t]+#[^\n]*)?(?=\r?\n|\Z)")
_CLOSING = re.compile(r"[ \t]*[\"')]")
_FLAG_BEFORE = re.compile(r"(?:--?|\+{0,2})(?:[\w-]+[./])*\Z")


def set_flag(document: Document, entry: Entry, value: object) -> list[Replacement]:
    """Replaces a flag's value; one without a value gets one, unless true is what it means."""
    text = document.text
    node = entry.value
    if _is_bare(entry):
        written = literal(value, document.format)
        return [(entry.key_end, entry.key_end, f" {written}")] if written is not None and value is not True else []
    if isinstance(node, Scalar) and node.start == node.end:
        return []
    span = _written_value(document, entry)
    start, end = (node.start, node.end) if span is None or isinstance(node, Scalar) else span
    old = text[start:end] if isinstance(node, Scalar) and node.quoted else ""
    written = literal(value, document.format, old)
    return [] if written is None or (isinstance(node, Sequence) and span is None) else [(start, end, written)]


def rename_flag(document: Document, mapping: Mapping, entry: Entry, name: str) -> list[Replacement]:
    """Renames a flag, with dashes where the command's other flags have them."""
    if document.text[entry.key_start : entry.key_end] != entry.key:
        return []
    written = key_literal(_styled(mapping, entry, name), document.format)
    return [(entry.key_start, entry.key_end, written)] if written is not None else []


def remove_flag(document: Document, entry: Entry) -> list[Replacement]:
    """Removes a flag with its values, and with its line where it has one to itself."""
    span = _written_value(document, entry)
    start = _start(document, entry)
    if span is None or start is None:
        return []
    text = document.text
    end = max(span[1], entry.key_end)
    begins_line = indent_of(text, start) is not None
    rest = _REST.match(text, end)
    before = line_start(text, start)
    if begins_line and rest is not None and (rest[1] or not _goes_on(text, before)):
        return [(before, next_line(text, end), "")]
    if begins_line and (rest or _CLOSING.match(text, end)) and "#" not in text[line_start(text, before - 1) : before]:
        # The last of its command, array or string: the line before it must not go on.
        return [(_content_end(text, before), rest.end() if rest else end, "")]
    if begins_line or text[start - 1 : start] not in (" ", "\t"):
        return [(start, end + len(text[end:]) - len(text[end:].lstrip(" \t")), "")]
    return [(len(text[:start].rstrip(" \t")), end, "")]


def _goes_on(text: str, start: int) -> bool:
    """Whether the line before this one ends in a backslash."""
    return text[:start].rstrip("\r\n").endswith("\\")


def _content_end(text: str, start: int) -> int:
    """Where the line before this one ends, without blanks and its backslash."""
    line = text[:start].rstrip("\r\n")
    return len(line.removesuffix("\\").rstrip(" \t"))


def insert_flag(document: Document, mapping: Mapping, entry: Entry, key: str, value: object) -> list[Replacement]:
    """Adds a flag after another one: alone for true, if the command has such flags."""
    span = _written_value(document, entry)
    start = _start(document, entry)
    name = key_literal(_styled(mapping, entry, key), document.format)
    if span is None or start is None or name is None:
        return []
    text = document.text
    dashes = text[start : entry.key_start]
    if not dashes.startswith("-") or len(dashes.rstrip("-")):
        return []
    flag = f"{dashes}{name}"
    if not (value is True and any(_is_bare(other) for other in mapping.entries)):
        written = literal(value, document.format)
        if written is None:
            return []
        flag = f"{flag} {written}"
    end = max(span[1], entry.key_end)
    indent = indent_of(text, start)
    rest = _REST.match(text, end)
    if indent is None or not (rest or _CLOSING.match(text, end)):
        return [(end, end, f" {flag}")]
    if (rest and rest[1]) or _goes_on(text, line_start(text, start)):
        return [(end, end, f" \\{newline(document)}{indent}{flag}")]
    at = line_end(text, end) if rest else end
    return [(at, at, f"{newline(document)}{indent}{flag}")]


def _is_bare(entry: Entry) -> bool:
    node = entry.value
    return isinstance(node, Scalar) and node.start == node.end == entry.key_end


def _start(document: Document, entry: Entry) -> int | None:
    """Where a flag begins, with its dashes and the outer parts of a dotted name."""
    text = document.text
    if text[entry.key_start : entry.key_end] != entry.key:
        return None
    begin = line_start(text, entry.key_start)
    match = _FLAG_BEFORE.search(text[begin : entry.key_start])
    return None if match is None else begin + match.start()


def _written_value(document: Document, entry: Entry) -> tuple[int, int] | None:
    """Where a flag's values are written, next to it; None where they are not, or not all of them."""
    text = document.text
    if _is_bare(entry):
        return entry.key_end, entry.key_end
    node = entry.value
    if node.start >= entry.key_end and _GAP.fullmatch(text[entry.key_end : node.start]):
        items = node.items if isinstance(node, Sequence) else [node]
        if all(_GAP.fullmatch(text[one.end : other.start]) for one, other in pairwise(items)):
            return node.start, items[-1].end
        return None
    match = _VARIABLE.match(text, entry.key_end)
    return match.span(1) if match is not None and isinstance(node, Scalar) else None


def _styled(mapping: Mapping, entry: Entry, name: str) -> str:
    """A name with dashes where the command's flags have those rather than underscores."""
    keys = [entry.key] if "-" in entry.key or "_" in entry.key else [other.key for other in mapping.entries]
    has_dashes = any("-" in key for key in keys) and not any("_" in key for key in keys)
    return name.replace("_", "-") if has_dashes else name
