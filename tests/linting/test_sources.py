import json
import time
import tomllib
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
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
    YAML: ["a: 1\n", "- ", "  ", "? x\n", ": ", "&a ", "*a", "<<: ", "|\n", ">-\n", "!!str ", "!x ", "{", "}", "[",
    "]", ",",
           "'", '"', "\\", "# c\n", "---\n", "...\n", "\t", "\r\n", "%YAML 1.1\n", "\x00", "\ufeff", "\x85", "\u2028",
           "1e5"],
    JSON: ['{"a": 1', "}", "[", "]", ",", ":", '"', "\\", "\\u12", "// c\n", "# c\n", "/*", "*/", "1e5", "-", "nan",
    "NaN",
           "true", "\n", "\x00", "\ufeff", "\x1f"],
    TOML: ["a = 1\n", "[a]\n", "[[a]]\n", "a.b = ", '"""', "'''", '"', "'", "{", "}", "[", "]", ",", "=", "# c\n",
    "\\", "\n",
           "1979-05-27", "07:32:00", "\r\n", "\x00", "\ufeff", "inf", "0x1F", "\\U0001F600"],
    SHELL: ["--a 1 ", "-b", "X=", "A=(", ")", "(", "$X", "${X", "}", "${X:-", "$(", "`", "'", '"', "\\", "\\\n", "\n",
    "; ",
            " && ", "||", "|", "<<EOF\n", "EOF\n", "if ", "then ", "fi\n", "for i in ", "do ", "done\n", "case ",
            " in ",
            "esac\n", ";;", "{ ", "f() ", "[[ ", "]]", "((", "))", "# c\n", "export ", "torchrun ", "python ",
            "x.py ", "eval ",
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


WHOLE = {
    YAML: "a: &x {b: 1}\nc:\n  <<: *x\n  d: |\n    e\n",
    JSON: '{"a": [1, "x"], // c\n "b": {"c": null}}',
    TOML: 'a = 1\n[b.c]\nd = """x"""\n[[e]]\nf = {g = [1]}\n',
    SHELL: 'A=(--x 1)\nif [ $1 ]; then A+=(--y "$Z"); fi\ntorchrun --n 8 t.py "${A[@]}" | tee l\n',
}


@pytest.mark.parametrize("source_format", SourceFormat)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_with_a_place(source_format: SourceFormat, data: st.DataObject) -> None:
    whole = WHOLE[source_format]
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
    "deepest toml keys": (TOML, "a." * 400_000 + "a = 1"),
    "deep keys inline": (TOML, "a = {" + "'a' . " * 100_000 + "a = 1}"),
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
    "json comments": (JSON, "/**/ "), "json strings": (JSON, '"a",'), "json items": (JSON,
    "1,"),
    "json escapes": (JSON, "\\n"), "toml items": (TOML, "1,"), "toml strings": (TOML, "\\n"),
    "toml entries": (TOML, "a.b = 1\n"), "toml tables": (TOML, "[[a]]\n"), "toml comments": (TOML, "# x\n"),
    "commands": (SHELL, "a --b\n"), "arguments": (SHELL, "--a 1 "), "exports": (SHELL, "export A=1; a --b\n"),
    "shells": (SHELL, "bash -x "), "evals": (SHELL, "eval "), "chains": (SHELL, "a && "), "pipes": (SHELL, "a | "),
    "indexes": (SHELL, "${a["), "closed indexes": (SHELL, "${a[}"), "assignments": (SHELL, "a[;"),
    "heredocs": (SHELL, "$(<<a)"), "open heredocs": (SHELL, "cat <<A\n"), "quoted": (SHELL, "'a'"),
    "backslashes": (SHELL, "\\"),
    "conditions": (SHELL, "if a; then A=$A; fi\n"), "functions": (SHELL, "f() { A=1; }\n"), "loops": (SHELL,
    "for i in a; do A=1; done\n"),
    "appends": (SHELL, "A+=(--a 1)\n"), "uses": (SHELL, "A=1;a --b $A\n"), "digits": (SHELL, "1"), "words": (SHELL,
    "a"),
    "nothing": (SHELL, "time "), "cases": (SHELL, "case a in b) ;; esac\n"),
}  # fmt: skip


OPENING = {"json strings": "[", "json items": "[", "json escapes": '"', "toml items": "a = [", "toml strings": 'a = "'}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_the_largest_file_is_read_or_refused_in_seconds(name: str) -> None:
    source_format, unit = LONG[name]
    most = MAX_CHARACTERS if source_format is SHELL else MAX_FILE_BYTES
    start = time.process_time()
    check_read_or_refused((OPENING.get(name, "") + unit * most)[:most], source_format)
    seconds = time.process_time() - start
    assert seconds < 20  # 2 on an idle machine: this tells linear time from more


# Comments, from which suppressions are read.


def test_a_hash_in_quotes_or_in_a_block_of_text_is_no_comment() -> None:
    # In YAML, comments are read where one names the planner.
    text = (
        "\ufeff# planner: x\na: 'x # y'  # 1\nb: |  # 2\n  # no\n  x\n # 3\nc#: d#e\nd: >-\n  # planner: no\n"
        "e: [x, '#', # 4\n y]\n---\n# planner: of the next document\n"
    )
    expected = [("# planner: x", True), ("# 1", False), ("# 2", False), ("# 3", True), ("# 4", False)]
    assert expected == comments(text, YAML)
    assert [("# 1", False), ("# planner:", True)] == comments('a: "x\r\n  # no"  # 1\r\n# planner:\r\n', YAML)
    assert [("// 1", True), ("/* # */", False), ("# 2", False)] == comments(
        '// 1\n{"a//": "#", /* # */ "b": 1 # 2\n}', JSON
    )
    assert [("# 1", True), ("# 2", False)] == comments('# 1\na = """\n# no\n""" # 2\nb = \'#\'\n', TOML)
    assert [("#!/bin/bash", True), ("# 1", False), ("# 2", True)] == comments(
        "#!/bin/bash\na '#' x#y \\\n --b $# ${#c} # 1\nA=(\n  # 2\n)\ncat <<E\n# no\nE\n", SHELL
    )


