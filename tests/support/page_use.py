"""The evidence page as a user operates it: a search, a row, an opened passage."""

import asyncio
import re
from pathlib import Path
from typing import Any

import aiohttp
from playwright.async_api import Download, FilePayload, Locator, Page, expect

from support.evidence_page import RIVER_QUESTION, TEXTS, Site
from support.http_endpoint import METHODS

FOUND = len(TEXTS) - 1  # bread shares no word with the question


async def search(page: Page, query: str = RIVER_QUESTION, **chosen: str) -> None:
    """Send a query, and wait until the whole answer is shown."""
    if chosen:
        await unfold(page)
    for name, value in chosen.items():
        await page.select_option(f"select[name={name}]", value)
    await page.fill("#query", query)
    await page.press("#query", "Enter")
    await answered(page)


async def answered(page: Page) -> None:
    """Wait until the whole answer is shown."""
    await expect(page.locator("#status")).to_contain_text(re.compile("documents?(: [^ ]+)? in "))
    await expect(page.locator("#progress")).to_be_hidden()
    await expect(page.locator("#status")).not_to_contain_text("still reading")


async def unfold(page: Page) -> None:
    """Show the options."""
    if await page.locator("#options").is_hidden():
        await page.get_by_role("button", name="Options").click()


async def answer_of(site: Site, **options: Any) -> Any:
    """Return the server's own answer to the same query, with scores from 0 to 1."""
    chosen = {"returnChunkScores": True, "evidence": 2, "scoreScale": "SCORE_SCALE_SIGMOID", **options}
    url = f"{site.url.rstrip('/')}{METHODS}SearchAndRerank"
    request = {"query": RIVER_QUESTION, "options": chosen}
    async with aiohttp.ClientSession() as session, session.post(url, json=request) as answer:
        return await answer.json()


def row(page: Page, name: str) -> Locator:
    """Return a document's row."""
    return page.locator("ranking-list li").filter(has=page.locator(".name").get_by_text(name, exact=True))


async def names(page: Page) -> list[str]:
    """Return the documents' names in the order that is shown."""
    return await page.locator("ranking-list .name").all_text_contents()


def file_of(name: str, content: bytes) -> FilePayload:
    """Return a file as if it were chosen from a disk."""
    return {"name": name, "mimeType": "text/plain", "buffer": content}


async def share(element: Locator, of: Locator) -> tuple[float, float]:
    """Return the start and end of an element as shares of another's width."""
    inner, outer = await element.bounding_box(), await of.bounding_box()
    assert inner
    assert outer
    left = (inner["x"] - outer["x"]) / outer["width"]
    return left, left + inner["width"] / outer["width"]


async def current_text(page: Page) -> str:
    """Return the passage that the reader shows, and check that a part of it is in view."""
    spans = page.locator("passage-reader .current")
    await expect(spans.first).to_be_visible()
    picked = page.locator("passage-reader .current.first")
    await expect(picked.first if await picked.count() else spans.first).to_be_in_viewport()
    runs = page.locator("passage-reader .text")
    # Blank lines are part of a passage, and are not coloured.
    text: str = await runs.evaluate(
        """(text) => {
            const all = [...text.querySelectorAll(".current")];
            const range = document.createRange();
            range.setStartBefore(all[0]);
            range.setEndAfter(all.at(-1));
            return range.toString();
        }"""
    )
    return text


async def saved_text(download: Download) -> str:
    """Return the text of a file that the page saved."""
    return await asyncio.to_thread(Path(await download.path()).read_text)
