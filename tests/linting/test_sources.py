import json
import math
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from planner.configs.tree import Document, Scalar, SourceFormat, plain
from planner.linting.sources import MAX_FILE_BYTES, SourceError, decode, parse
from planner.linting.sources.shell import MAX_CHARACTERS
from tests.linting.generated import entries, is_block_text, json_texts, reads_as, toml_texts, yaml_texts

YAML, JSON, TOML, SHELL = SourceFormat.YAML, SourceFormat.JSON, SourceFormat.TOML, SourceFormat.SHELL


def comments(text: str, source_format: SourceFormat) -> list[tuple[str, bool]]:
    return [(comment.text, comment.alone) for comment in parse(text, "x", source_format).comments]


def error(text: str, source_format: SourceFormat) -> tuple[str, int | None]:
    with pytest.raises(SourceError) as caught:
        parse(text, "x", source_format)
    return caught.value.message, caught.value.offset


def check_places(document: Document) -> None:
    for entry in entries(document.root):
        assert entry.key == reads_as(document, entry.key_start, entry.key_end, is_key=True)
        value = entry.value
        if isinstance(value, Scalar) and value.start < value.end and not is_block_text(document, value):
            assert value.value == reads_as(document, value.start, value.end)


# What is read is what the format's own reader reads.


@given(yaml_texts())
def test_a_yaml_document_has_the_data_that_pyyaml_reads_and_its_places(case: tuple[Any, str]) -> None:
    data, text = case
    document = parse(text, "x", YAML)
    assert data == plain(document.root) == yaml.safe_load(text)
    check_places(document)


@given(json_texts())
def test_a_json_document_has_the_data_that_json_reads_and_its_places(case: tuple[Any, str]) -> None:
    data, text = case
    document = parse(text, "x", JSON)
    assert data == plain(document.root) == json.loads(text)
    check_places(document)


@given(toml_texts())
def test_a_toml_document_has_the_data_that_tomllib_reads_and_its_places(case: tuple[Any, str]) -> None:
    data, text = case
    document = parse(text, "x", TOML)
    assert data == plain(document.root) == tomllib.loads(text)
    check_places(document)


SNIPPETS = {
    YAML: ["a: 1\n", "- ", "  ", "? x\n", ": ", "&a ", "*a", "<<: ", "|\n", ">-\n", "!!str ", "!x ", "{", "}", "[", "]", ",",
           "'", '"', "\\", "# c\n", "---\n", "...\n", "\t", "\r\n", "%YAML 1.1\n", "\x00", "\ufeff", "\x85", "\u2028", "1e5"],
    JSON: ['{"a": 1', "}", "[", "]", ",", ":", '"', "\\", "\\u12", "// c\n", "# c\n", "/*", "*/", "1e5", "-", "nan", "NaN",
           "true", "\n", "\x00", "\ufeff", "\x1f"],
    TOML: ["a = 1\n", "[a]\n", "[[a]]\n", "a.b = ", '"""', "'''", '"', "'", "{", "}", "[", "]", ",", "=", "# c\n", "\\", "\n",
           "1979-05-27", "07:32:00", "\r\n", "\x00", "\ufeff", "inf", "0x1F", "\\U0001F600"],
    SHELL: ["--a 1 ", "-b", "X=", "A=(", ")", "(", "$X", "${X", "}", "${X:-", "$(", "`", "'", '"', "\\", "\\\n", "\n", "; ",
            " && ", "||", "|", "<<EOF\n", "EOF\n", "if ", "then ", "fi\n", "for i in ", "do ", "done\n", "case ", " in ",
            "esac\n", ";;", "{ ", "f() ", "[[ ", "]]", "((", "))", "# c\n", "export ", "torchrun ", "python ", "x.py ", "eval ",
            "bash -c ", "+=", "=", "$@", "${A[@]}", "\x00", "\ufeff", "a.b=1 ", "local ", "<", ">", "&"],
}  # fmt: skip


def check_read_or_refused(text: str, source_format: SourceFormat) -> None:
    try:
        document = parse(text, "x", source_format)
    except SourceError as refused:
        assert refused.offset is None or 0 <= refused.offset <= len(text)
        return
    plain(document.root)
    for entry in entries(document.root) if source_format is not YAML else ():
        assert 0 <= entry.key_start <= entry.key_end <= len(text)
        assert 0 <= entry.value.start <= entry.value.end <= len(text)
    for comment in document.comments:
        assert text.startswith(comment.text, comment.start)


@pytest.mark.parametrize("source_format", SourceFormat)
@given(data=st.data())
@settings(max_examples=200)
def test_any_text_is_read_or_refused_with_a_place(source_format: SourceFormat, data: st.DataObject) -> None:
    pieces = st.lists(st.sampled_from(SNIPPETS[source_format]) | st.text(max_size=3), max_size=30)
    check_read_or_refused("".join(data.draw(pieces)), source_format)


@given(st.binary(max_size=40), st.sampled_from(SourceFormat))
def test_any_bytes_are_read_or_refused_with_a_place(data: bytes, source_format: SourceFormat) -> None:
    try:
        text = decode(data)
    except SourceError as refused:
        assert refused.offset is not None
        return
    check_read_or_refused(text, source_format)


