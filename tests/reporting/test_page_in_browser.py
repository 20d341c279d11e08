"""The page in a real browser: drawn, readable, within the screen's width, and without a word on the console."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ortools")
pytest.importorskip("selenium")

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from planner.planning import fingerprint
from planner.reporting.page.page import report_page
from tests.browser import SCREENS, open_page, started_browser
from tests.reporting.test_page import ATTACK, relabelled, small_report
from tests.reports import layered, renamed, report_of, small_plan

LEAST_CONTRAST = 4.5  # of normal text: WCAG 2.2, success criterion 1.4.3
LONG = "a_module_with_a_name_that_is_far_too_long_" * 3 + "Unbreakable" * 12

# Colours of texts that are seen, each with the background that it stands on.
CONTRASTS = """
const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
const luminance = (rgb) => {
  const [r, g, b] = rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const background = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const rgba = channels(getComputedStyle(e).backgroundColor);
    if (rgba.length === 3 || rgba[3] === 1) return rgba;
    if (rgba[3] !== 0) throw new Error("half a background");
  }
  return [255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  if (!node.data.trim() || ["SCRIPT", "STYLE"].includes(element.tagName) || !element.checkVisibility()) continue;
  const one = luminance(channels(getComputedStyle(element).color));
  const two = luminance(background(element));
  found.push([node.data.trim(), (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05)]);
}
return found;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started_browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of a page as it should be, of one with names too long, and of one with names that attack."""
    folder = tmp_path_factory.mktemp("pages")
    written = {"small": report_page(small_report())}
    for name, word in (("long", LONG), ("attack", ATTACK)):
        graph = renamed(layered(name=word), word)
        plan = relabelled(small_plan(), word, fingerprint(graph))
        written[name] = report_page(report_of(graph, plan, spec_file=word, notes=(word,)))
    for name, page in written.items():
        Path(folder, f"{name}.html").write_text(page)
    return {name: Path(folder, f"{name}.html").as_uri() for name in written}


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("name", ["small", "long", "attack"])
def test_the_page_fits_the_screen_and_the_console_is_silent(
    browser: Any, pages: dict[str, str], name: str, width: int, scheme: str
) -> None:
    open_page(browser, pages[name], width, scheme)

    assert [] == browser.get_log("browser")
    assert width >= browser.execute_script("return document.documentElement.scrollWidth")
    assert 0 == browser.execute_script("return document.images.length")
    # What is wider than its place can be scrolled there, also by the keyboard.
    assert [] == browser.execute_script(
        "return [...document.querySelectorAll('.scroll')]"
        ".filter((e) => e.scrollWidth > e.clientWidth && e.tabIndex !== 0).map((e) => e.ariaLabel)"
    )


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_charts_are_drawn(browser: Any, pages: dict[str, str], width: int, scheme: str) -> None:
    open_page(browser, pages["small"], width, scheme)

    boxes = browser.execute_script(
        "return [...document.querySelectorAll('.plot, .plot svg, .lane svg, .plot > svg > path, .mark, .letter, .dot')]"
        ".map((e) => [e.tagName + '.' + (e.getAttribute('class') ?? ''), e.getBoundingClientRect()])"
    )
    # Lines have no area, only length; kinds without bytes at any moment are not there.
    flat = [name for name, box in boxes if box["width"] == 0 and box["height"] == 0]
    assert [] == flat
    assert 2 == sum(name.startswith("DIV.plot") for name, _ in boxes)
    assert 3 == sum(name.startswith("A.mark") for name, _ in boxes)
    assert 2 * 5 == sum(name.startswith("SPAN.letter") for name, _ in boxes)  # P, A to D: on the chart, in the table
    assert all(0 <= box["left"] and box["right"] <= width for _, box in boxes)


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_every_text_stands_out_from_what_it_stands_on(
    browser: Any, pages: dict[str, str], width: int, scheme: str
) -> None:
    open_page(browser, pages["small"], width, scheme)

    found = browser.execute_script(CONTRASTS)

    assert [] == [(text, contrast) for text, contrast in found if contrast < LEAST_CONTRAST]
    assert len(found) > 100
    assert scheme == ("dark" if browser.execute_script(IS_DARK) else "light")


IS_DARK = "return getComputedStyle(document.body).backgroundColor === 'rgb(16, 19, 22)'"


def test_the_chart_can_be_read_with_the_keyboard(browser: Any, pages: dict[str, str]) -> None:
    open_page(browser, pages["small"], 1280, "light")
    plot = browser.find_element(By.ID, "memory-plot")
    readout = browser.find_element(By.ID, "readout")
    assert "slider" == plot.get_attribute("role")

    plot.send_keys(Keys.HOME)
    first = readout.text
    plot.send_keys(Keys.ARROW_RIGHT, Keys.PAGE_UP)

    # The first op makes 20 MB beside 90 MB that are there from the start.
    assert "0.11 GB after 0.0 ms: forward, mm of layers.0.a" == first.replace("\u00a0", " ")
    assert "21" == plot.get_attribute("aria-valuenow")
    assert first != readout.text == plot.get_attribute("aria-valuetext")
    total = browser.find_element(By.CSS_SELECTOR, "[data-cursor=total]").text
    assert readout.text.startswith(total)
    assert [] == browser.get_log("browser")


def test_the_page_says_the_same_without_its_script(browser: Any, pages: dict[str, str]) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(pages["small"])
        assert "img" == browser.find_element(By.ID, "memory-plot").get_attribute("role")
        assert "Peak of backward, 0.17" in browser.find_element(By.ID, "peaks").text
        assert not browser.find_element(By.CSS_SELECTOR, ".at-cursor").is_displayed()
        assert not browser.find_element(By.ID, "readout").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
