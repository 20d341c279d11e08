"""The page as text: what it draws, that names stay names, and that it needs nothing from anywhere."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

pytest.importorskip("ortools")

from planner.plan import Plan
from planner.planning import fingerprint
from planner.reporting.link import LinkUse
from planner.reporting.page.frontier import frontier_chart
from planner.reporting.page.html import data_block, tag
from planner.reporting.page.link import WIDTH, merged
from planner.reporting.page.memory import HEIGHT, memory_chart, outline
from planner.reporting.page.page import report_page
from planner.reporting.page.parts import KIND_COLOURS, module_path, ticks
from planner.reporting.report import Report, report_document, report_text
from planner.reporting.tables import WIDTH as TEXT_WIDTH
from planner.simulation.kinds import MemoryKind
from tests.reports import MB, layered, plan_of, renamed, report_of, small_plan

ATTACK = '</script></style><script>alert(1)</script><img src=x onerror="alert(2)"><!--&\''


class Seen(HTMLParser):
    """The elements of a page, with what is in them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, name: str) -> int:
        return sum(element == name for element, _ in self.elements)


def small_report() -> Report:
    return report_of(layered(), small_plan())


def spaced(text: str) -> str:
    return text.replace("\u00a0", " ")


def outlines(chart: str) -> list[str]:
    """The areas of a chart, from the top of the stack down."""
    return re.findall(r'<path d="(M0,1000V[^"]*)"', chart)


def highest(area: str) -> int:
    return HEIGHT - min(int(y) for y in re.findall(r"V(\d+)", area))


# ---- what it draws


def test_the_peak_that_is_drawn_is_the_peak() -> None:
    memory = small_report().memory

    top, *_ = outlines(memory_chart(memory, 170 * MB))

    # The peak is at the budget, and the chart reaches 1.14 times as high.
    assert 170 * MB == memory.peak_bytes
    assert round(HEIGHT / 1.14) == highest(top)
    assert "bottom:87.719%" in memory_chart(memory, 170 * MB)


def test_every_kind_has_an_area_and_a_colour_of_its_own() -> None:
    memory = small_report().memory

    assert len(memory.kinds) == len(outlines(memory_chart(memory, 170 * MB)))
    assert set(MemoryKind) == set(KIND_COLOURS)
    assert len(MemoryKind) == len(set(KIND_COLOURS.values()))


def test_an_area_goes_up_and_down_in_steps() -> None:
    assert "M0,1000V400H2V700H3V1000Z" == outline([400, 400, 700])


def test_a_budget_far_above_the_peak_does_not_squash_the_chart() -> None:
    memory = small_report().memory

    chart = memory_chart(memory, 10_000 * MB)

    assert round(HEIGHT / 1.14) == highest(outlines(chart)[0])
    assert 'class="budget' not in chart
    assert "budget 10.00 GB" in chart  # in words


def test_figures_of_the_peaks_are_there_as_text() -> None:
    seen = spaced(Seen(report_page(small_report())).text)

    for words in (
        *("Peak of forward, 0.17 GB", "Peak of backward, 0.17 GB", "Optimizer step, 0.10 GB"),
        *("offloaded, on the device", "kept for backward", "budget 0.17 GB", "small on unit"),
        *("What other budgets would cost", "every block", "something is assumed", "planner 0.1.0, torch 2.13.0"),
        *("small.plan.yaml", "small.yaml", "no plan adds less", "layers.{0..3}.a"),
    ):
        assert words in seen, words


def test_the_link_is_shown_only_where_something_leaves() -> None:
    graph = layered()
    without = report_of(graph, plan_of(graph, budget=1000 * MB))

    assert without.summary.link is None
    assert "The plan offloads nothing." in report_page(without)
    assert 'class="lanes"' not in report_page(without)
    link = small_report().summary.link
    assert isinstance(link, LinkUse)
    assert link.stall_s == pytest.approx(sum(end_s - start_s for start_s, end_s in link.waits_s))
    assert 'class="lanes"' in report_page(small_report())


