"""The evidence page in a real Chromium: one server and one browser for a file, a new tab for each test."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from support.evidence_page import Site, opened_site

# root has no sandbox. The other flags keep Chromium from looking for hardware and hosts that do not exist.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
# The timeout of every wait, also on a busy machine.
TIMEOUT_MS = 90_000
expect.set_options(timeout=TIMEOUT_MS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tiny_rankers: dict[str, Path]) -> AsyncIterator[Site]:
    async with opened_site(tiny_rankers) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install --no-install-recommends chromium)")
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=found, args=FLAGS)
        try:
            yield opened
        finally:
            await opened.close()


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
