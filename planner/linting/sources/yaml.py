"""YAML with the place of every key and value, from PyYAML's events: no loader, so that no tag can make an object.

Plain scalars are read as YAML 1.1, as PyYAML does for most frameworks, but "1e-5" is a number, as the frameworks that
use another loader or convert by type see it. "1:30" and dates are the text that was written, and so are keys: `on: x`
has the key "on". A number of more than 300 digits is text. Only the first document of a file is read.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import yaml

from planner.configs.tree import Comment, Document, Entry, Mapping, Node, Scalar, Sequence, SourceFormat
from planner.linting import MARK
from planner.linting.sources import MAX_DEPTH, MAX_NODES, SourceError, is_alone

try:
    from yaml import CSafeLoader as _Loader  # its scanner is in C: thirty times faster
except ImportError:  # PyYAML built without libyaml
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

_MERGE_KEY = "<<"
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLS = {
    text: value
    for words, value in ((("yes", "true", "on"), True), (("no", "false", "off"), False))
    for word in words
    for text in (word, word.capitalize(), word.upper())
}
_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]+|0|[1-9][0-9_]*)")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_MOST_DIGITS = 300  # of a number; Python refuses to read thousands
_SHOWN = 60  # characters of a tag
_TAG_PREFIX = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(_TAG_PREFIX + name for name in ("str", "int", "float", "bool", "null", "map", "seq"))


def parse(text: str, path: str) -> Document:
    """The document of YAML text.

    Raises:
        SourceError: The text is not YAML, is nested or repeated beyond the limits, or uses tags that make objects.
    """
    # A byte-order mark, which PyYAML does not count, becomes an empty line.
    source = f"\n{text[1:]}" if text.startswith("\ufeff") else text
    try:
        # What yaml.parse does, without asking before each event whether there is one: get_event then returns None.
        builder = _Builder(iter(_Loader(source).get_event, None))
        root = builder.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = ", ".join(part for part in (error.context, error.problem) if part)
        raise SourceError(f"not valid YAML: {message}", offset=mark.index if mark else None) from None
    except yaml.reader.ReaderError as error:
        # The error's own position counts bytes where the scanner is libyaml's.
        offset = text.find(chr(error.character)) if isinstance(error.character, int) else -1
        raise SourceError(f"not valid YAML: {error.reason}", offset=offset if offset >= 0 else None) from None
    return Document(
        path=path,
        text=text,
        format=SourceFormat.YAML,
        root=root,
        # Only those that name the planner are ever looked at.
        comments=tuple(_comments(text[: builder.end], builder.not_plain)) if MARK in text else (),
    )


class _Builder:
    """Builds nodes from PyYAML's untyped events on an explicit stack, counting what aliases expand to.

    Attributes:
        end: Where the first document ends.
        not_plain: Start, end and style of every scalar that a # may be in, in their order.
    """

    def __init__(self, events: Iterable[Any]) -> None:
        self.events = iter(events)
        self.anchors: dict[str, tuple[Node, int]] = {}
        self.end: int | None = None
        self.not_plain: list[tuple[int, int, str]] = []

    def document(self) -> Node:
        """The root of the first document; a null for an empty file."""
        for event in self.events:
            if type(event) is yaml.DocumentStartEvent:
                root = self.node()
                next(self.events)  # the document's end
                self.end = next(self.events).start_mark.index  # of the next one's, or of the file's
                return root
        return Scalar(0, 0, None)

    def node(self) -> Node:
        """The next node: every collection that is open has a frame on the stack."""
        stack: list[_Frame] = []
        for event in self.events:
            kind = type(event)
            start, end = event.start_mark.index, event.end_mark.index
            node: Node
            if kind is yaml.ScalarEvent:
                is_key = bool(stack) and stack[-1].is_mapping and len(stack[-1].parts) % 2 == 0
                node, size = _scalar(event, start, end, is_key=is_key), 1
                anchor = event.anchor
                if event.style:
                    self.not_plain.append((start, end, event.style))
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                _check_tag(event)
                if len(stack) == MAX_DEPTH:
                    raise SourceError(f"nested more than {MAX_DEPTH} levels deep", offset=start)
                stack.append(_Frame(event))
                continue
            elif kind is yaml.AliasEvent:
                if event.anchor not in self.anchors:
                    message = f"not valid YAML: the alias *{event.anchor} has no anchor before it"
                    raise SourceError(message, offset=start)
                node, size = self.anchors[event.anchor]
                anchor = None
            else:  # the end of a mapping or sequence
                frame = stack.pop()
                node, size = frame.close(start, end), frame.size
                start = node.start
                anchor = frame.anchor
            if anchor is not None:
                self.anchors[anchor] = (node, size)
            if not stack:
                return node
            stack[-1].add(node, size, start, end)
        raise SourceError("not valid YAML: the file ends within a value")


class _Frame:
    """A mapping or sequence that is open."""

    __slots__ = ("anchor", "is_mapping", "key", "parts", "size", "start")

    def __init__(self, event: Any) -> None:
        self.anchor = event.anchor
        self.is_mapping = type(event) is yaml.MappingStartEvent
        self.start = event.start_mark.index
        self.parts: list[tuple[Node, int, int]] = []
        self.size = 1

    def add(self, node: Node, size: int, start: int, end: int) -> None:
        """Appends what comes next. Its place is its own: an alias stands away from what it names."""
        self.size += size
        if self.size > MAX_NODES:
            raise SourceError(f"more than {MAX_NODES:,} values once its aliases are expanded", offset=start)
        self.parts.append((node, start, end))

    def close(self, start: int, end: int) -> Node:
        """The finished node. The end mark of a block is at the next token, so its last part's end is taken."""
        if self.parts and start == end:
            end = self.parts[-1][2]
        if not self.is_mapping:
            return Sequence(self.start, end, [node for node, _, _ in self.parts])
        entries: list[Entry] = []
        merges: list[Mapping] = []
        for (key, start, key_end), (value, _, _) in zip(self.parts[::2], self.parts[1::2], strict=True):
            if not isinstance(key, Scalar):
                raise SourceError("expected a text key, found a list or mapping", offset=start)
            name = str(key.value)
            if name == _MERGE_KEY and not key.quoted:
                merges += _merged(value, start)
            else:
                entries.append(Entry(name, start, key_end, value))
        return Mapping(self.start, end, entries, merges)


