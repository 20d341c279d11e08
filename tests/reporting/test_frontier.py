"""The frontier as text, as JSON and as a picture."""

import json
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("ortools")

from planner.reporting.frontier import cheapest_within, frontier_document, frontier_text
from planner.reporting.tables import WIDTH
from planner.tradeoff import Frontier, FrontierPoint, Rival, RivalsAtBudget

GB = 1_000_000_000


def point(budget_gb: int, overhead: float) -> FrontierPoint:
    return FrontierPoint(
        budget_bytes=budget_gb * GB,
        peak_bytes=budget_gb * GB - GB // 2,
        recompute_s=overhead,
        stall_s=0.0,
        overhead=overhead,
        bound_s=overhead,
        gap=0.0,
        status="optimal",
        solve_s=0.1,
    )


def rival(name: str, peak_gb: int, overhead: float, believed_gb: int | None = None) -> Rival:
    return Rival(
        name=name,
        setting="",
        peak_bytes=peak_gb * GB,
        recompute_s=overhead,
        stall_s=0.0,
        overhead=overhead,
        believed_peak_bytes=None if believed_gb is None else believed_gb * GB,
    )


BUDGETS = tuple(range(10, 31, 2))
FOUND = Frontier(
    model="tiny",
    device="h100-80gb",
    device_memory_bytes=25 * GB,
    static_bytes=5 * GB,
    step_s=1.0,
    smallest_peak_bound_bytes=9 * GB,
    budgets_bytes=tuple(gb * GB for gb in BUDGETS),
    points=tuple(point(gb, (30 - gb) / 100) for gb in BUDGETS),
    baselines=(rival("no checkpointing", 30, 0.0), rival("every block", 11, 0.25), rival("selective", 9, 0.3)),
    peers=tuple(
        RivalsAtBudget(
            budget_bytes=gb * GB,
            fastest=(rival("every block", 11, 0.25), rival("min-cut", gb - 1, 0.2), rival("offload all", 10, 1.4)),
            told=(rival("min-cut", 17, 0.18, gb),),
        )
        for gb in BUDGETS
    ),
    notes=("something is assumed",),
)


def test_the_table_lists_every_budget() -> None:
    lines = frontier_text(FOUND).splitlines()

    row = next(line for line in lines if line.startswith("12.00 GB"))
    assert ["12.00", "GB", "11.50", "GB", "180", "ms", "0", "ms", "18.0%", "0%", "optimal"] == row.split()
    assert len(BUDGETS) == sum(line.endswith("optimal") for line in lines)
    assert all(len(line) <= WIDTH for line in lines)
    assert "INTERRUPTED" not in frontier_text(FOUND)
    assert "Note: something is assumed" == lines[-1]


def test_a_baseline_stands_beside_the_plan_that_needs_no_more() -> None:
    text = frontier_text(FOUND)

    every = next(line for line in text.splitlines() if line.startswith("every block"))
    assert ["every", "block", "11.00", "GB", "250", "ms", "25.0%", "20.0%", "10.00", "GB"] == every.split()
    # Below the smallest budget there is no plan to compare with.
    assert cheapest_within(FOUND.points, 9 * GB) is None


def test_peers_are_shown_at_budgets_that_fit_the_width_the_ends_among_them() -> None:
    lines = frontier_text(FOUND).splitlines()

    header = next(line for line in lines if line.startswith("Fastest that fits"))
    assert ("10.00", "30.00") == (header.split()[5], header.split()[-1])
    assert 8 == len(header.split()) - 5
    ours = next(line for line in lines if line.startswith("a plan "))
    assert ("20.0%", "0.0%") == (ours.split()[2], ours.split()[-1])


def test_a_rule_that_exceeds_the_budget_it_was_told_is_shown_with_its_worst_case() -> None:
    line = next(line for line in frontier_text(FOUND).splitlines() if " of 11" in line)

    # 17 GB: over every budget from 10 to 16.
    assert ["min-cut", "4", "of", "11", "7.00", "GB", "10.00", "GB"] == line.split()


def test_an_interrupted_frontier_says_so() -> None:
    partial = replace(FOUND, points=FOUND.points[:2], peers=())

    assert "INTERRUPTED: 2 of 11 budgets are done" in frontier_text(partial)
    assert "interrupted" == frontier_document(partial)["status"]
    assert "Budget" not in frontier_text(replace(partial, points=()))


def test_the_document_is_plain_and_says_everything() -> None:
    document = json.loads(json.dumps(frontier_document(FOUND)))

    assert {
        *("status", "model", "device", "device_memory_bytes", "static_bytes", "step_s", "smallest_peak_bound_bytes"),
        *("budgets_bytes", "points", "baselines", "peers", "notes"),
    } == set(document)
    assert {
        *("budget_bytes", "peak_bytes", "recompute_s", "stall_s", "overhead", "bound_s", "gap", "status", "solve_s"),
    } == set(document["points"][0])
    rival_keys = {"name", "setting", "peak_bytes", "recompute_s", "stall_s", "overhead", "believed_peak_bytes"}
    assert rival_keys == set(document["baselines"][0])
    assert rival_keys == set(document["peers"][0]["told"][0])
    assert "complete" == document["status"]


def test_the_picture_is_a_png_of_its_size() -> None:
    pytest.importorskip("matplotlib")
    from planner.reporting.picture import picture

    data = picture(FOUND, "png")

    assert b"\x89PNG\r\n\x1a\n" == data[:8]
    names, place = [], 8
    while place < len(data):  # every chunk is whole
        (length,) = struct.unpack(">I", data[place : place + 4])
        kind = data[place + 4 : place + 8]
        (checksum,) = struct.unpack(">I", data[place + 8 + length : place + 12 + length])
        assert checksum == zlib.crc32(data[place + 4 : place + 8 + length])
        names.append(kind)
        place += 12 + length
    assert (b"IHDR", b"IEND") == (names[0], names[-1])
    assert (9 * 150, 5 * 150) == struct.unpack(">II", data[16:24])


def test_the_picture_names_its_axes_its_units_and_every_rule() -> None:
    pytest.importorskip("matplotlib")
    from planner.reporting.picture import picture

    data = picture(FOUND, "svg")

    words = {"".join(text.itertext()).strip() for text in ElementTree.fromstring(data).iter() if "text" in text.tag}
    assert {
        *("Memory budget, or peak of a rule (GB = 10⁹ bytes)", "Recompute and stall time (% of the step)"),
        *("planner", "every block", "selective", "no checkpointing", "min-cut", "memory of h100-80gb"),
        *("offload all (from 140%)", "tiny on h100-80gb"),
    } <= words
    assert data == picture(FOUND, "svg")


def test_a_picture_without_any_overhead_or_peers_is_drawn_too() -> None:
    pytest.importorskip("matplotlib")
    from planner.reporting.picture import picture

    flat = replace(FOUND, points=FOUND.points[-1:], budgets_bytes=FOUND.budgets_bytes[-1:], peers=(), baselines=())

    assert ElementTree.fromstring(picture(flat, "svg")) is not None


def test_tables_of_a_frontier_need_no_extra() -> None:
    code = (
        "import sys\nimport planner.reporting.frontier\n"
        "heavy = {'torch', 'networkx', 'ortools', 'numpy', 'matplotlib'} & set(sys.modules)\nassert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True, capture_output=True)
