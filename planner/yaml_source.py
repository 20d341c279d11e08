"""YAML and JSON files as plain data, with the line of every key.

Only what JSON can also say is accepted: mappings with text keys, lists, text, numbers, true, false and null.
Tags, dates and binary data are not, so reading a file can never run code. Every problem becomes one located
error.

Three departures from YAML 1.1, as PyYAML implements it, because all surprise: ``1e-5`` is a number, ``1:30``
is text and not 90, and keys are always the text that was written (``on: x`` has the key "on", not true).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from planner.errors import LocatedError, SpecError
from planner.files import MAX_FILE_BYTES, read_text

try:
    from yaml import CSafeLoader as _BaseLoader  # ten times faster, and limits its own nesting
except ImportError:  # PyYAML built without libyaml
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]

KeyPath = tuple[str | int, ...]

MAX_NODES = 100_000  # after aliases are expanded: a "billion laughs" file has few nodes and many expansions
MAX_DEPTH = 100

_TAG_PREFIX = "tag:yaml.org,2002:"
_SCALAR_TAGS = frozenset(_TAG_PREFIX + name for name in ("str", "int", "float", "bool", "null"))
_NUMBER_TAGS = frozenset(_TAG_PREFIX + name for name in ("int", "float"))
_MERGE_TAG = _TAG_PREFIX + "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """A place in a file; both numbers are 1-based."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedDocument:
    """The data of a file, and where each part of it stands.

    Attributes:
        data: dict, list, str, int, float, bool or None, nested.
        lines: Key path, such as ("batch", "micro_batch") or ("inputs", "x", "shape", 0), to the position of
            that key or list item. Empty for data that came from no file.
        path: The file as the user named it.
    """

    data: object
    lines: Mapping[KeyPath, SourcePosition]
    path: str

    def position(self, key_path: KeyPath) -> SourcePosition | None:
        """Where the key stands, or else the nearest key around it that is known."""
        for end in range(len(key_path), -1, -1):
            if key_path[:end] in self.lines:
                return self.lines[key_path[:end]]
        return None

    def error(
        self,
        message: str,
        key_path: KeyPath = (),
        *,
        hint: str | None = None,
        error_type: type[LocatedError] = SpecError,
    ) -> LocatedError:
        """An error of ``error_type`` that points at the key."""
        position = self.position(key_path)
        return error_type(
            message,
            path=self.path,
            line=position.line if position else None,
            column=position.column if position else None,
            key=dotted(key_path) or None,
            hint=hint,
        )


def dotted(key_path: KeyPath) -> str:
    """The key path as a person writes it: "inputs.pixel_values.shape[0]"."""
    text = ""
    for key in key_path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def load_yaml(
    path: str | Path,
    *,
    error_type: type[LocatedError] = SpecError,
    max_bytes: int = MAX_FILE_BYTES,
    max_nodes: int = MAX_NODES,
) -> SourcedDocument:
    """The contents of a YAML file. The limits are for files that people write; programs may write larger.

    Raises:
        LocatedError: Of ``error_type``, when the file cannot be read, is empty, is not YAML, repeats a key,
            or holds something that plain data cannot.
    """
    text = read_text(path, error_type=error_type, max_bytes=max_bytes)
    return parse_yaml(text, str(path), error_type=error_type, max_nodes=max_nodes)


def load_json(path: str | Path, *, error_type: type[LocatedError] = SpecError) -> SourcedDocument:
    """The contents of a JSON file, without line numbers.

    Raises:
        LocatedError: Of ``error_type``, when the file cannot be read or is not JSON.
    """
    text = read_text(path, error_type=error_type)
    try:
        return SourcedDocument(data=json.loads(text), lines={}, path=str(path))
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg}"
        raise error_type(message, path=str(path), line=error.lineno, column=error.colno) from None
    except (RecursionError, ValueError) as error:
        raise error_type(f"not usable JSON: {error}", path=str(path)) from None


def parse_yaml(
    text: str, path: str, *, error_type: type[LocatedError] = SpecError, max_nodes: int = MAX_NODES
) -> SourcedDocument:
    """The data of YAML text; ``path`` is for messages only. See `load_yaml`."""
    builder = _Builder(path=path, error_type=error_type, max_nodes=max_nodes)
    try:
        root = yaml.compose(text, Loader=_Loader)
        if root is None:
            raise error_type("the file is empty", path=path)
        data = builder.build(root, ())
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, path, error_type) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise error_type(f"not valid YAML: {error.reason}", path=path, line=line) from None
    except RecursionError:
        raise error_type("nested too deeply", path=path) from None
    return SourcedDocument(data=data, lines=builder.lines, path=path)


