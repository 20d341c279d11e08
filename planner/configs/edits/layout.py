"""Where an entry and its value stand in the text, and the lines around them."""

import re

from planner.configs.config import Setting
from planner.configs.tree import Document, Entry, Mapping, Node, Scalar, Sequence, SourceFormat

_COLON = re.compile(r"[ \t]*:")
_ALIAS = re.compile(r"[ \t\r\n]*(\*[^\s,\[\]{}]+)")
_REST = re.compile(r"[ \t]*(?:#[^\n]*|//[^\n]*)?(?=\r?\n|\Z)")
_EXPLICIT = re.compile(r"(?:^|(?<=[\s{,\[:-]))\?\s+\Z", re.M)
_PROPERTIES = re.compile(r"(?:[&!][^\s,\[\]{}]*\s+)*")


def parent_of(setting: Setting) -> Mapping | None:
    """The mapping that has a setting's entry; None for an item of a list."""
    seen: set[int] = set()
    stack: list[Node] = [setting.document.root]
    while stack:
        node = stack.pop()
        if isinstance(node, Scalar) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Mapping):
            if any(entry is setting.entry for entry in node.entries):
                return node
            stack += [*node.merges, *(entry.value for entry in node.entries)]
        elif isinstance(node, Sequence):
            stack += node.items
    return None


def value_span(document: Document, entry: Entry) -> tuple[int, int] | None:
    """Where the value is written that stands behind this key; after the key or its colon where there is none.

    An alias is what is written there, not what it names. None where the value stands nowhere near.
    """
    node = entry.value
    if document.format is not SourceFormat.YAML:
        return node.start, node.end
    colon = _COLON.match(document.text, entry.key_end)
    if colon is None:
        return (entry.key_end, entry.key_end) if node.start == node.end else None
    alias = _ALIAS.match(document.text, colon.end())
    if alias is not None:
        return alias.span(1)
    if node.start == node.end:
        return colon.end(), colon.end()
    return (node.start, node.end) if node.start >= colon.end() else None


def is_explicit(document: Document, entry: Entry) -> bool:
    """Whether a YAML key has a question mark before it."""
    before = document.text[: entry.key_start]
    return document.format is SourceFormat.YAML and _EXPLICIT.search(before) is not None


def skip_properties(text: str, start: int) -> int:
    """Where a YAML value begins behind its tag."""
    match = _PROPERTIES.match(text, start)
    return match.end() if match else start


def is_block_collection(document: Document, node: Node) -> bool:
    """Whether a node is a mapping or list by indentation."""
    if document.format is not SourceFormat.YAML or isinstance(node, Scalar):
        return False
    return document.text[skip_properties(document.text, node.start)] not in "{["


def is_flow(document: Document, mapping: Mapping) -> bool:
    """Whether a mapping's entries are parted by commas."""
    start = skip_properties(document.text, mapping.start) if document.format is SourceFormat.YAML else mapping.start
    return document.text.startswith("{", start)


def line_start(text: str, offset: int) -> int:
    """Where the line of a character begins."""
    return text.rfind("\n", 0, offset) + 1


def line_end(text: str, offset: int) -> int:
    """Where the line of a character ends, before its line end."""
    end = text.find("\n", offset)
    if end < 0:
        return len(text)
    return end - 1 if end > offset and text[end - 1] == "\r" else end


def next_line(text: str, offset: int) -> int:
    """Where the line after that of a character begins."""
    end = text.find("\n", offset)
    return len(text) if end < 0 else end + 1


def indent_of(text: str, offset: int) -> str | None:
    """What is blank before a character that begins its line; None where something else stands before it."""
    before = text[line_start(text, offset) : offset]
    return before if not before.strip(" \t\ufeff") else None


def is_rest_empty(text: str, offset: int) -> bool:
    """Whether nothing but blanks and a comment follow on the line."""
    return _REST.match(text, offset) is not None


def newline(document: Document) -> str:
    """How the file ends its lines."""
    return "\r\n" if "\r\n" in document.text else "\n"


def trimmed_end(text: str, start: int, end: int) -> int:
    """The end of a stretch without the blanks and line ends that it ends in, which block scalars have."""
    return start + len(text[start:end].rstrip())
