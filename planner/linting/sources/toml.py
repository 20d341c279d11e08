"""TOML with the place of every key and value.

`tomllib` says whether the text is valid; a reader of valid text, which may then be simple, finds the places. Dates and
times are the text that was written, which is the one departure from `tomllib.loads`. A table's place runs from its
header to the end of its own last value, tables with headers of their own left out; a table that exists only because
others are inside of it has the place of the first of them.
"""

import json
import re
import tomllib

from planner.configs.tree import Comment, Document, Entry, Mapping, Node, Scalar, Sequence, SourceFormat
from planner.linting.sources import MAX_DEPTH, MAX_NODES, SourceError, is_alone

_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_BLANK = re.compile(r"[ \t]*")
_GAP = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"#[^\n]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LONG_STRING = re.compile(r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}' r"|'''(?:[^']|'{1,2}(?!'))*'{3,5}", re.S)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|' r"'[^']*'")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[Tt ][0-9:.]+)?(?:[Zz]|[-+][0-9:]+)?|[0-9]{2}:[0-9:.]+")
_WORD = re.compile(r"[^\s,\]}#]+")
# A dotted key beyond the limit: tomllib takes memory with the square of how many parts it has.
_DEEP_KEY = re.compile(
    r"""(?<![A-Za-z0-9_.\-"'])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)""" + f"{{{MAX_DEPTH}}}"
)

Key = tuple[str, int, int]  # what it reads as, its start and its end


def parse(text: str, path: str) -> Document:
    """The document of TOML text.

    Raises:
        SourceError: The text is not TOML, or is nested or long beyond the limits.
    """
    start = 1 if text.startswith("\ufeff") else 0
    deep = _DEEP_KEY.search(text)
    if deep is not None:
        raise SourceError(_TOO_DEEP, offset=deep.start())
    try:
        tomllib.loads(text[start:])
    except RecursionError:
        raise SourceError(_TOO_DEEP) from None
    except ValueError as error:  # also of a number that Python refuses to read
        raise _invalid(str(error), text, start) from None
    reader = _Reader(text, start)
    root = reader.document()
    return Document(path=path, text=text, format=SourceFormat.TOML, root=root, comments=tuple(reader.comments))


def _invalid(message: str, text: str, start: int) -> SourceError:
    match = _PLACE.search(message)
    if match is None:
        return SourceError(f"not valid TOML: {message}")
    offset = len(text)
    if match[1]:
        offset = start
        for _ in range(int(match[1]) - 1):
            offset = text.index("\n", offset) + 1
        offset += int(match[2]) - 1
    reason = message[: match.start()]
    return SourceError(f"not valid TOML: {reason[:1].lower()}{reason[1:]}", offset=offset)


class _Reader:
    """Reads valid TOML, so that nothing has to be checked but depth and length."""

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.position = start
        self.count = 0
        self.comments: list[Comment] = []

    def document(self) -> Mapping:
        root = Mapping(self.position, len(self.text), [], [])
        table = root
        self.skip()
        while self.position < len(self.text):
            if self.at("[["):
                table = self.header(root, "[[")
            elif self.at("["):
                table = self.header(root, "[")
            else:
                self.pair(table, depth=1)
            self.skip()
        return root

    def header(self, root: Mapping, mark: str) -> Mapping:
        """The table that the header here begins."""
        start = self.position
        self.position += len(mark)
        keys = self.keys()
        self.position += len(mark)  # the closing one
        *outer, last = keys
        parent = self.inner(root, outer, start)
        table = Mapping(start, self.position, [], [])
        found = parent.by_key.get(last[0])
        if found is None:
            _add(parent, last, Sequence(start, self.position, [table]) if mark == "[[" else table)
            return table
        if isinstance(found.value, Sequence):
            found.value.items.append(table)
            found.value.end = self.position
            return table
        assert isinstance(found.value, Mapping)  # [a] after [a.b]
        return found.value

    def pair(self, table: Mapping, *, depth: int) -> None:
        """Adds the key and value here to a table."""
        start = self.position
        *outer, last = self.keys()
        self.position += 1  # the equals sign
        self.skip_blank()
        value = self.value(depth + len(outer))
        parent = self.inner(table, outer, start)
        _add(parent, last, value)
        parent.end = table.end = max(table.end, value.end)

    def keys(self) -> list[Key]:
        """The parts of the dotted key here, and what is blank after them."""
        keys = []
        while True:
            self.skip_blank()
            start = self.position
            text = self.string() if self.text[start] in "\"'" else self.take(_BARE_KEY)
            keys.append((text, start, self.position))
            if len(keys) > MAX_DEPTH:
                raise SourceError(_TOO_DEEP, offset=start)
            self.skip_blank()
            if not self.at("."):
                return keys
            self.position += 1

    def inner(self, table: Mapping, keys: list[Key], start: int) -> Mapping:
        """The table below that the keys lead to, made where it is not there yet; of lists the last item."""
        for key in keys:
            found = table.by_key.get(key[0])
            if found is None:
                made = Mapping(start, self.position, [], [])
                _add(table, key, made)
                table = made
                continue
            value = found.value.items[-1] if isinstance(found.value, Sequence) else found.value
            assert isinstance(value, Mapping)
            table = value
        return table

    def value(self, depth: int) -> Node:
        self.count += 1
        if self.count > MAX_NODES:
            raise SourceError(f"more than {MAX_NODES:,} values", offset=self.position)
        if depth > MAX_DEPTH:
            raise SourceError(_TOO_DEEP, offset=self.position)
        if self.at("["):
            return self.array(depth)
        if self.at("{"):
            return self.inline_table(depth)
        start = self.position
        if self.text[start] in "\"'":
            text = self.string()
            return Scalar(start, self.position, text, quoted=True)
        match = _DATE.match(self.text, start)
        if match is not None:
            self.position = match.end()
            return Scalar(start, self.position, match[0])
        word = self.take(_WORD)
        return Scalar(start, self.position, _plain(word))

    def array(self, depth: int) -> Sequence:
        array = Sequence(self.position, 0, [])
        self.position += 1
        self.skip()
        while not self.at("]"):
            array.items.append(self.value(depth + 1))
            self.skip_comma()
        self.position += 1
        array.end = self.position
        return array

    def inline_table(self, depth: int) -> Mapping:
        table = Mapping(self.position, 0, [], [])
        self.position += 1
        self.skip()
        while not self.at("}"):
            self.pair(table, depth=depth + 1)
            self.skip_comma()
        self.position += 1
        table.end = self.position
        return table

    def string(self) -> str:
        """What the string here reads as."""
        is_long = self.at('"""') or self.at("'''")
        token = self.take(_LONG_STRING if is_long else _STRING)
        if "\\" not in token and not is_long:
            return token[1:-1]
        if is_long or token[0] == "'" or "\\U" in token:
            return str(tomllib.loads(f"x={token}")["x"])
        return str(json.loads(token, strict=False))  # the other escapes are JSON's, which is much faster

    def take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.position)
        assert match is not None, "tomllib has accepted this text"
        self.position = match.end()
        return match[0]

    def at(self, mark: str) -> bool:
        return self.text.startswith(mark, self.position)

    def skip_comma(self) -> None:
        self.skip()
        if self.at(","):
            self.position += 1
            self.skip()

    def skip_blank(self) -> None:
        self.take(_BLANK)

    def skip(self) -> None:
        """Moves past blanks, line ends and comments, and keeps the comments."""
        self.take(_GAP)
        while self.at("#"):
            start = self.position
            comment = self.take(_COMMENT).rstrip()
            self.comments.append(Comment(start=start, text=comment, alone=is_alone(self.text, start)))
            self.take(_GAP)


def _add(table: Mapping, key: Key, value: Node) -> None:
    entry = Entry(*key, value)
    table.entries.append(entry)
    table.by_key[entry.key] = entry


def _plain(text: str) -> int | float | bool:
    """A number or truth value as tomllib reads it."""
    if text in ("true", "false"):
        return text == "true"
    digits = text.replace("_", "")
    if digits.lstrip("+-").isdecimal():
        return int(digits)
    value: int | float = tomllib.loads(f"x={text}")["x"]
    return value