def _merged(value: Node, start: int) -> list[Mapping]:
    """The mappings that a merge key names."""
    sources = value.items if isinstance(value, Sequence) else [value]
    mappings = [source for source in sources if isinstance(source, Mapping)]
    if len(mappings) < len(sources):
        raise SourceError("not valid YAML: expected a mapping or a list of mappings after <<", offset=start)
    return mappings


def _check_tag(event: Any) -> None:
    tag = event.tag
    if tag is not None and tag not in _PLAIN_TAGS and tag != "!":
        shown = tag.replace(_TAG_PREFIX, "!!")[:_SHOWN]
        raise SourceError(f"the tag {shown} is not allowed; only plain values are", offset=event.start_mark.index)


def _scalar(event: Any, start: int, end: int, *, is_key: bool) -> Scalar:
    """A scalar's node. Keys stay the text that was written: `on: x` has the key "on", not true."""
    text = event.value
    if event.tag is not None:
        _check_tag(event)
        return Scalar(start, end, text if event.tag.endswith((":str", "!")) else plain_value(text))
    quoted = not event.implicit[0]
    return Scalar(start, end, text if quoted or is_key else plain_value(text), quoted=quoted)


@lru_cache(maxsize=4096)  # the same few words and numbers stand in every file
def plain_value(text: str) -> str | int | float | bool | None:
    """What an unquoted scalar means."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if text[0] not in "0123456789+-." or len(text) > _MOST_DIGITS:
        return text
    digits = text.replace("_", "")
    if _INT.fullmatch(text):
        sign = -1 if digits[0] == "-" else 1
        digits = digits.lstrip("+-")
        base = {"0b": 2, "0x": 16}.get(digits[:2], 8 if digits[0] == "0" and len(digits) > 1 else 10)
        try:
            return sign * int(digits, base)
        except ValueError:  # "0x_"
            return text
    if _FLOAT.fullmatch(text):
        return float(digits)
    return float(digits.replace(".", "", 1)) if _NOT_FINITE.fullmatch(text) else text


_COMMENT = re.compile(r"(?:^|(?<=[\s\ufeff]))#[^\n]*", re.M)


def _comments(text: str, not_plain: list[tuple[int, int, str]]) -> Iterator[Comment]:
    """The comments: a # that begins a word, except in quotes and in block scalars."""
    position = 0
    number = 0
    while (match := _COMMENT.search(text, position)) is not None:
        while number < len(not_plain) and not_plain[number][1] <= match.start():
            number += 1
        if number < len(not_plain) and not_plain[number][0] < match.start():
            start, end, style = not_plain[number]
            is_header = style in ("|", ">") and "\n" not in text[start : match.start()]
            if not is_header:
                position = end
                continue
        yield Comment(start=match.start(), text=match[0].rstrip(), alone=is_alone(text, match.start()))
        position = match.end()