@pytest.mark.parametrize("source_format", SourceFormat)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_with_a_place(source_format: SourceFormat, data: st.DataObject) -> None:
    whole = {YAML: "a: &x {b: 1}\nc:\n  <<: *x\n  d: |\n    e\n", JSON: '{"a": [1, "x"], // c\n "b": {"c": null}}',
             TOML: 'a = 1\n[b.c]\nd = """x"""\n[[e]]\nf = {g = [1]}\n',
             SHELL: 'A=(--x 1)\nif [ $1 ]; then A+=(--y "$Z"); fi\ntorchrun --n 8 t.py "${A[@]}" | tee l\n'}[source_format]  # fmt: skip
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    check_read_or_refused(whole[:start] + data.draw(st.text(max_size=2)) + whole[end:], source_format)


# Files that mean harm.

HARMFUL = {
    "a yaml bomb": (YAML, "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"b{i}: &b{i} [{', '.join([f'*b{i - 1}' if i else '*a'] * 9)}]\n" for i in range(20))),
    "a bomb of merge keys": (YAML, "a0: &a0 {x: 1}\n" + "".join(
        f"a{i + 1}: &a{i + 1} {{<<: [*a{i}, *a{i}, *a{i}]}}\n" for i in range(40))),
    "an alias of what it is in": (YAML, "a: &a\n  b: *a\n"),
    "a merge of itself": (YAML, "a: &a\n  <<: *a\n"),
    "deep flow": (YAML, "[" * 10_000), "deep blocks": (YAML, "- " * 10_000 + "x"), "deep keys": (YAML, "? " * 10_000),
    "a python tag": (YAML, "a: !!python/object/apply:os.system [ls]\n"),
    "deep json": (JSON, "[" * 10_000), "deep json objects": (JSON, '{"a":' * 10_000),
    "deep toml": (TOML, "a = " + "[" * 10_000), "deep toml keys": (TOML, ".".join("a" * 10_000) + " = 1"),
    "deep toml tables": (TOML, "[" + ".".join("a" * 10_000) + "]"),
    "deep inline tables": (TOML, "a = " + "{a=" * 10_000),
    "variables that double": (SHELL, "A=--xxxxxxxx\n" + 'A="$A $A"\n' * 60 + "python x.py $A\n"),
    "arrays that double": (SHELL, "A=('' '')\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60 + 'python x.py --a "${A[@]}"\n'),
    "deep substitutions": (SHELL, '"${A:-' * 10_000), "deep groups": (SHELL, "{ " * 10_000),
    "deep conditions": (SHELL, "if x; then " * 10_000), "deep subshells": (SHELL, "( " * 10_000),
    "nul": (YAML, "a: \x00"), "half a pair": (JSON, '"\ud800"'), "50 MB": (YAML, "a" * 50_000_000),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMFUL)
def test_a_harmful_file_is_refused(name: str) -> None:
    source_format, text = HARMFUL[name]
    with pytest.raises(SourceError):
        parse(text, "x", source_format)


# As large as a file may be: what takes more than linear time takes minutes on these.
LONG = {
    "entries": (YAML, "a: 1\n"), "items": (YAML, "- a\n"), "anchors": (YAML, "- &a x\n"), "comments": (YAML, "# x\n"),
    "hashes": (YAML, "# "), "quotes": (YAML, "'a' "), "blocks": (YAML, "- |\n  # x\n"), "merges": (YAML, "<<: {}\n"),
    "json comments": (JSON, "/**/ "), "json strings": (JSON, '"a",'), "escapes": (JSON, "\\n"), "json items": (JSON, "1,"),
    "toml entries": (TOML, "a.b = 1\n"), "toml tables": (TOML, "[[a]]\n"), "toml comments": (TOML, "# x\n"),
    "commands": (SHELL, "a --b\n"), "arguments": (SHELL, "--a 1 "), "exports": (SHELL, "export A=1; a --b\n"),
    "shells": (SHELL, "bash -x "), "evals": (SHELL, "eval "), "chains": (SHELL, "a && "), "pipes": (SHELL, "a | "),
    "indexes": (SHELL, "${a["), "closed indexes": (SHELL, "${a[}"), "assignments": (SHELL, "a[;"),
    "heredocs": (SHELL, "$(<<a)"), "open heredocs": (SHELL, "cat <<A\n"), "quoted": (SHELL, "'a'"), "backslashes": (SHELL, "\\"),
    "conditions": (SHELL, "if a; then A=$A; fi\n"), "functions": (SHELL, "f() { A=1; }\n"), "loops": (SHELL, "for i in a; do A=1; done\n"),
    "appends": (SHELL, "A+=(--a 1)\n"), "uses": (SHELL, "A=1;a --b $A\n"), "digits": (SHELL, "1"), "words": (SHELL, "a"),
    "nothing": (SHELL, "time "), "cases": (SHELL, "case a in b) ;; esac\n"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_the_largest_file_is_read_or_refused_in_seconds(name: str) -> None:
    source_format, unit = LONG[name]
    most = MAX_CHARACTERS if source_format is SHELL else MAX_FILE_BYTES
    start = time.process_time()
    check_read_or_refused((unit * most)[:most], source_format)
    seconds = time.process_time() - start
    assert seconds < 20  # 2 on an idle machine: this tells linear time from more
