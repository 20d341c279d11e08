"""A real browser for tests of pages: Chromium and its driver. On Debian: apt-get install chromium chromium-driver."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DRIVER = "chromedriver"
HEIGHT = 900
SCREENS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]


@contextmanager
def started_browser(folder: Path) -> Iterator[Any]:
    """A browser with a new profile in the folder; the test is skipped where there is none."""
    binary = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which(DRIVER)
    if binary is None or driver is None:
        pytest.skip(f"there is no {'Chromium' if binary is None else DRIVER} here")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", f"--user-data-dir={folder}/profile"),
    ):
        options.add_argument(argument)
    downloads = {"download.default_directory": str(folder), "download.prompt_for_download": False}
    options.add_experimental_option("prefs", downloads)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield started
    finally:
        started.quit()


def open_page(browser: Any, address: str, width: int, scheme: str) -> None:
    """Opens an address on a screen of that width, for those who like it light or dark."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    browser.get(address)
    assert width == browser.execute_script("return window.innerWidth")
