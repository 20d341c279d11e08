import copy
import json
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.configs.config import Setting
from planner.configs.edits import insert_sibling, remove, rename_key, set_value
from planner.configs.tree import Document, Mapping, Node, Sequence, SourceFormat, plain
from planner.diagnostics import Edit
from planner.linting.fixing import apply_edits
from planner.linting.sources import parse
from tests.linting.generated import NAMES, PLAIN_NAMES, SCALARS, TOML_VALUES, VALUES, json_texts, toml_texts, yaml_texts

YAML, JSON, TOML, SHELL = SourceFormat.YAML, SourceFormat.JSON, SourceFormat.TOML, SourceFormat.SHELL
LOAD: dict[SourceFormat, Callable[[str], Any]] = {YAML: yaml.safe_load, JSON: json.loads, TOML: tomllib.loads}
TEXTS = {YAML: yaml_texts(), JSON: json_texts(), TOML: toml_texts()}


def find(document: Document, key: str) -> Setting:
    """The setting with this key, the first in the file."""
    return next(setting for path, setting in all_settings(document) if path[-1] == key)


def all_settings(document: Document) -> list[tuple[tuple[Any, ...], Setting]]:
    """Every key with the path to it."""
    found: list[tuple[tuple[Any, ...], Setting]] = []

    def walk(node: Node, path: tuple[Any, ...]) -> None:
        if isinstance(node, Mapping):
            for entry in node.entries:
                found.append(((*path, entry.key), Setting(key=entry.key, document=document, entry=entry)))
                walk(entry.value, (*path, entry.key))
        elif isinstance(node, Sequence):
            for number, item in enumerate(node.items):
                walk(item, (*path, number))

    walk(document.root, ())
    return found


def edited(text: str, source_format: SourceFormat, key: str, edit: Callable[[Setting], tuple[Edit, ...]]) -> str:
    return apply_edits(text, edit(find(parse(text, "x", source_format), key)))


def renamed(text: str, source_format: SourceFormat, key: str, name: str) -> str:
    return edited(text, source_format, key, lambda setting: rename_key(setting, name))


def with_value(text: str, source_format: SourceFormat, key: str, value: object) -> str:
    return edited(text, source_format, key, lambda setting: set_value(setting, value))


def without(text: str, source_format: SourceFormat, key: str) -> str:
    return edited(text, source_format, key, remove)


def with_sibling(text: str, source_format: SourceFormat, key: str, new: str, value: object) -> str:
    return edited(text, source_format, key, lambda setting: insert_sibling(setting, new, value))


YAML_TEXT = """\
# head
base: 'x'  # the model
train:  # how
    lr: 1e-5   # small
    "steps": 10
    note: |  # text
        # no comment
        b

last: [1, 2]
sets:
- path: a  # first
  kind: b
- {path: c, kind: d}
"""


def test_a_key_is_renamed_in_the_quotes_it_has() -> None:
    assert YAML_TEXT.replace('"steps"', '"max_steps"') == renamed(YAML_TEXT, YAML, "steps", "max_steps")
    assert YAML_TEXT.replace("lr:", "learning_rate:") == renamed(YAML_TEXT, YAML, "lr", "learning_rate")
    assert YAML_TEXT.replace("{path", "{file") == edited(
        YAML_TEXT, YAML, "sets", lambda sets: rename_key(all_settings(sets.document)[-2][1], "file")
    )
    assert '{"b": 1}' == renamed('{"a": 1}', JSON, "a", "b")
    assert '[t]\n"b" = 1\nc = 2' == renamed('[t]\n"a" = 1\nc = 2', TOML, "a", "b")
    assert "[u] # x\na = 1" == renamed("[t] # x\na = 1", TOML, "t", "u")


