"""Documents for property tests: data, and the texts that say it in each format in some style or other."""

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml
from hypothesis import strategies as st

from planner.configs.config import Setting
from planner.configs.tree import Document, Entry, Mapping, Node, Scalar, Sequence, SourceFormat

NAMES = st.one_of(
    st.sampled_from(
        ["a", "b", "c", "lr", "fsdp_config", "batch-size", "x.y", "on", "1", "a b", "#", "k: v", "é", "'q'"]
    ),
    st.text(max_size=6).filter(lambda text: text.isprintable()),
)
# Text that YAML 1.1 takes for text and we take for a number, or the other way round, is left to tests of its own.
TEXTS = st.one_of(
    st.sampled_from(
        ["", "true", "null", "no", "bf16", "a # b", "a: b", "- x", "[x", "'", '"', "\\", "*a", "&a", "x\ny\n"]
    ),
    st.text(max_size=8).filter(lambda text: text.isprintable() and not any(c.isdigit() for c in text)),
)
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.booleans(), st.integers(-(2**40), 2**40), st.sampled_from([0.5, -1.25, 1e-05, 3e8, 1e22]), TEXTS
)
PLAIN_NAMES = st.sampled_from(["a", "b", "lr", "fsdp_config", "batch_size"])


def values(names: st.SearchStrategy[str], scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=8,
    )


def configs(names: st.SearchStrategy[str], scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(names, values(names, scalars), min_size=1, max_size=5)


VALUES = values(NAMES, SCALARS | st.none())
TOML_VALUES = values(NAMES, SCALARS)


@st.composite
def yaml_texts(draw: st.DrawFn, names: st.SearchStrategy[str] = NAMES) -> tuple[Any, str]:
    data = draw(configs(names, SCALARS | st.none()))
    text = yaml.safe_dump(
        data,
        default_flow_style=draw(st.sampled_from([False, None, True])),
        indent=draw(st.sampled_from([None, 2, 4])),
        default_style=draw(st.sampled_from([None, None, '"', "'", "|"])),
        allow_unicode=True,
        width=draw(st.sampled_from([20, 200])),
        line_break=draw(st.sampled_from(["\n", "\n", "\r\n"])),
    )
    return data, text


@st.composite
def json_texts(draw: st.DrawFn, names: st.SearchStrategy[str] = NAMES) -> tuple[Any, str]:
    data = draw(configs(names, SCALARS | st.none()))
    text = json.dumps(data, indent=draw(st.sampled_from([None, 0, 2])), ensure_ascii=draw(st.booleans()))
    return data, draw(st.sampled_from(["", "\n", " "])) + text


@st.composite
def toml_texts(draw: st.DrawFn) -> tuple[Any, str]:
    data = draw(configs(NAMES, SCALARS))
    return data, "".join(_toml_table(draw, data, ()))


def _toml_table(draw: st.DrawFn, table: dict[str, Any], outer: tuple[str, ...]) -> Iterator[str]:
    tables = [key for key, value in table.items() if isinstance(value, dict) and draw(st.booleans())]
    for key, value in table.items():
        if key not in tables:
            comment = draw(st.sampled_from(["", "", "  # note", " # a = 1"]))
            yield f"{draw(st.sampled_from(['', '  ']))}{_toml_value(key)} = {_toml_value(value)}{comment}\n"
    for key in tables:
        path = (*outer, _toml_value(key))
        yield f"\n[{'.'.join(path)}]  # table\n"
        yield from _toml_table(draw, table[key], path)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_value(key)} = {_toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def entries(node: Node) -> Iterator[Entry]:
    """Every entry of a tree without shared nodes."""
    if isinstance(node, Mapping):
        for entry in node.entries:
            yield entry
            yield from entries(entry.value)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from entries(item)


def reads_as(document: Document, start: int, end: int, *, is_key: bool = False) -> object:
    """What a stretch of a document says by itself."""
    text = document.text[start:end]
    if document.format is SourceFormat.JSON:
        return json.loads(text)
    if document.format is SourceFormat.TOML:
        return next(iter(tomllib.loads(f"{text} = 1"))) if is_key else tomllib.loads(f"x = {text}")["x"]
    return yaml.load(text, yaml.BaseLoader if is_key else yaml.SafeLoader)


def setting(document: Document, entry: Entry) -> Setting:
    return Setting(key=entry.key, document=document, entry=entry)


def is_block_text(document: Document, node: Node) -> bool:
    return isinstance(node, Scalar) and document.text[node.start : node.start + 1] in ("|", ">")