def _syntax_error(error: yaml.MarkedYAMLError, text: str, path: str, error_type: type[LocatedError]) -> LocatedError:
    mark = error.problem_mark or error.context_mark
    message = "not valid YAML: " + ", ".join(part for part in (error.context, error.problem) if part)
    lines = text.splitlines()
    bad_line = lines[mark.line] if mark and mark.line < len(lines) else ""
    return error_type(
        message,
        path=path,
        line=mark.line + 1 if mark else None,
        column=mark.column + 1 if mark else None,
        hint="indent with spaces, not tabs" if bad_line.startswith("\t") else None,
    )


class _Loader(_BaseLoader):
    """The safe loader, with numbers such as 1e-5 read as numbers and dates left as text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# YAML 1.1 wants a dot and a sign in the exponent, so that it reads "1e-5" and "1.5e9" as text.
# The dumper below has the same resolver, so that the text "1e5" gets its quotes.
FLOAT_RESOLVER = (
    _TAG_PREFIX + "float",
    re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver(*FLOAT_RESOLVER)


class FlowMapping(dict[str, Any]):
    """A mapping that `format_yaml` writes on one line."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver(*FLOAT_RESOLVER)
_Dumper.add_representer(
    FlowMapping,
    lambda dumper, data: dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=True),
)


def format_yaml(data: object, *, width: int) -> str:
    """Plain data as YAML that `load_yaml` reads back as the same, keys in their order; lines wrap at the width."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=width, allow_unicode=True)


@dataclass(slots=True, kw_only=True)
class _Builder:
    """Turns YAML nodes into data, recording positions and counting nodes on the way."""

    path: str
    error_type: type[LocatedError]
    max_nodes: int
    lines: dict[KeyPath, SourcePosition] = field(default_factory=dict)
    node_count: int = 0
    # One for each document: it holds every node that it has seen, which a service would not survive.
    scalars: yaml.constructor.SafeConstructor = field(default_factory=yaml.constructor.SafeConstructor)

    def build(self, node: yaml.Node, key_path: KeyPath) -> object:
        self.lines.setdefault(key_path, _position(node))
        self.node_count += 1
        if self.node_count > self.max_nodes:
            raise self.error(f"more than {self.max_nodes:,} values once its aliases are expanded", node, key_path)
        if len(key_path) > MAX_DEPTH:  # also where an alias that contains itself ends
            raise self.error(f"nested more than {MAX_DEPTH} levels deep", node, key_path[:3])
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG_PREFIX + "map":
            return self.build_mapping(node, key_path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG_PREFIX + "seq":
            return [self.build(item, (*key_path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALAR_TAGS:
            return self.build_scalar(node, key_path)
        shown = node.tag.replace(_TAG_PREFIX, "!!")
        raise self.error(f"the tag {shown} is not allowed; only plain values are", node, key_path)

    def build_mapping(self, node: yaml.MappingNode, key_path: KeyPath) -> dict[str, object]:
        data: dict[str, object] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE_TAG:
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.error("expected a text key, found a list or mapping", key_node, key_path)
            key = key_node.value
            if key in data:
                first_line = self.lines[(*key_path, key)].line
                raise self.error(f"this key was already given on line {first_line}", key_node, (*key_path, key))
            self.lines.setdefault((*key_path, key), _position(key_node))
            data[key] = self.build(value_node, (*key_path, key))
        for source in merged:  # "<<: *defaults": the mapping's own keys win, then those of earlier sources
            if not isinstance(source, yaml.MappingNode):
                raise self.error("expected a mapping after <<", source, key_path)
            data = {**cast(dict[str, object], self.build(source, key_path)), **data}
        return data

    def build_scalar(self, node: yaml.ScalarNode, key_path: KeyPath) -> object:
        if node.tag in _NUMBER_TAGS and ":" in node.value:
            return node.value
        try:
            value = self.scalars.construct_object(node)
            str(value)  # fails where messages about it would: hexadecimal is read at any length
            return cast(object, value)
        except (ValueError, OverflowError, KeyError):
            # An explicit tag that does not fit ("!!int x"), or more digits than Python reads.
            shown = node.value if len(node.value) <= 40 else node.value[:39] + "…"
            kind = node.tag.removeprefix(_TAG_PREFIX)
            raise self.error(f"cannot read {shown!r} as {kind}", node, key_path) from None

    def error(self, message: str, node: yaml.Node, key_path: KeyPath) -> LocatedError:
        position = _position(node)
        return self.error_type(
            message, path=self.path, line=position.line, column=position.column, key=dotted(key_path) or None
        )


def _position(node: yaml.Node) -> SourcePosition:
    return SourcePosition(line=node.start_mark.line + 1, column=node.start_mark.column + 1)