# What is refused, and where.


@pytest.mark.parametrize(
    ("source_format", "text", "message", "offset"),
    [
        (
            YAML,
            "a:\n\tb: 1",
            "not valid YAML: while scanning for the next token, found character that cannot start any token",
            3,
        ),
        (YAML, "a: !!python/name:x y", "the tag !!python/name:x is not allowed; only plain values are", 3),
        (YAML, "é: \x07", "not valid YAML: control characters are not allowed", 3),
        (YAML, "[a] b", "not valid YAML: did not find expected <document start>", 4),
        (YAML, "b:\n  <<: [1]", "not valid YAML: expected a mapping or a list of mappings after <<", 5),
        (YAML, "[a]: 1", "expected a text key, found a list or mapping", 0),
        (JSON, '{"a": 1 "b": 2}', "not valid JSON: expected ',' or '}', found '\"b\": 2}'", 8),
        (JSON, "{a: 1}", "not valid JSON: expected a key in double quotes, found 'a: 1}'", 1),
        (JSON, '["\\x"]', "not valid JSON: Invalid \\escape", 2),
        (JSON, '["a\nb"]', "not valid JSON: text that is not closed on its line", 1),
        (JSON, "", "not valid JSON: expected a value", 0),
        (TOML, "a = 1\r\nb = ", "not valid TOML: invalid value", 11),
        (TOML, "a = 1\na = 2\n", "not valid TOML: cannot overwrite a value", 11),
        (SHELL, "a\nb --c 'x", "not a valid shell script: a quote that is never closed", 8),
        (YAML, "a\x00", "the character U+0000, which no text has", 1),
    ],
)
def test_a_file_that_is_not_well_formed_is_refused_at_its_place(
    source_format: SourceFormat, text: str, message: str, offset: int
) -> None:
    assert (message, offset) == error(text, source_format)


def test_bytes_that_are_not_utf_8_are_refused_at_their_place() -> None:
    with pytest.raises(SourceError) as caught:
        decode("é: ".encode() + b"\xff")
    assert (caught.value.message, caught.value.offset) == ("not UTF-8: the byte 0xFF, invalid start byte", 3)
    assert "\ufeffa\r\n" == decode(b"\xef\xbb\xbfa\r\n")


# Where we depart from the formats' own readers.


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-5", 1e-05), ("1e5", 1e5), ("1:30", "1:30"), ("2001-01-01", "2001-01-01"), ("08", "08"), ("010", 8),
     ("0x1F", 31), ("1_000", 1000), ("-.inf", float("-inf")), ("._", "._"), ("-._", "-._"), ("0x_", "0x_"),
     ("yes", True), ("Off", False), ("~", None), ("", None), ("=", "="), ("!!str 1", "1"),
     ('!!int "3"', 3), ("! 1", "1"),
     ("9" * 301, "9" * 301)],
)  # fmt: skip
def test_a_plain_yaml_scalar_means_what_frameworks_take_it_for(written: str, value: object) -> None:
    document = parse(f"on: {written}\n", "x", YAML)
    assert {"on": value} == plain(document.root)


def test_repeated_keys_are_kept_and_the_last_one_counts() -> None:
    for text, source_format in (("a: 1\nb: 2\na: 3\n", YAML), ('{"a": 1, "b": 2, "a": 3}', JSON)):
        document = parse(text, "x", source_format)
        assert ["a", "b", "a"] == [entry.key for entry in entries(document.root)]
        assert {"a": 3, "b": 2} == plain(document.root)


@pytest.mark.parametrize(
    "text",
    [
        "x: &x {a: 1, b: 1}\ny: &y {a: 2, c: 2}\nz:\n  <<: [*x, *y]\n  c: 3\n",
        "x: &x {a: 1}\ny: &y\n  <<: *x\n  b: 2\nz:\n  c: 3\n  <<: *y\n",
        "x:\n  <<: []\n  a: 1\n",
    ],
)
def test_merge_keys_win_as_pyyaml_lets_them(text: str) -> None:
    assert yaml.safe_load(text) == plain(parse(text, "x", YAML).root)


def test_json_may_have_comments_and_commas_at_the_end() -> None:
    document = parse('// a\n{"a": [1, 2, /* b */], # c\n "d": NaN,}\n', "x", JSON)
    assert "{'a': [1, 2], 'd': nan}" == str(plain(document.root))


def test_half_a_pair_in_a_json_escape_is_replaced() -> None:
    assert ["\ufffd", "\U0001f600"] == plain(parse('["\\ud800", "\\ud83d\\ude00"]', "x", JSON).root)


def test_dates_in_toml_are_the_text_that_was_written() -> None:
    document = parse("a = 1979-05-27 07:32:00Z\nb = [07:32:00.5]\n[t.'x y']\n[[t.\"z\"]]\nu=1\n[t]\nv.w=2", "x", TOML)
    assert {
        "a": "1979-05-27 07:32:00Z",
        "b": ["07:32:00.5"],
        "t": {"x y": {}, "z": [{"u": 1}], "v": {"w": 2}},
    } == plain(document.root)