def test_copies_that_follow_each_other_are_one_area() -> None:
    assert [(0, WIDTH // 2), (1500, 1501)] == merged([(0.5, 1.0), (0.0, 0.5), (1.5, 1.5)], 2.0)
    assert [(WIDTH - 1, WIDTH)] == merged([(2.0, 2.0)], 2.0)


def test_the_frontier_goes_down_in_steps_and_the_plan_is_on_it() -> None:
    chart = frontier_chart(small_report())

    (steps,) = re.findall(r'<path d="(M[^"]*)" class="frontier"', chart)
    # 150 MB, this plan at 170, 200, and 250, which adds nothing.
    assert re.fullmatch(r"M\d+,\d+(H\d+V\d+){3}H1000", steps)
    assert steps.endswith("V1000H1000")
    assert 3 == chart.count('class="dot"')


def test_without_a_frontier_there_are_the_baselines() -> None:
    page = report_page(replace(small_report(), frontier=None))

    assert "What people do by hand" in page
    assert "What other budgets would cost" not in page
    assert 'class="frontier"' not in page


def test_the_same_report_is_the_same_page() -> None:
    assert report_page(small_report()) == report_page(small_report())


def test_ticks_are_round_and_within_the_axis() -> None:
    assert [0, 10, 20, 30, 40] == ticks(0, 45.6)
    assert [30, 40, 50] == ticks(27, 53)
    assert [0.0] == ticks(0, 0)


# ---- names stay names


def test_no_name_becomes_code() -> None:
    graph = renamed(layered(name=ATTACK), ATTACK)
    plan = relabelled(small_plan(), ATTACK, fingerprint(graph))
    report = report_of(graph, plan, spec_file=ATTACK, notes=(ATTACK,))

    page = report_page(report)

    plain = Seen(report_page(small_report()))
    seen = Seen(page)
    assert (2, 0, 1) == (seen.count("script"), seen.count("img"), seen.count("style"))
    assert {name for name, _ in plain.elements} == {name for name, _ in seen.elements}
    assert not [key for _, attributes in seen.elements for key in attributes if key.startswith("on")]
    assert page.count("<script>") == 1
    assert ATTACK in seen.text


def relabelled(plan: Plan, word: str, print_: str) -> Plan:
    """The plan for a step whose modules and ops are called something else."""
    return replace(
        plan,
        model=replace(plan.model, name=word, fingerprint=print_, attention=word, torch=word),
        baselines=tuple(replace(row, name=word) for row in plan.baselines),
        decisions=tuple(replace(d, module_fqn=f"{d.module_fqn}.{word}", op=word) for d in plan.decisions),
    )


def test_text_and_attributes_are_escaped_and_markup_is_not() -> None:
    assert '<p class="a&quot;b">&lt;b&gt; &amp; <b>x</b></p>' == tag("p", "<b> & ", tag("b", "x"), class_='a"b')
    assert '<a hidden data-x="1"></a>' == tag("a", None, hidden=True, id=None, data_x=1, title=False)


def test_data_cannot_end_its_block() -> None:
    block = data_block("data", {"name": ATTACK})

    content = re.fullmatch(r'<script type="application/json" id="data">([^<>&]*)</script>', block)
    assert content is not None
    assert {"name": ATTACK} == json.loads(content[1])


def test_a_quantity_stays_on_one_line() -> None:
    assert "<b>39.98\u00a0GB in 3\u00a0ms, 3 segments</b>" == tag("b", "39.98 GB in 3 ms, 3 segments")


def test_a_module_path_may_be_broken_but_reads_the_same() -> None:
    assert "model.<wbr>layers.<wbr>{0..31}.<wbr>self_<wbr>attn<wbr>" == module_path("model.layers.{0..31}.self_attn")
    assert "(the model)<wbr>" == module_path("")


# ---- it needs nothing from anywhere


def test_the_page_refers_to_nothing_outside_itself() -> None:
    page = report_page(small_report())

    assert [] == re.findall(r"https?://|//[a-z]+\.|url\(|@import|\bfetch\b|XMLHttpRequest", page)
    sources = [
        value
        for _, attributes in Seen(page).elements
        for key, value in attributes.items()
        if key in ("src", "href", "action", "data", "srcset")
    ]
    assert {"data:,", "#peaks"} == set(sources)
    policies = [attributes["content"] for _, attributes in Seen(page).elements if "http-equiv" in attributes]
    assert ["default-src 'none'"] == [str(policy).partition(";")[0] for policy in policies]


# ---- text and JSON


def test_the_text_says_what_makes_up_each_peak() -> None:
    lines = report_text(small_report(), "small.html").splitlines()

    total = next(line for line in lines if line.startswith("total"))
    assert ["0.17", "GB", "0.17", "GB", "0.10", "GB"] == total.split()[1:]
    assert "Report     small.html" == lines[-1]
    assert all(len(line) <= TEXT_WIDTH for line in lines)


def test_the_document_is_plain_and_adds_up() -> None:
    document: dict[str, Any] = json.loads(json.dumps(report_document(small_report(), "small.html")))

    assert ("small.plan.yaml", "small.yaml", "small.html") == tuple(document[k] for k in ("plan", "spec", "report"))
    assert {"memory", "modules", "groups", "frontier", "baselines", "link", "versions", "notes"} <= set(document)
    memory = document["memory"]
    assert document["predicted_peak_bytes"] == max(peak["bytes"] for peak in memory["peaks"])
    for moment in (*memory["peaks"], *memory["columns"]):
        assert moment["bytes"] == sum(moment["by_kind"].values())
    by_module = sum(row["bytes"] for row in document["modules"])
    assert by_module == sum(total["bytes"] for total in document["decisions"].values())


# ---- pictures


@pytest.mark.parametrize("with_frontier", [True, False])
def test_the_picture_has_the_peaks_and_every_kind(with_frontier: bool) -> None:
    pytest.importorskip("matplotlib")
    from planner.reporting.report_picture import report_picture

    report = small_report() if with_frontier else replace(small_report(), frontier=None)

    drawn = report_picture(report, "svg").decode()
    assert all(str(kind) in drawn for kind in report.memory.kinds)
    assert "2: peak of backward, 0.17 GB" in drawn
    assert with_frontier == ("this plan" in drawn)
    assert b"\x89PNG\r\n\x1a\n" == report_picture(report, "png")[:8]