def test_a_key_that_another_has_is_not_given_twice() -> None:
    assert "a: 1\nb: 2\n" == renamed("a: 1\nb: 2\n", YAML, "a", "b")


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("base", "y", "'x'", "'y'"),
        ("base", True, "'x'", "true"),
        ("lr", 1e-06, "1e-5", "1.0e-06"),
        ("lr", "auto", "1e-5", "auto"),
        ("lr", "a: b", "1e-5", '"a: b"'),
        ("lr", "no", "1e-5", '"no"'),
        ("steps", None, "10", "null"),
        ("steps", ["a", 1], "10", "[a, 1]"),
        ("note", "short", "|  # text\n        # no comment\n        b", "short  # text"),
        ("last", {"a": 1}, "[1, 2]", "{a: 1}"),
        ("sets", False, ":\n- path: a  # first\n  kind: b\n- {path: c, kind: d}\n", ": false\n"),
        ("train", "x", '  # how\n    lr: 1e-5   # small\n    "steps": 10\n    note: |  # text\n        # no comment\n'
         "        b\n", " x  # how\n"),
    ],
)  # fmt: skip
def test_a_yaml_value_is_replaced_and_all_else_stays(key: str, value: object, old: str, new: str) -> None:
    assert YAML_TEXT.replace(old, new, 1) == with_value(YAML_TEXT, YAML, key, value)


@pytest.mark.parametrize(
    ("key", "old"),
    [
        ("base", "base: 'x'  # the model\n"),
        ("lr", "    lr: 1e-5   # small\n"),
        ("note", "    note: |  # text\n        # no comment\n        b\n"),
        ("path", "path: a  # first\n  "),
        ("kind", "  kind: b\n"),
        ("last", "last: [1, 2]\n"),
    ],
)
def test_a_yaml_entry_goes_with_its_lines_and_its_comment(key: str, old: str) -> None:
    assert YAML_TEXT.replace(old, "", 1) == without(YAML_TEXT, YAML, key)


def test_the_last_entry_of_a_yaml_mapping_leaves_an_empty_one() -> None:
    assert "a:\n  {}  # x\nc: 1\n" == without("a:\n  b: 1  # x\nc: 1\n", YAML, "b")
    assert "- {}\n- 1\n" == without("- a: 1\n- 1\n", YAML, "a")
    assert "a: {}\n" == without("a: { b: 1 }\n", YAML, "b")


def test_a_comma_goes_with_an_entry_that_has_one() -> None:
    assert '{"b": 2}' == without('{"a": 1, "b": 2}', JSON, "a")
    assert '{"a": 1}' == without('{"a": 1, "b": 2}', JSON, "b")
    assert '{\n  "b": 2\n}' == without('{\n  "a": 1, // x\n  "b": 2\n}', JSON, "a")
    assert '{\n  "a": 1 // x\n}' == without('{\n  "a": 1, // x\n  "b": 2 // y\n}', JSON, "b")
    assert '{\n  "a": 1\n}' == without('{\n  "a": 1,\n  "b": {"c": 2}\n}', JSON, "b")
    assert "x = {b = 1} # c\n" == without("x = {a = 2, b = 1} # c\n", TOML, "a")
    assert "x = {a.d = 2, a.e = 1}\n" == without("x = {a.d = 2, a.e = 1}\n", TOML, "d")  # not known how: left alone


def test_a_toml_entry_goes_with_its_lines() -> None:
    assert "[t]\nc = 3\n" == without('[t]\na = """x\n# y\n""" # z\nc = 3\n', TOML, "a")
    assert "a.c = 1\n" == without("a.b = 1\na.c = 1\n", TOML, "b")


