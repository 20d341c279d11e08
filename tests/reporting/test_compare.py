"""The table of techniques: cells, groups of row numbers, and the sentence at the end."""

import json
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ortools")

from planner.comparison import Comparison, Mechanism, Row, Skipped
from planner.reporting.compare import _ranges, compare_document, compare_text, recommendation
from planner.reporting.tables import WIDTH

GB = 10**9


def row(name: str, **changes: Any) -> Row:
    base = Row(
        name=name,
        changes=("checkpointing: block",),
        mechanism=Mechanism.TRACED,
        fits=True,
        peak_bytes=30 * GB,
        peak_at="backward, aten.mul.Tensor of head",
        saved_bytes=50 * GB,
        saved_share=0.8,
        step_s=1.1,
        recompute_s=0.2,
        stall_s=0.0,
    )
    return replace(base, **changes)


OWN = row("as it is", changes=(), fits=False, peak_bytes=80 * GB, saved_bytes=0, step_s=0.9, recompute_s=0.0)
CLOSED = row(
    "fused loss",
    mechanism=Mechanism.CLOSED_FORM,
    changes=("loss_kernel: fused",),
    step_s=None,
    recompute_s=None,
    stall_s=None,
    why_no_time="fused losses are not traced",
)
FOUND = Comparison(
    model="a model",
    device="a device",
    budget_bytes=40 * GB,
    static_bytes=20 * GB,
    rows_asked=4,
    own=OWN,
    alone=(row("every block"), CLOSED),
    skipped=(Skipped(name="offload all", why="no host budget"),),
    missing="it is not known",
    notes=("a note",),
)


def test_the_table_has_a_line_for_each_row_and_none_for_what_is_skipped() -> None:
    text = compare_text(FOUND)
    lines = [" ".join(line.split()) for line in text.splitlines()]

    assert "1 as it is no 80.00 – – 900 ms 0 ms 0 ms traced" in lines
    assert "2 every block yes 30.00 50.00 80% 1.10 s 200 ms 0 ms traced" in lines
    assert "3 fused loss yes 30.00 50.00 80% – – – closed" in lines
    assert not any(line.startswith("4 ") for line in lines)
    assert "No row for offload all: no host budget" in text
    assert "No times, since fused losses are not traced: 3" in text
    assert "Peak at backward, mul of head: 1–3" in text
    assert "fused losses: it is not known" in text
    assert "Note: a note" in text
    assert all(len(line) <= WIDTH for line in text.splitlines())


def test_the_recommendation_says_what_to_change_and_what_it_costs() -> None:
    assert (
        "Recommended: every block; it peaks at 30.00 GB and adds 200 ms to a step of 900 ms (22%), with 1 change: "
        "checkpointing: block."
    ) == recommendation(FOUND)


def test_without_times_the_recommendation_says_why() -> None:
    found = replace(FOUND, alone=(CLOSED,), rows_asked=3)

    assert "its time is not known (fused losses are not traced)" in recommendation(found)


def test_a_spec_that_fits_needs_no_change() -> None:
    found = replace(FOUND, own=replace(OWN, fits=True))

    assert "Recommended: the spec as it is; it peaks at 80.00 GB and adds nothing." == recommendation(found)


def test_where_nothing_fits_the_smallest_peak_is_named() -> None:
    found = replace(FOUND, alone=(row("every block", fits=False), replace(CLOSED, fits=False, peak_bytes=29 * GB)))

    assert "None of these fits 40.00 GB; the smallest peak is 29.00 GB: fused loss." == recommendation(found)
    assert compare_document(found)["recommended"] is None


def test_an_interrupted_comparison_recommends_nothing() -> None:
    found = replace(FOUND, rows_asked=9)

    assert "INTERRUPTED: 4 of 9 rows are done, and none is recommended" in compare_text(found)
    assert "Recommended" not in compare_text(found)
    assert "interrupted" == compare_document(found)["status"]


def test_the_document_has_bytes_seconds_and_nulls() -> None:
    found = json.loads(json.dumps(compare_document(FOUND)))

    assert ("every block", ["checkpointing: block"]) == (found["recommended"], found["changes"])
    assert (50 * GB, 0.2, None) == tuple(found["alone"][0][key] for key in ("saved_bytes", "added_s", "why_no_time"))
    assert ("closed form", None, None) == tuple(found["alone"][1][key] for key in ("mechanism", "step_s", "added_s"))
    assert [{"name": "offload all", "why": "no host budget"}] == found["skipped"]


@pytest.mark.parametrize(
    ("numbers", "text"), [([1], "1"), ([1, 2], "1–2"), ([1, 3, 4, 5, 7], "1, 3–5, 7"), ([2, 4], "2, 4")]
)
def test_neighbouring_rows_are_a_range(numbers: list[int], text: str) -> None:
    assert text == _ranges(numbers)
