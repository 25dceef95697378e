"""The evidence page by axe (WCAG 2.2 AA), at four widths, in each palette and by keyboard, in Chromium."""

import re
from collections.abc import Awaitable, Callable
from typing import Literal

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from support.evidence_page import JUDGED, RIVER_QUESTION, Site
from support.page_use import FOUND, answered, row, search, unfold

pytestmark = pytest.mark.asyncio(loop_scope="module")

RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}
SCHEMES: tuple[Literal["light", "dark"], ...] = "light", "dark"
WIDTHS = 360, 768, 1280, 1600
ROW_PX = 64
# Of a phone of 740 pixels, the part above the first result.
ABOVE_PX = 250


async def start(page: Page) -> None:
    """The start, with the options unfolded."""
    await unfold(page)


async def results(page: Page) -> None:
    """A ranking with everything below it open, and judged documents."""
    await search(page)
    for summary in ("What the colours mean", "Time and agreement", "The same call from code"):
        await page.get_by_text(summary).click()


async def compared(page: Page) -> None:
    """Two rankers, filtered by movement."""
    await search(page, a="maxp", b="biencoder")
    await page.locator(".only:enabled").first.click()


async def adaptive(page: Page) -> None:
    """Documents that are read in part."""
    await search(page, depth="adaptive,chunks=4")


async def opened(page: Page) -> None:
    """The reader with a document. On a narrow page it covers the ranking."""
    await search(page)
    await row(page, "rhine").locator("button").click(position={"x": 80, "y": 12})
    await expect(page.locator("passage-reader .current").first).to_be_visible()


async def own(page: Page) -> None:
    """Documents of the user's own, and one that could not be read."""
    await page.get_by_role("button", name="Bring your own documents").click()
    await page.fill("#paste", "a river\n---\na sea")
    await page.get_by_role("button", name="Add").click()
    await page.fill("#paste", '[{"id": "no text"}]')
    await page.get_by_role("button", name="Add").click()


async def refused(page: Page) -> None:
    """A problem."""
    await page.fill("#query", "")
    await page.press("#query", "Enter")
    await expect(page.locator("#problem")).to_be_visible()


async def judged(page: Page) -> None:
    """The figures of judged questions."""
    await page.get_by_role("link", name="Judged questions").click()
    await page.get_by_role("button", name="Measure").click()
    await expect(page.locator(".question")).to_have_count(len(JUDGED["questions"]))
    await expect(page.locator(".running")).to_be_empty()


STATES = start, results, compared, adaptive, opened, own, refused, judged
State = Callable[[Page], Awaitable[None]]


async def violations(page: Page) -> list[str]:
    """Return what axe finds, a line for each element."""
    found = await Axe().run(page, options=RULES)
    return [
        f"{each['id']}: {node['target']}: {node['failureSummary']}"
        for each in found.response["violations"]
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("state", STATES)
async def test_each_state_is_accessible_and_fits_at_each_width(page: Page, state: State) -> None:
    await state(page)
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 740})
            sides = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert sides[0] == sides[1], f"{state.__name__} at {width}"
            rows = await page.locator("ranking-list li").evaluate_all(
                "(rows) => rows.map((row) => row.getBoundingClientRect().height)"
            )
            assert all(height <= ROW_PX for height in rows)
            # The layout has changed at each width; its colours in each scheme.
            if (scheme, width) in {("light", 360), ("light", 1280), ("dark", 1280)}:
                assert await violations(page) == [], f"{state.__name__} at {width}, {scheme}"


@pytest.mark.parametrize("state", STATES)
async def test_forced_colours_keep_what_colour_says(browser: Browser, site: Site, state: State) -> None:
    context = await browser.new_context(forced_colors="active", viewport={"width": 1280, "height": 740})
    page = await context.new_page()
    await page.goto(site.url)
    await page.wait_for_selector("select[name=a] option", state="attached")
    await state(page)
    assert await violations(page) == []

    async def style(selector: str, name: str) -> str:
        value: str = await page.locator(selector).first.evaluate(
            "(element, name) => getComputedStyle(element)[name]", name
        )
        return value

    if state is results:
        colours = {await style(f".ramp .step-{step}", "backgroundColor") for step in range(6)}
        assert len(colours) == 6
        chosen = await style(".order[aria-pressed=true]", "borderTopWidth")
        assert chosen != await style(".order[aria-pressed=false]", "borderTopWidth")
        assert await style("mark", "textDecorationLine") == "underline"
        assert "gradient" in await style(".strip .tail", "backgroundImage")
    if state is opened:
        assert await style("li.selected .row", "outlineStyle") == "solid"
        assert await style(".run.current", "textDecorationLine") == "underline"
    await context.close()


