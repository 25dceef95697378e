"""The evidence page in a real Chromium: one server and one browser for a file, a new tab for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, expect

from support.browser import TIMEOUT_MS, opened_browser
from support.evidence_page import Site, opened_site

expect.set_options(timeout=TIMEOUT_MS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tiny_rankers: dict[str, Path]) -> AsyncIterator[Site]:
    async with opened_site(tiny_rankers) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with opened_browser() as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, site: Site) -> AsyncIterator[Page]:
    """A tab with the page. It must report no script error and no violation of its policy."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(TIMEOUT_MS)
    tab = await context.new_page()
    complaints: list[str] = []

    def note(said: ConsoleMessage) -> None:
        # Some tests are about failed calls.
        if said.type == "error" and "Failed to load resource" not in said.text:
            complaints.append(said.text)

    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("console", note)
    await tab.goto(site.url)
    await tab.wait_for_selector("select[name=a] option", state="attached")
    yield tab
    await context.close()
    assert complaints == []