def test_a_new_entry_stands_below_and_looks_the_same() -> None:
    assert YAML_TEXT.replace("small\n", "small\n    decay: 0.1\n") == with_sibling(YAML_TEXT, YAML, "lr", "decay", 0.1)
    assert YAML_TEXT.replace("first\n", "first\n  x: z\n") == with_sibling(YAML_TEXT, YAML, "path", "x", "z")
    assert "a:\r\n- b\r\nc: true\r\n" == with_sibling("a:\r\n- b\r\n", YAML, "a", "c", True)
    assert "a: |\n  x\n\nb: 1\nc: 2\n" == with_sibling("a: |\n  x\n\nc: 2\n", YAML, "a", "b", 1)
    assert "a: 1\nb: 2" == with_sibling("a: 1", YAML, "a", "b", 2)
    assert '{"a": 1, "b": null}' == with_sibling('{"a": 1}', JSON, "a", "b", None)
    assert '{\n  "a":1, // x\n  "b":2,\n  "c":3\n}' == with_sibling('{\n  "a":1, // x\n  "c":3\n}', JSON, "a", "b", 2)
    assert '{\n  "a": 1, // x\n  "b": 2\n}' == with_sibling('{\n  "a": 1 // x\n}', JSON, "a", "b", 2)
    assert '[t]\na.x = 1 # c\na.y = "z"\n' == with_sibling("[t]\na.x = 1 # c\n", TOML, "x", "y", "z")


def test_what_others_refer_to_is_left_alone() -> None:
    text = "a: &x {b: 1}\nc: *x\n"
    assert text == with_value(text, YAML, "a", 1)
    assert text == without(text, YAML, "a")
    assert "a: &x {b: 1}\nc: 2\n" == with_value(text, YAML, "c", 2)
    assert "a: &x {b: 1}\n" == without(text, YAML, "c")


# Shell.

SCRIPT = """\
LR=1e-4
ARGS=(
    --lr $LR  # rate
    --fp16
)
MORE="--micro-batch-size 4 \\
  --split 9,1"
torchrun --nproc_per_node 8 train.py \\
    --seq-length=2048 \\
    --name 'a b' ${ARGS[@]} $MORE \\
    --list a b c \\
    --swiglu
"""


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("lr", 1e-05, "1e-4", "1e-05"),
        ("micro-batch-size", 8, "size 4", "size 8"),
        ("seq-length", 4096, "2048", "4096"),
        ("name", "c d", "'a b'", "'c d'"),
        ("name", "c", "'a b'", "'c'"),
        ("list", ["x", 1], "a b c", "x 1"),
        ("swiglu", False, "swiglu", "swiglu false"),
        ("swiglu", True, "", ""),
        ("split", "a b", "", ""),  # quotes there would be text
    ],
)
def test_a_flags_value_is_replaced_where_it_stands(key: str, value: object, old: str, new: str) -> None:
    assert SCRIPT.replace(old, new, 1) == with_value(SCRIPT, SHELL, key, value)


def test_a_flag_is_renamed_with_dashes_where_the_command_has_them() -> None:
    assert SCRIPT.replace("seq-length", "max-length") == renamed(SCRIPT, SHELL, "seq-length", "max_length")
    assert "swift sft --max_length 1" == renamed("swift sft --max 1", SHELL, "max", "max_length")
    assert "x --a-b 1 --max-length 1" == renamed("x --a-b 1 --max 1", SHELL, "max", "max_length")


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("lr", "    --lr $LR  # rate\n", ""),
        ("fp16", "    --fp16\n", ""),
        ("micro-batch-size", "--micro-batch-size 4 \\\n", "\\\n"),
        ("split", " \\\n  --split 9,1", ""),
        ("seq-length", "    --seq-length=2048 \\\n", ""),
        ("name", "    --name 'a b' ${", "    ${"),
        ("list", "    --list a b c \\\n", ""),
        ("swiglu", " \\\n    --swiglu", ""),
    ],
)
def test_a_flag_goes_with_its_values(key: str, old: str, new: str) -> None:
    assert SCRIPT.replace(old, new, 1) == without(SCRIPT, SHELL, key)


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("lr", "# rate\n", "# rate\n    --new-flag 1\n"),
        ("split", "9,1", "9,1 \\\n  --new-flag 1"),
        ("seq-length", "2048", "2048 \\\n    --new-flag 1"),
        ("name", "'a b'", "'a b' --new-flag 1"),
        ("swiglu", "--swiglu", "--swiglu \\\n    --new-flag 1"),
    ],
)
def test_a_new_flag_stands_after_another_one(key: str, old: str, new: str) -> None:
    assert SCRIPT.replace(old, new, 1) == with_sibling(SCRIPT, SHELL, key, "new_flag", 1)