async def test_a_phone_shows_results_first(page: Page) -> None:
    await page.set_viewport_size({"width": 360, "height": 740})
    await search(page)
    box = await page.locator("ranking-list li").first.bounding_box()
    assert box
    assert box["y"] <= ABOVE_PX
    # A row has no room to show how much was read, but says it.
    await expect(row(page, "rhine").get_by_role("button")).to_have_accessible_name(
        re.compile(r"\d of \d+ chunks read")
    )
    # An opened document covers the page, and nothing behind it takes the focus.
    await row(page, "rhine").locator("button").click(position={"x": 80, "y": 12})
    reader = page.locator("passage-reader")
    await expect(reader).to_have_role("dialog")
    assert await reader.evaluate("(reader) => reader.offsetWidth") == 360
    for _ in range(12):
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.closest('main, header.top, footer') === null")
    await page.set_viewport_size({"width": 1600, "height": 740})
    await expect(reader).to_have_role("complementary")
    assert await reader.evaluate("(reader) => reader.offsetWidth") < 800
    await expect(page.locator("main")).not_to_have_attribute("inert", "")


async def test_by_keyboard_alone(page: Page) -> None:
    await page.keyboard.type(RIVER_QUESTION)
    # Three strokes from the question to the first result's text.
    await page.keyboard.press("Enter")
    await answered(page)
    await page.keyboard.press("ArrowDown")
    first = page.locator("ranking-list li").first
    await expect(first.locator("button")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("passage-reader .current").first).to_be_visible()
    await expect(page.locator("passage-reader .text")).to_be_focused()
    outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"

    before = await page.locator("passage-reader h2").text_content()
    await page.keyboard.press("j")
    await expect(page.locator("passage-reader h2")).not_to_have_text(before or "")
    await page.keyboard.press("k")
    await expect(page.locator("passage-reader h2")).to_have_text(before or "")
    strip = page.locator("passage-reader evidence-strip").first
    await strip.focus()
    await page.keyboard.press("Home")
    await page.keyboard.press("ArrowRight")
    active = await strip.get_attribute("aria-activedescendant")
    await expect(page.locator(f"#{active}")).to_have_accessible_name(re.compile("passage 2 of"))
    await page.keyboard.press("Enter")
    await expect(page.locator("passage-reader .where")).to_contain_text("passage 2 of")
    await page.keyboard.press("Escape")
    await expect(page.locator("passage-reader")).to_be_hidden()
    await expect(first.locator("button")).to_be_focused()

    # The list is one stop of the Tab key; its keys do nothing elsewhere.
    await page.keyboard.press("j")
    await expect(page.locator("ranking-list li").nth(1).locator("button")).to_be_focused()
    await page.keyboard.press("End")
    await expect(page.locator("ranking-list li").nth(FOUND - 1).locator("button")).to_be_focused()
    await page.keyboard.press("Shift+Tab")
    assert await page.evaluate("document.activeElement.closest('ol')") is None
    await page.locator("#query").focus()
    await page.keyboard.type("jk")
    await expect(page.locator("#query")).to_have_value(f"{RIVER_QUESTION}jk")


async def test_light_and_dark(page: Page) -> None:
    async def lightness() -> float:
        colour = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3

    await page.emulate_media(color_scheme="dark")
    assert await lightness() < 60
    await page.emulate_media(color_scheme="light")
    assert await lightness() > 200
    theme = page.get_by_role("button", name="Theme")
    await theme.click()
    await theme.click()
    await expect(theme).to_have_text("Theme: dark")
    await page.reload()
    assert await lightness() < 60
    await theme.click()
    assert await lightness() > 200


async def test_axe_sees_a_fault(page: Page) -> None:
    """An empty list of violations means something."""
    await page.evaluate("document.querySelector('#query').labels[0].remove()")
    await page.evaluate("document.querySelector('#query').placeholder = ''")
    assert any("label" in each for each in await violations(page))
