"""The fixture `pages`, and the rule for machines without a browser.

A test that asks for it bears the marker `browser`. Where Chromium is missing it is skipped, with one line
that says how to install it; with REQUIRE_BROWSER=1 (CI) the same is a failure. Loaded by tests/conftest.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import BrowserUnavailableError, executable
from tests.browser.page import Pages
from tests.unavailable import give_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

NEEDING = {"pages", "_chromium"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "browser: needs Chromium; skipped with the reason when missing, required in CI"
    )


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if NEEDING.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("browser")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("browser") is None:
        return
    try:
        executable()
    except BrowserUnavailableError as error:
        give_up("browser", str(error))


@pytest.fixture(scope="module")  # while Playwright is there, no test can run an event loop on this thread
def _chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A container has no user namespaces for the sandbox; only pages of our own are opened.
        browser = playwright.chromium.launch(
            executable_path=executable(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def pages(_chromium: Browser) -> Iterator[Pages]:
    """Opens pages: pages.open(url, width, height, dark). After the test each must have stayed clean."""
    opened = Pages(_chromium)
    try:
        yield opened
        opened.check()
    finally:
        opened.close()
