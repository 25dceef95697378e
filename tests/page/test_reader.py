"""A document opened on the evidence page, in a real Chromium against a real server."""

import pytest
from playwright.async_api import Page, expect

from support.evidence_page import TEXTS, Site
from support.page_use import answer_of, current_text, file_of, row, search, unfold

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG_CHARACTERS = 2_000_000


async def test_a_click_opens_the_text_at_the_passage_and_keys_go_on(page: Page, site: Site) -> None:
    """Offsets are code points: the text before and within has emoji and combining characters."""
    await search(page)
    rhine = next(each for each in (await answer_of(site))["results"] if each["id"] == "rhine")
    passages = [TEXTS["rhine"][each["start"] : each["end"]] for each in rhine["chunks"]]
    await row(page, "rhine").locator(".chunk").nth(3).click()
    assert await current_text(page) == passages[3]
    options = page.locator("passage-reader").get_by_role("option")
    await expect(options.nth(3)).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("n")
    assert await current_text(page) == passages[4]
    await page.keyboard.press("p")
    await page.keyboard.press("p")
    assert await current_text(page) == passages[2]
    await page.keyboard.press("d")
    deciding = TEXTS["rhine"][rhine["decidingPassage"]["start"] : rhine["decidingPassage"]["end"]]
    assert await current_text(page) == deciding
    assert await page.locator("passage-reader .text").text_content() == TEXTS["rhine"]
    unread = "".join(await page.locator("passage-reader .unread").all_text_contents())
    assert len(unread) == int(rhine["charactersCut"])
    facts = page.locator("passage-reader .facts")
    await expect(facts).to_contain_text(f"about {rhine['tokensCut']:,} tokens not read")

    # The address leads back to the same view.
    await page.reload()
    assert await current_text(page) == deciding
    await page.locator("passage-reader .text").focus()
    await page.keyboard.press("Escape")
    await expect(page.locator("passage-reader")).to_be_hidden()
    assert "doc=" not in page.url
    await expect(row(page, "rhine").locator("button")).to_be_focused()


async def test_the_sentence_that_leads_is_in_the_passage_that_opens(page: Page) -> None:
    await search(page, "a brook far from the sea")
    await row(page, "danube").locator("button").click(position={"x": 80, "y": 12})
    led = await row(page, "danube").locator(".sentence").inner_text()
    picked = page.locator("passage-reader .picked.first")
    await expect(page.locator("passage-reader .current.first").first).to_be_in_viewport()
    assert " ".join("".join(await picked.all_text_contents()).split()) == led


async def test_code_is_set_in_a_fixed_width(page: Page) -> None:
    await unfold(page)
    await page.check("input[value=own]")
    text = "The parser reads a river.\n\n    river = parse()\n    river.run()\n\nIt ends here."
    await page.fill("#paste", text)
    await search(page, "river")
    await row(page, "pasted 1").locator("button").click(position={"x": 80, "y": 12})
    code = page.locator("passage-reader .block.code")
    await expect(code).to_contain_text("river = parse()")
    font = await code.evaluate("(element) => getComputedStyle(element).fontFamily")
    assert "monospace" in font
    assert await page.locator("passage-reader .text").text_content() == text
    # Blank lines carry no colour.
    for run in await page.locator("passage-reader .run").all_text_contents():
        assert run.strip()


async def test_a_document_of_2_mb(page: Page) -> None:
    await unfold(page)
    await page.check("input[value=own]")
    # Short lines, so that the read part is many screens high.
    line = "A river 🙂.\n"
    text = line * (LONG_CHARACTERS // len(line))
    await page.set_input_files("#files", file_of("long.txt", text.encode()))
    await expect(page.locator("own-documents li")).to_have_count(1)
    await search(page, "river")
    session = await page.context.new_cdp_session(page)
    # Processor time does not depend on the machine's load.
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    await row(page, "long.txt").locator("button").click(position={"x": 80, "y": 12})
    # Near its end, in a block that has not been laid out before.
    await page.locator("passage-reader evidence-strip").first.focus()
    await page.keyboard.press("End")
    await page.keyboard.press("Enter")
    passage = await current_text(page)
    measured = (await session.send("Performance.getMetrics"))["metrics"]
    assert 0 < next(each["value"] for each in measured if each["name"] == "TaskDuration") < 5
    assert passage in text
    assert await page.locator("passage-reader .text").text_content() == text
    # The read part is a sliver of it, so it is shown again enlarged.
    strips = page.locator("passage-reader evidence-strip")
    await expect(strips).to_have_count(2)
    await expect(strips.nth(1).locator(".tail")).to_have_count(0)
    chunks = strips.nth(1).get_by_role("option")
    for place in (-1, 3, -4):
        await chunks.nth(place).click()
        assert await current_text(page) in text
