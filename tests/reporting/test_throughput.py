"""The table of micro-batches as text."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("ortools")

from planner.errors import TraceError
from planner.reporting.tables import WIDTH
from planner.reporting.throughput import throughput_document, throughput_text
from planner.throughput import Attempt, Refusal, Throughput, Verdict

TRIED = (
    Attempt(micro_batch=1, verdict=Verdict.FAILED, why="batch norm needs more than one value"),
    Attempt(
        micro_batch=16,
        verdict=Verdict.FITS,
        tokens=8192,
        step_s=0.5,
        recompute_s=0.01,
        peak_bytes=70_000_000_000,
        gap=0.001,
        is_scaled=True,
    ),
    Attempt(
        micro_batch=32,
        verdict=Verdict.TOO_LARGE,
        peak_bytes=90_000_000_000,
        why="the smallest peak found is 90.00 GB",
    ),
    Attempt(micro_batch=64, verdict=Verdict.NOT_TRIED, why="32 is too large already"),
)
FOUND = Throughput(
    model="tiny",
    device="h100-80gb",
    budget_bytes=80_000_000_000,
    unit="tokens",
    own_micro_batch=16,
    is_given=True,
    tried=TRIED,
)


def test_each_micro_batch_has_a_row_and_each_that_does_not_fit_a_reason() -> None:
    lines = throughput_text(FOUND).splitlines()

    assert max(len(line) for line in lines) <= WIDTH
    cells = [line.split("  ") for line in lines]
    rows = {row[0]: [cell.strip() for cell in row if cell.strip()][1:] for row in cells if row[0].isdigit()}
    assert ["16,384", "70.00 GB", "500 ms", "10.0 ms", "0 ms", "0.10%", "yes", "scaled"] == rows["16"]
    assert ["–", "90.00 GB", "–", "–", "–", "–", "no", "–"] == rows["32"]
    assert ["1", "16", "32", "64"] == list(rows)
    assert "Micro-batch 1 failed: batch norm needs more than one value" in lines
    assert "Micro-batch 32 too large: the smallest peak found is 90.00 GB" in lines
    assert "Micro-batch 64 not tried: 32 is too large already" in lines


def test_a_search_that_has_not_ended_says_so() -> None:
    refused = Refusal(micro_batch=1, error=TraceError("no"), graph=None)
    done = replace(FOUND, refusal=refused)

    assert "INTERRUPTED: 4 micro-batches are done" in throughput_text(FOUND)
    assert "INTERRUPTED" not in throughput_text(done)
    assert throughput_text(done).endswith("None of these fits. What follows is about the smallest, 1:")
    assert ["interrupted", "complete"] == [throughput_document(found)["status"] for found in (FOUND, done)]


def test_the_document_has_rates() -> None:
    rates = [row["tokens_per_s"] for row in throughput_document(FOUND)["tried"]]

    assert [0.0, 16384.0, 0.0, 0.0] == rates
