"""Whatever a file holds, a run ends with findings, a skip or one line, and every format can say so."""

import json
import os
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.diagnostics import FixSafety
from planner.linting.run import LintRun, Request, lint_content
from planner.reporting.lint import FORMATS, render

CONFIGS = (
    (
        "train.yaml",
        "base_model: m\ndatasets:\n  - path: d\nmicro_batch_siz: 1\nactivation_offloading: yes # planner: ignore[X]\n",
    ),
    (
        "ds.json",
        '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "stage": 9}, "gradient_cliping": 1}\n',
    ),
    (
        "titan.toml",
        '[job]\ndump_folder = "x"\n[training]\nseq_len = 1\n[activation_checkpoint]\nmode = "ful"\n',
    ),
    ("run.sh", "axolotl train c.yaml --micro-batch-size 2 \\\n  --unknown 'x'\nvllm serve m --max-model-len $LEN\n"),
)
JUNK = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    [
        "\n",
        "\t",
        "\r\n",
        "\ufeff",
        "\x85",
        "\u2028",
        "\x1b[31m",
        "&a ",
        "*a",
        "<<: ",
        "- ",
        "{",
        "]",
        '"',
        "'",
        "#",
        "${x}",
        "\\",
        "$(",
    ]
)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes]:
    """A config with pieces of it replaced by anything."""
    name, text = draw(st.sampled_from(CONFIGS))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + draw(JUNK) + text[end:]
    return name, text.encode()


def check(run: LintRun) -> None:
    for finding in run.findings:
        document = finding.report.place.document
        assert 0 <= finding.report.place.start <= finding.report.place.end <= len(document.text)
    for error in run.unreadable:
        assert "\n" not in str(error)
    for name in FORMATS:
        text = render(run, name)
        if name in ("json", "sarif", "gitlab"):
            json.loads(text)
        elif name == "junit":
            ElementTree.fromstring(text)
        elif name in ("concise", "github"):
            lines = text.splitlines()
            expected = len(run.findings) + (len(run.unreadable) if name == "github" else 0)
            assert expected == len(lines)


@given(files())
def test_a_config_that_anything_happened_to_is_checked_or_refused(file: tuple[str, bytes]) -> None:
    name, content = file
    check(lint_content(content, name, Request(is_isolated=True)))


@given(files())
def test_fixing_it_is_done_at_once(file: tuple[str, bytes]) -> None:
    name, content = file
    run = lint_content(content, name, Request(is_isolated=True, fix=FixSafety.UNSAFE))
    check(run)
    for change in run.changes:
        again = lint_content(change.after.encode(), name, Request(is_isolated=True, fix=FixSafety.UNSAFE))
        assert () == again.changes


@pytest.mark.parametrize("name", [name for name, _ in CONFIGS])
@given(content=st.binary(max_size=200))
@settings(max_examples=50)
def test_any_bytes_are_checked_or_refused(name: str, content: bytes) -> None:
    check(lint_content(content, name, Request(is_isolated=True)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), CONFIGS, ids=[name for name, _ in CONFIGS])
def test_every_beginning_of_a_config_is_checked_or_refused(name: str, text: str) -> None:
    for end in range(len(text)):
        check(lint_content(text[:end].encode(), os.path.join("a", name), Request(is_isolated=True)))
