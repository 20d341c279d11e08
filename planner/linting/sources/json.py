"""JSON with the place of every key and value, also with comments and trailing commas.

DeepSpeed reads its files as HJSON, and editors write "JSON with comments": both have ``//`` and ``/* */``, HJSON ``#``
besides. What else HJSON allows, such as text without quotes, is not read. As in Python, NaN and Infinity are numbers.
Two departures from `json.loads`: a number of more than 300 digits stays text, and half of a surrogate pair, which no
file can hold, reads as U+FFFD.
"""

import json
import re
from collections.abc import Iterator

from planner.configs.tree import Comment, Document, Entry, Mapping, Node, Scalar, Sequence, SourceFormat
from planner.linting.sources import MAX_DEPTH, MAX_NODES, SourceError, is_alone

_BLANK = re.compile(r"(?:[ \t\n\r]+|//[^\n]*|#[^\n]*|/\*.*?\*/)*", re.S)
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*|/\*.*?\*/", re.S)
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORD = re.compile(r"true|false|null|NaN|-?Infinity")
_VALUE_BY_WORD = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_DIGITS = 300  # of a number; Python refuses to read thousands
_SHOWN = 20  # characters of what was found instead


def parse(text: str, path: str) -> Document:
    """The document of JSON text.

    Raises:
        SourceError: The text is not JSON, or is nested or long beyond the limits.
    """
    reader = _Reader(text)
    root = reader.document()
    return Document(
        path=path, text=text, format=SourceFormat.JSON, root=root, comments=tuple(_comments(text, reader.gaps))
    )


class _Reader:
    """Reads values on an explicit stack: the depth of a file is its author's choice."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.count = 0
        self.gaps: list[tuple[int, int]] = []  # that have comments

    def document(self) -> Node:
        self.position = 1 if self.text.startswith("\ufeff") else 0
        root = self.value()
        self.skip()
        if self.position < len(self.text):
            raise self.error("the end of the file")
        return root

    def value(self) -> Node:
        """The next value, with all that is in it."""
        stack: list[_Open] = []
        while True:
            node = self.start(stack)
            while node is not None:
                if not stack:
                    return node
                stack[-1].add(node)
                node = self.close(stack) if self.is_at_end(stack[-1]) else None

    def start(self, stack: "list[_Open]") -> Node | None:
        """The next scalar or empty collection; None where a collection has been opened."""
        self.skip()
        self.count += 1
        if self.count > MAX_NODES:
            raise SourceError(f"more than {MAX_NODES:,} values", offset=self.position)
        mark = self.text[self.position : self.position + 1]
        if mark not in ("{", "["):
            return self.scalar(mark)
        if len(stack) == MAX_DEPTH:
            raise SourceError(f"nested more than {MAX_DEPTH} levels deep", offset=self.position)
        stack.append(_Open(self.position, is_mapping=mark == "{"))
        self.position += 1
        self.skip()
        if self.at(stack[-1].closing):
            return self.close(stack)
        self.key(stack[-1])
        return None

    def close(self, stack: "list[_Open]") -> Node:
        self.position += 1
        return stack.pop().close(self.position)

    def is_at_end(self, collection: "_Open") -> bool:
        """Whether the collection ends here; otherwise what parts its values has been read."""
        self.skip()
        if self.at(","):
            self.position += 1
            self.skip()
        elif not self.at(collection.closing):
            raise self.error(f"',' or {collection.closing!r}")
        if self.at(collection.closing):
            return True
        self.key(collection)
        return False

    def key(self, collection: "_Open") -> None:
        """Reads the key before a value, where the collection has keys."""
        if not collection.is_mapping:
            return
        start = self.position
        if not self.at('"'):
            raise self.error("a key in double quotes")
        collection.key = (self.string(), start, self.position)
        self.skip()
        if not self.at(":"):
            raise self.error("':' after the key")
        self.position += 1

    def scalar(self, mark: str) -> Scalar:
        start = self.position
        if mark == '"':
            text = self.string()
            return Scalar(start, self.position, text, quoted=True)
        word = _WORD.match(self.text, start)
        number = None if word else _NUMBER.match(self.text, start)
        match = word or number
        if match is None:
            raise self.error("a value")
        self.position = match.end()
        return Scalar(start, self.position, _number(match) if number else _VALUE_BY_WORD[match[0]])

    def string(self) -> str:
        match = _STRING.match(self.text, self.position)
        if match is None:
            raise SourceError("not valid JSON: text that is not closed on its line", offset=self.position)
        start, self.position = self.position, match.end()
        if "\\" not in match[0]:
            return match[0][1:-1]
        try:
            return _LONE_SURROGATE.sub("\ufffd", json.loads(match[0]))
        except json.JSONDecodeError as error:
            raise SourceError(f"not valid JSON: {error.msg}", offset=start + error.pos) from None

    def skip(self) -> None:
        """Moves past blanks and comments."""
        match = _BLANK.match(self.text, self.position)
        assert match is not None  # it matches the empty text
        end = match.end()
        if end > self.position and not self.text[self.position : end].isspace():
            self.gaps.append((self.position, end))
        self.position = end

    def at(self, mark: str) -> bool:
        return self.text.startswith(mark, self.position)

    def error(self, expected: str) -> SourceError:
        found = self.text[self.position : self.position + _SHOWN].split("\n")[0].strip()
        return SourceError(
            f"not valid JSON: expected {expected}, found {found!r}"
            if found
            else f"not valid JSON: expected {expected}",
            offset=self.position,
        )


class _Open:
    """A mapping or sequence that is open."""

    __slots__ = ("entries", "is_mapping", "items", "key", "start")

    def __init__(self, start: int, *, is_mapping: bool) -> None:
        self.start = start
        self.is_mapping = is_mapping
        self.key = ("", 0, 0)
        self.entries: list[Entry] = []
        self.items: list[Node] = []

    @property
    def closing(self) -> str:
        return "}" if self.is_mapping else "]"

    def add(self, node: Node) -> None:
        if self.is_mapping:
            self.entries.append(Entry(*self.key, node))
        else:
            self.items.append(node)

    def close(self, end: int) -> Node:
        return Mapping(self.start, end, self.entries, []) if self.is_mapping else Sequence(self.start, end, self.items)


def _number(match: re.Match[str]) -> int | float | str:
    whole, fraction, exponent = match.groups()
    if len(match[0]) > _MOST_DIGITS:
        return match[0]
    return int(whole) if fraction is None and exponent is None else float(match[0])


def _comments(text: str, gaps: list[tuple[int, int]]) -> Iterator[Comment]:
    for start, end in gaps:
        for match in _COMMENT.finditer(text, start, end):
            yield Comment(start=match.start(), text=match[0].rstrip(), alone=is_alone(text, match.start()))