def test_true_is_a_flag_alone_where_the_command_has_such() -> None:
    assert "x --a --b" == with_sibling("x --a", SHELL, "a", "b", True)
    assert "x --a 1 --b true" == with_sibling("x --a 1", SHELL, "a", "b", True)


# Properties: the data differ in that key only, the text only where it was edited, and there is nothing to edit twice.


@st.composite
def cases(draw: st.DrawFn, source_format: SourceFormat) -> tuple[str, tuple[Any, ...], Setting]:
    _, text = draw(TEXTS[source_format])
    document = parse(text, "x", source_format)
    path, setting = draw(st.sampled_from(all_settings(document)))
    return text, path, setting


def changed(data: Any, path: tuple[Any, ...], change: Callable[[dict[str, Any]], None]) -> Any:
    data = copy.deepcopy(data)
    at = data
    for part in path[:-1]:
        at = at[part]
    change(at)
    return data


def check(text: str, edits: tuple[Edit, ...], expected: Any, source_format: SourceFormat) -> Document:
    new = apply_edits(text, edits)
    document = parse(new, "x", source_format)
    assert expected == plain(document.root) == LOAD[source_format](new)
    return document


@pytest.mark.parametrize("source_format", [YAML, JSON, TOML])
@settings(max_examples=20)
@given(data=st.data())
def test_renaming_changes_the_key_alone(source_format: SourceFormat, data: st.DataObject) -> None:
    text, path, setting = data.draw(cases(source_format))
    name = data.draw(NAMES)
    edits = rename_key(setting, name)
    if not edits:
        return

    def change(at: dict[str, Any]) -> None:
        at[name] = at.pop(path[-1])

    document = check(text, edits, changed(LOAD[source_format](text), path, change), source_format)
    again = next(found for other, found in all_settings(document) if other == (*path[:-1], name))
    assert () == rename_key(again, name)


@pytest.mark.parametrize("source_format", [YAML, JSON, TOML])
@settings(max_examples=20)
@given(data=st.data())
def test_setting_changes_the_value_alone(source_format: SourceFormat, data: st.DataObject) -> None:
    text, path, setting = data.draw(cases(source_format))
    value = data.draw(TOML_VALUES if source_format is TOML else VALUES)
    edits = set_value(setting, value)
    if not edits:
        return

    def change(at: dict[str, Any]) -> None:
        at[path[-1]] = value

    document = check(text, edits, changed(LOAD[source_format](text), path, change), source_format)
    again = next(found for other, found in all_settings(document) if other == path)
    assert () == set_value(again, value) or isinstance(value, dict | list)


@pytest.mark.parametrize("source_format", [YAML, JSON, TOML])
@settings(max_examples=20)
@given(data=st.data())
def test_removing_takes_the_key_alone(source_format: SourceFormat, data: st.DataObject) -> None:
    text, path, setting = data.draw(cases(source_format))
    edits = remove(setting)
    if edits:
        check(text, edits, changed(LOAD[source_format](text), path, lambda at: at.pop(path[-1])), source_format)


@pytest.mark.parametrize("source_format", [YAML, JSON, TOML])
@settings(max_examples=20)
@given(data=st.data())
def test_inserting_adds_the_key_alone(source_format: SourceFormat, data: st.DataObject) -> None:
    text, path, setting = data.draw(cases(source_format))
    name, value = data.draw(NAMES), data.draw(SCALARS)
    edits = insert_sibling(setting, name, value)
    if not edits:
        return

    def change(at: dict[str, Any]) -> None:
        assert name not in at
        at[name] = value

    document = check(text, edits, changed(LOAD[source_format](text), path, change), source_format)
    again = next(found for other, found in all_settings(document) if other == path)
    assert () == insert_sibling(again, name, value)


