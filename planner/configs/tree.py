"""A config file as a tree in which every key and value knows its place.

The same tree serves YAML, JSON, TOML and the flags in a shell script. Nodes are plain slotted classes rather than
frozen records, because a run makes them by the ten thousand; nothing changes one after its reader is done.
Aliases and merge keys of YAML are shared nodes, so a tree may be a directed graph, but never has a cycle.
"""

from bisect import bisect_right
from collections.abc import Iterator
from enum import StrEnum

from planner.records import field, record


class SourceFormat(StrEnum):
    """How a file is written."""

    YAML = "yaml"
    JSON = "json"
    TOML = "toml"
    SHELL = "shell"


class Node:
    """A value: where it stands, from `start` to before `end`, in characters of the document's text."""

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


class Scalar(Node):
    """A single value. `value` is text, a number, true, false or null; `quoted` says that it is text by its quotes."""

    __slots__ = ("quoted", "value")

    def __init__(self, start: int, end: int, value: str | int | float | bool | None, *, quoted: bool = False) -> None:
        self.start = start  # not by super: of all nodes that files have, most pass here
        self.end = end
        self.value = value
        self.quoted = quoted


class Sequence(Node):
    """A list."""

    __slots__ = ("items",)

    def __init__(self, start: int, end: int, items: list[Node]) -> None:
        super().__init__(start, end)
        self.items = items


class Entry:
    """A key of a mapping, where it stands, and its value."""

    __slots__ = ("key", "key_end", "key_start", "value")

    def __init__(self, key: str, key_start: int, key_end: int, value: Node) -> None:
        self.key = key
        self.key_start = key_start
        self.key_end = key_end
        self.value = value


class Mapping(Node):
    """Keys and values.

    `entries` are as written, repeated keys too; `by_key` is what counts: the last of repeated keys, and the keys that
    come from `merges` (YAML's <<) where the mapping has none of its own.
    """

    __slots__ = ("by_key", "entries", "merges")

    def __init__(self, start: int, end: int, entries: list[Entry], merges: "list[Mapping]") -> None:
        super().__init__(start, end)
        self.entries = entries
        self.merges = merges
        self.by_key: dict[str, Entry] = {}
        for merged in reversed(merges):  # earlier sources win
            self.by_key.update(merged.by_key)
        for entry in entries:
            self.by_key[entry.key] = entry


@record(eq=False)
class Comment:
    """A comment, with its mark: where it starts, its text, and whether it has the line to itself."""

    start: int
    text: str
    alone: bool


@record(eq=False)
class Document:
    """A file.

    Attributes:
        path: As the user named it.
        text: Its content.
        format: How it is written.
        root: Its tree.
        comments: In the order of the file.
        line_starts: Offset of the first character of each line.
    """

    path: str
    text: str
    format: SourceFormat
    root: Node
    comments: tuple[Comment, ...] = ()
    line_starts: list[int] = field(default_factory=list)

    def position(self, offset: int) -> tuple[int, int]:
        """The line and the column of a character, both from 1; columns count characters."""
        if not self.line_starts:
            self.line_starts.extend(_line_starts(self.text))
        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of a line, from 1, without its end."""
        self.position(0)
        end = self.line_starts[number] if number < len(self.line_starts) else len(self.text)
        return self.text[self.line_starts[number - 1] : end].rstrip("\r\n")


def _line_starts(text: str) -> Iterator[int]:
    yield 0
    position = text.find("\n")
    while position >= 0:
        yield position + 1
        position = text.find("\n", position + 1)


def plain(node: Node) -> object:
    """The node as dict, list and scalars; merged keys included. Shared nodes are shared in the result."""
    return _plain(node, {})


def _plain(node: Node, done: dict[int, object]) -> object:
    if isinstance(node, Scalar):
        return node.value
    if id(node) not in done:
        if isinstance(node, Mapping):
            done[id(node)] = {key: _plain(entry.value, done) for key, entry in node.by_key.items()}
        elif isinstance(node, Sequence):
            done[id(node)] = [_plain(item, done) for item in node.items]
    return done[id(node)]
