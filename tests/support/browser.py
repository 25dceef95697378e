"""A headless Chromium for tests of pages."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, async_playwright

# root has no sandbox. The other flags keep Chromium from looking for hardware and hosts that do not exist.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
# The timeout of every wait, also on a busy machine.
TIMEOUT_MS = 90_000


@asynccontextmanager
async def opened_browser() -> AsyncIterator[Browser]:
    """Open the installed Chromium; without one the test is skipped."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install --no-install-recommends chromium)")
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=found, args=FLAGS)
        try:
            yield opened
        finally:
            await opened.close()