def test_a_key_is_inserted_after_a_list_in_a_list() -> None:
    document = parse("a:\n  b:\n  - - 1\n  c: 2\n", "x", YAML)
    ((_, setting),) = [found for found in all_settings(document) if found[1].key == "b"]
    (edit,) = insert_sibling(setting, "new", 3)
    text = document.text[: edit.start] + edit.text + document.text[edit.end :]
    assert "a:\n  b:\n  - - 1\n  new: 3\n  c: 2\n" == text


@pytest.mark.parametrize("source_format", [YAML, JSON])
@settings(max_examples=20)
@given(data=st.data())
def test_ordinary_settings_can_all_be_edited(source_format: SourceFormat, data: st.DataObject) -> None:
    _, text = data.draw(yaml_texts(PLAIN_NAMES) if source_format is YAML else json_texts(PLAIN_NAMES))
    _, setting = data.draw(st.sampled_from(all_settings(parse(text, "x", source_format))))
    assert rename_key(setting, "quite_new")
    assert set_value(setting, "quite new")
    assert remove(setting)
    assert insert_sibling(setting, "quite_new", 1)


LAYOUTS = [
    "torchrun t.py --first 0 {flags}",
    "torchrun t.py {flags} --last 0\n",
    "torchrun t.py \\\n    {lines}\n",
    "torchrun t.py \\\n    --first 0 \\\n    {lines} \\\n    --last 0\necho done\n",
    "ARGS=(\n    {array}\n)\ntorchrun t.py --first 0 ${{ARGS[@]}} --last 0\n",
    'ARGS=(\n    --first 0  # note\n    {array})\ntorchrun t.py "${{ARGS[@]}}"\n',
    "ARGS=({flags})\ntorchrun t.py --first 0 ${{ARGS[@]}}\n",
    'ARGS="{flags}"\ntorchrun t.py --first 0 $ARGS\n',
    'ARGS="--first 0 \\\n  {lines}"\ntorchrun t.py $ARGS --last 0\n',
]
FLAGS = st.lists(
    st.tuples(st.sampled_from(["a", "b-c", "lr", "x_y"]), st.sampled_from([" 1", "=2", " a/b", "", " 1 2", " true"])),
    min_size=1,
    max_size=4,
    unique_by=lambda flag: flag[0],
)


def command(text: str) -> dict[str, Any]:
    found = plain(parse(text, "x", SHELL).root)
    assert isinstance(found, list)
    assert len(found) <= 1  # none where no flag is left
    return {key: value for settings in found for key, value in settings.items() if not key.startswith("$")}


@settings(max_examples=100)
@given(layout=st.sampled_from(LAYOUTS), flags=FLAGS, data=st.data())
def test_a_flag_is_edited_alone_in_every_layout(layout: str, flags: list[tuple[str, str]], data: st.DataObject) -> None:
    written = [f"--{key}{value}" for key, value in flags]
    text = layout.format(flags=" ".join(written), lines=" \\\n    ".join(written), array="\n    ".join(written))
    before = command(text)
    key, _ = data.draw(st.sampled_from(flags))
    setting = find(parse(text, "x", SHELL), key)
    rest = {other: value for other, value in before.items() if other != key}
    assert rest == command(apply_edits(text, remove(setting)))
    assert {**rest, "new": before[key]} == command(apply_edits(text, rename_key(setting, "new")))
    assert {**before, key: "z"} == command(apply_edits(text, set_value(setting, "z")))
    assert {**before, "new": 7} == command(apply_edits(text, insert_sibling(setting, "new", 7)))
