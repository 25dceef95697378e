"""Links, files and code that lead from the evidence page to other places, in a real Chromium."""

import ast
import asyncio
import json
import re
import shutil
import sys

import pytest
from playwright.async_api import Page, expect

from support.evidence_page import RIVER
from support.page_use import names, saved_text, search, unfold

pytestmark = pytest.mark.asyncio(loop_scope="module")

HARD = 'it\'s a "river" \\ 🙂'


async def copied_code(page: Page, *tabs: str) -> dict[str, str]:
    """Copy the code of some tabs."""
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.get_by_text("The same call from code").click()
    copied = {}
    for name in tabs:
        await page.get_by_role("tab", name=name).click()
        await page.get_by_role("button", name="Copy", exact=True).click()
        await expect(page.locator("code-panel .note")).to_have_text("Copied.")
        copied[name] = await page.evaluate("navigator.clipboard.readText()")
    return copied


async def output(*command: str, given: str | None = None) -> str:
    """Run a command, and return the text that it prints."""
    piped = asyncio.subprocess.PIPE
    ran = await asyncio.create_subprocess_exec(*command, stdin=piped, stdout=piped, stderr=piped)
    said, complaints = await ran.communicate(given.encode() if given is not None else None)
    assert ran.returncode == 0, complaints.decode()
    return said.decode()


@pytest.mark.parametrize("source", ["index", "own"])
async def test_each_snippet_runs_as_it_is_copied(page: Page, source: str) -> None:
    if source == "own":
        await unfold(page)
        await page.check("input[value=own]")
        await page.fill(
            "#paste", f"{RIVER * 9}\n---\nA \"quoted\" 'river' \\n and '''three''' \"\"\"quotes\"\"\""
        )
    await search(page, HARD)
    shown = await names(page)
    tabs = ["curl", "Python", "JavaScript", "Answer"] + (["Cohere SDK"] if source == "own" else [])
    assert sorted(await page.locator("[role=tab]").all_text_contents()) == sorted(tabs)
    copied = await copied_code(page, *tabs)
    python = await output(sys.executable, "-c", copied["Python"])
    assert len(python.splitlines()) == len(shown)
    assert all(line.startswith(name) for line, name in zip(python.splitlines(), shown, strict=True))
    for command, name in (("sh", "curl"), ("node", "JavaScript")):
        if shutil.which("curl" if name == "curl" else command) is None:
            continue
        if name == "curl":
            results = json.loads(await output("sh", "-c", copied[name]))["results"]
            assert [each["id"] for each in results] == shown
        else:
            said = await output("node", "--input-type=module", given=copied[name])
            assert [line[: len(shown[place])] for place, line in enumerate(said.splitlines())] == shown
    if source == "own":
        # The client is not installed here; tests/http_clients runs Cohere's SDK with the same options.
        compile(copied["Cohere SDK"], "cohere", "exec")
        documents = ast.literal_eval(
            re.search(r"^documents = (\[.*?^\])", copied["Cohere SDK"], re.S | re.M)[1]  # type: ignore[index]
        )
        assert documents[0] == (RIVER * 9).strip()


async def test_the_link_and_the_files_of_an_answer(page: Page) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await search(page)
    shown = await names(page)
    await page.get_by_role("button", name="Copy link").click()
    assert await page.evaluate("navigator.clipboard.readText()") == page.url
    # Without the clipboard's interface, the page selects a text to copy, and gives the focus back.
    await page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    await page.get_by_role("button", name="Copy link").press("Enter")
    await expect(page.locator("#tools .note")).to_have_text("Copied.")
    await expect(page.get_by_role("button", name="Copy link")).to_be_focused()
    saved = {}
    for button in ("CSV", "TREC run", "JSON"):
        async with page.expect_download() as download:
            await page.get_by_role("button", name=button, exact=True).click()
        file = await download.value
        assert file.suggested_filename.startswith("where-does-the-river-rise.")
        saved[button] = await saved_text(file)
    assert [each["id"] for each in json.loads(saved["JSON"])["results"]] == shown
    run = [line.split() for line in saved["TREC run"].splitlines()]
    assert [(rank, tag) for _, _, _, rank, _, tag in run] == [(str(n + 1), "maxp") for n in range(len(shown))]
    assert saved["CSV"].startswith("rank,first_stage_rank,id,score,")
