"""The evidence page as a user operates it, in a real Chromium against a real server."""

import ast
import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Browser, FilePayload, Locator, Page, expect
from scipy.stats import kendalltau

from farrank_calls.key_file import add_key
from support.engine_bench import until
from support.evidence_page import RIVER, SCRIPT, TEXTS, Site, opened_site
from support.http_endpoint import METHODS

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUERY = "where does the river rise"
FOUND = len(TEXTS) - 1  # bread shares no word with it
LONG_CHARACTERS = 2_000_000


async def search(page: Page, query: str = QUERY, **chosen: str) -> None:
    """Send a query, and wait until the rankings are shown."""
    for name, value in chosen.items():
        await page.select_option(f"select[name={name}]", value)
    await page.fill("#query", query)
    await page.press("#query", "Enter")
    await expect(page.locator("#status")).to_contain_text("reranked in")
    await expect(page.locator("#progress")).to_be_hidden()


async def answer_of(site: Site, **options: Any) -> Any:
    """Return the server's own answer to the same query."""
    request = {"query": QUERY, "options": {"returnChunkScores": True, "returnTexts": True, **options}}
    url = f"{site.url.rstrip('/')}{METHODS}SearchAndRerank"
    async with aiohttp.ClientSession() as session, session.post(url, json=request) as answer:
        return await answer.json()


def row(page: Page, name: str, side: str = "a") -> Locator:
    """Return a document's row in one of the columns."""
    return page.locator(f'[data-side="{side}"] li').filter(
        has=page.get_by_role("button", name=name, exact=True)
    )


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
    """Return the passage that the reader shows, and check that it is in view."""
    spans = page.locator("passage-reader .current")
    await expect(spans.first).to_be_in_viewport()
    return "".join(await spans.all_text_contents())


async def test_a_search_shows_both_orders_and_where_the_evidence_lies(page: Page, site: Site) -> None:
    await search(page)
    answer = await answer_of(site)
    ranked = await page.locator('[data-side="a"] .name').all_text_contents()
    assert ranked == [each["id"] for each in answer["results"]]
    first = await page.locator('[data-side="first"] .name').all_text_contents()
    assert first == [name for name in TEXTS if name != "bread"]
    for place, each in enumerate(answer["results"]):
        move = page.locator('[data-side="a"] .move').nth(place)
        up = each["index"] - place
        await expect(move).to_contain_text(f"▲{up}" if up > 0 else f"▼{-up}" if up < 0 else "=")
    assert await page.locator("path.slope").count() == FOUND
    assert "q=where" in page.url
    await search(page, scale="sigmoid")
    scores = page.locator('[data-side="a"] .score')
    assert all(0 < float(each) < 1 for each in await scores.all_text_contents())
    assert await page.locator('[data-side="a"] .name').all_text_contents() == ranked
    await search(page, scale="")
    for each, shown in zip(answer["results"], await scores.all_text_contents(), strict=True):
        assert float(shown.replace("−", "-")) == pytest.approx(each["score"], abs=0.001)

    # The read part is at its exact position; the rest is hatched and labelled.
    rhine = next(each for each in answer["results"] if each["id"] == "rhine")
    strip = row(page, "rhine").locator("evidence-strip")
    chunks = strip.get_by_role("option")
    assert await chunks.count() == len(rhine["chunks"]) > 5
    for chunk, option in zip(rhine["chunks"], await chunks.all(), strict=True):
        begins, ends = await share(option, strip)
        assert begins == pytest.approx(chunk["start"] / len(TEXTS["rhine"]), abs=0.01)
        assert ends == pytest.approx(chunk["end"] / len(TEXTS["rhine"]), abs=0.01)
    begins, ends = await share(strip.locator(".tail"), strip)
    assert begins == pytest.approx(1 - int(rhine["charactersCut"]) / len(TEXTS["rhine"]), abs=0.01)
    assert ends == pytest.approx(1, abs=0.01)
    await expect(row(page, "rhine")).to_contain_text(f"about {rhine['tokensCut']:,} tokens not read")
    deciding = [chunk == rhine["decidingPassage"] for chunk in rhine["chunks"]].index(True)
    await expect(chunks.nth(deciding)).to_have_class(re.compile("deciding"))
    await expect(strip.locator(".deciding")).to_have_count(1)
    await expect(chunks.nth(deciding)).to_have_accessible_name(
        re.compile(f"passage {deciding + 1} of .*, the deciding one: evidence")
    )
    legend = page.locator("#legend")
    await expect(legend).to_contain_text("the score that the ranker gives to it alone")
    await expect(legend).to_contain_text("beyond a limit, not read")
    await expect(legend).not_to_contain_text("scored by the selector")
    await expect(strip.locator(".scored")).to_have_count(0)
    cut = rhine["chunksCut"]
    of_document = f"read {rhine['chunksRead']} of {rhine['chunksRead'] + cut} chunks"
    await expect(row(page, "rhine")).to_contain_text(of_document)
    await expect(strip).to_have_accessible_name(re.compile(f"^Evidence along rhine; {of_document}; about"))
    await expect(page.locator("call-figures table tr")).to_have_count(6)


async def test_each_part_of_a_strip_is_read_scored_or_beyond_a_limit(page: Page, site: Site) -> None:
    depth = {"mode": "DEPTH_MODE_ADAPTIVE", "chunks": 2}
    answer = await answer_of(site, depth=depth)
    results = {each["id"]: each for each in answer["results"]}
    danube, strip = results["danube"], row(page, "danube").locator("evidence-strip")
    await page.goto(f"{site.url}?q={QUERY}&depth=adaptive,chunks=2")
    await expect(page.locator("#status")).to_contain_text("reranked in")
    await expect(page.locator("select[name=depth]")).to_have_value("adaptive,chunks=2")
    read, scored, cut = (
        sum(each[f"chunks{state}"] for each in results.values()) for state in ("Read", "Scored", "Cut")
    )
    in_all = scored + cut
    assert read < in_all
    said = f"Read {read} of {in_all} chunks in {answer['usage']['rounds']} round"
    await expect(page.locator("#status")).to_contain_text(said)
    await expect(page.locator(".timings .note")).to_contain_text(f"read {read} of {in_all} chunks")
    await expect(row(page, "danube")).to_contain_text(
        f"read {danube['chunksRead']} of {danube['chunksScored']} chunks"
    )
    # The coloured chunks and the thin lines cover the document from its beginning to its end.
    await expect(strip.get_by_role("option")).to_have_count(danube["chunksRead"])
    parts = [await share(each, strip) for each in await strip.locator(".chunk, .scored").all()]
    assert await strip.locator(".scored").count() > 0
    at = 0.0
    for begins, ends in sorted(parts):
        assert begins <= at + 0.01
        at = max(at, ends)
    assert at == pytest.approx(1, abs=0.01)
    # Only what lies beyond a limit is hatched.
    assert [name for name, each in results.items() if each["chunksCut"]] == ["rhine"]
    await expect(page.locator("evidence-strip .tail")).to_have_count(1)
    await expect(row(page, "rhine").locator(".tail")).to_have_count(1)
    await expect(page.locator("#legend")).to_contain_text("scored by the selector, not read by the ranker")
    await expect(page.locator("#legend")).to_contain_text("beyond a limit, not read")
    only_scored = danube["chunksScored"] - danube["chunksRead"]
    await expect(strip).to_have_accessible_name(re.compile(f"chunks; {only_scored} only scored$"))
    # In forced colours the line and the chunks still differ from what is behind them.
    await page.emulate_media(forced_colors="active")
    colour = "(element) => getComputedStyle(element).backgroundColor"
    assert await strip.locator(".scored").first.evaluate(colour) != await strip.evaluate(colour)
    hatch = (
        await row(page, "rhine")
        .locator(".tail")
        .evaluate("(element) => getComputedStyle(element).backgroundImage")
    )
    assert hatch.startswith("repeating-linear-gradient")


async def test_a_click_opens_the_text_at_the_passage_and_keys_go_on(page: Page, site: Site) -> None:
    """Offsets are code points: the text before and within has emoji and combining characters."""
    await search(page)
    rhine = next(each for each in (await answer_of(site))["results"] if each["id"] == "rhine")
    passages = [TEXTS["rhine"][each["start"] : each["end"]] for each in rhine["chunks"]]
    options = row(page, "rhine").get_by_role("option")
    await options.nth(3).click()
    assert await current_text(page) == passages[3]
    await expect(options.nth(3)).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("n")
    assert await current_text(page) == passages[4]
    await page.keyboard.press("p")
    await page.keyboard.press("p")
    assert await current_text(page) == passages[2]
    await page.keyboard.press("d")
    assert (
        await current_text(page)
        == TEXTS["rhine"][rhine["decidingPassage"]["start"] : rhine["decidingPassage"]["end"]]
    )
    whole = await page.locator("passage-reader .text").text_content()
    assert whole == TEXTS["rhine"]
    unread = "".join(await page.locator("passage-reader .unread").all_text_contents())
    assert len(unread) == int(rhine["charactersCut"])

    # The address leads back to the same view.
    await page.reload()
    assert (
        await current_text(page)
        == TEXTS["rhine"][rhine["decidingPassage"]["start"] : rhine["decidingPassage"]["end"]]
    )
    await page.locator("passage-reader .text").focus()
    await page.keyboard.press("Escape")
    await expect(page.locator("passage-reader")).to_be_hidden()
    assert "doc=" not in page.url
    await expect(row(page, "rhine").locator(".name")).to_be_focused()


async def test_two_rankers_are_compared(page: Page, site: Site) -> None:
    await search(page, a="maxp", b="biencoder")
    await expect(page.locator("ranking-board.compared")).to_be_visible()
    of = {name: (await answer_of(site, ranker=name))["results"] for name in ("maxp", "biencoder")}
    for side, name in (("a", "maxp"), ("b", "biencoder")):
        shown = await page.locator(f'[data-side="{side}"] .name').all_text_contents()
        assert shown == [each["id"] for each in of[name]]
    scores = {name: {each["index"]: each["score"] for each in of[name]} for name in of}
    places = sorted(scores["maxp"])
    tau = kendalltau(*([scores[name][place] for place in places] for name in of)).statistic
    agreement = page.locator(".agreement")
    await expect(agreement).to_contain_text(f"{tau:.2f}".replace("-", "−"))
    await expect(agreement).to_contain_text(f"{FOUND} of {FOUND}")
    assert await page.locator(".timings").count() == 2
    assert "b=biencoder" in page.url
    # A document opens on the side where it was selected.
    await row(page, "rhine", "b").locator(".name").click()
    await expect(page.locator("passage-reader .facts")).to_contain_text(
        f"rank {[each['id'] for each in of['biencoder']].index('rhine') + 1} "
    )


async def test_the_address_and_the_way_back(page: Page) -> None:
    await search(page)
    await search(page, "sea brook")
    await page.go_back()
    await expect(page.locator("#query")).to_have_value(QUERY)
    await expect(page.locator('[data-side="a"] li')).to_have_count(FOUND)


async def test_documents_of_ones_own(page: Page, site: Site) -> None:
    await page.check("input[value=own]")
    await page.fill("#paste", f"{RIVER * 30}\n---\nBread is baked from flour.")
    await page.get_by_role("button", name="Add").click()
    lines = b'{"id": "b", "title": "T", "text": "x"}\n'
    await page.set_input_files("#files", file_of("two.jsonl", lines))
    names = page.locator("own-documents li .name")
    await expect(names).to_have_text(["pasted 1, 1", "pasted 1, 2", "T"])
    await page.get_by_role("button", name="Remove T").click()
    await page.fill("#paste", "not added yet, the river")
    await search(page, "river")
    assert sorted(await page.locator('[data-side="a"] .name').all_text_contents()) == [
        "pasted 1, 1",
        "pasted 1, 2",
        "pasted 2",
    ]
    await expect(page.locator('[data-side="first"] h3')).to_have_text("As you gave them")
    await row(page, "pasted 1, 1").locator(".name").click()
    assert (await current_text(page)) in RIVER * 30

    await page.fill("#paste", '[{"id": "no text"}]')
    await page.get_by_role("button", name="Add").click()
    await expect(page.locator("own-documents [role=alert]")).to_contain_text('has no field "text"')


async def test_no_message_becomes_markup(page: Page, site: Site) -> None:
    await search(page, f"river {SCRIPT}")
    await row(page, SCRIPT).locator(".name").click()
    assert SCRIPT in await current_text(page)
    await page.get_by_text("Ask the same from elsewhere").click()
    await page.check("input[value=own]")
    titled = b'{"id": "<b>1</b>", "title": "<script>window.harmed = true</script>", "text": "river <i>x</i>"}'
    await page.set_input_files("#files", file_of("<img src=x>.jsonl", titled))
    await expect(page.locator("own-documents li")).to_have_count(1)
    await search(page, f"<script>window.harmed = true</script> {SCRIPT}")
    await page.goto(f"{site.url}?q=<script>window.harmed=true</script>&a=<img src=x onerror=alert(1)>")
    await expect(page.locator("#problem")).to_contain_text("<img src=x onerror=alert(1)>")
    assert await page.evaluate("window.harmed") is None
    assert await page.locator("script").count() == 1
    assert await page.locator("img, i > *, b > b").count() == 0


async def test_an_error_is_reported_in_the_servers_words(page: Page, site: Site) -> None:
    await page.goto(f"{site.url}?q=river&a=nobody")
    problem = page.get_by_role("alert").filter(has_text="The server does not have that")
    await expect(problem).to_contain_text("known are: maxp, biencoder, both")
    await page.select_option("select[name=a]", "maxp")
    await search(page)
    await expect(page.locator("#problem")).to_be_hidden()
    await page.context.set_offline(True)
    await page.press("#query", "Enter")
    await expect(page.locator("#problem")).to_contain_text("The server cannot be reached")
    await page.context.set_offline(False)
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator('[data-side="a"] li')).to_have_count(FOUND)


async def test_nothing_found_and_nothing_asked(page: Page) -> None:
    await page.fill("#query", "xylophone")
    await page.press("#query", "Enter")
    await expect(page.locator("#status")).to_contain_text("The first stage found nothing in things")
    await expect(page.locator("#answer")).to_be_hidden()
    await page.fill("#query", "")
    await page.press("#query", "Enter")
    await expect(page.locator("#problem")).to_contain_text("query: is empty")


async def test_progress_is_shown_and_cancelling_takes_the_work_away(page: Page, site: Site) -> None:
    def cancelled() -> float:
        labels = {"door": "http", "method": "SearchAndRerank", "ranker": "maxp", "code": "CANCELLED"}
        return site.bench.count("farrank_requests_total", **labels)

    before = cancelled()
    site.goes_on.clear()
    await page.select_option("select[name=a]", "maxp")
    await page.fill("#query", "a river that nobody asked for before")
    await page.press("#query", "Enter")
    await expect(page.get_by_role("progressbar")).to_be_visible()
    await expect(page.locator("#progress")).to_contain_text("maxp: reading and scoring")
    await expect(page.locator("#patience")).to_be_visible()
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.locator("#status")).to_contain_text("Cancelled")
    await expect(page.locator("#progress")).to_be_hidden()
    site.goes_on.set()
    await until(lambda: cancelled() == before + 1 and site.bench.waiting() == 0)
    await search(page)


async def test_a_document_of_2_mb(page: Page) -> None:
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
    # Opened near its end, in a block that has not been laid out before.
    await row(page, "long.txt").locator("evidence-strip").focus()
    await page.keyboard.press("End")
    await page.keyboard.press("Enter")
    passage = await current_text(page)
    told = (await session.send("Performance.getMetrics"))["metrics"]
    assert 0 < next(each["value"] for each in told if each["name"] == "TaskDuration") < 5
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


async def test_light_and_dark(page: Page, browser: Browser, site: Site) -> None:
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


async def test_by_keyboard_alone(page: Page) -> None:
    await page.keyboard.press("/")
    await page.keyboard.type(QUERY)
    await page.keyboard.press("Enter")
    strip = page.locator('[data-side="a"] evidence-strip').first
    await expect(strip).to_be_visible()
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await strip.evaluate("(strip) => strip === document.activeElement"):
            break
    await expect(strip).to_be_focused()
    await page.keyboard.press("Home")
    await page.keyboard.press("ArrowRight")
    active = await strip.get_attribute("aria-activedescendant")
    await expect(page.locator(f"#{active}")).to_have_accessible_name(re.compile("passage 2 of"))
    await page.keyboard.press("Enter")
    await expect(page.locator("passage-reader .where")).to_contain_text("passage 2 of")
    await expect(page.locator("passage-reader .text")).to_be_focused()
    outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    before = await page.locator("passage-reader h2").text_content()
    await page.keyboard.press("j")
    await expect(page.locator("passage-reader h2")).not_to_have_text(before or "")
    await page.keyboard.press("k")
    await expect(page.locator("passage-reader h2")).to_have_text(before or "")
    await page.keyboard.press("Escape")
    await expect(page.locator("passage-reader")).to_be_hidden()


@pytest.mark.parametrize("width", [360, 1600])
async def test_nothing_is_outside_the_window(page: Page, width: int) -> None:
    await page.set_viewport_size({"width": width, "height": 800})
    await search(page, a="maxp", b="biencoder")
    sides = "[document.documentElement.scrollWidth, innerWidth]"
    assert len(set(await page.evaluate(sides))) == 1
    await row(page, "rhine", "b").locator("evidence-strip .chunk").nth(2).click()
    await expect(page.locator("passage-reader .current").first).to_be_in_viewport()
    assert len(set(await page.evaluate(sides))) == 1
    await page.get_by_role("button", name="Next ›").click()
    await expect(page.locator("passage-reader .where")).to_contain_text("passage 4 of")
    # Beside the rankings if there is room, otherwise over them.
    assert await page.locator('[data-side="b"] h3').is_visible()
    box = await page.locator("passage-reader").bounding_box()
    assert box
    assert (box["width"] == width) == (width == 360)


async def test_the_same_from_elsewhere(page: Page) -> None:
    """The copied curl command answers, and the copied Python is valid, whatever the texts contain."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await search(page, 'it\'s a "river" \\ 🙂')
    await page.get_by_text("Ask the same from elsewhere").click()
    copied = {}
    for name in ("curl", "Python client", "Cohere SDK", "Answer"):
        await page.get_by_role("tab", name=name).click()
        await page.get_by_role("button", name="Copy").click()
        await expect(page.locator("code-panel .note")).to_have_text("Copied.")
        copied[name] = await page.evaluate("navigator.clipboard.readText()")
    ran = await asyncio.create_subprocess_exec("sh", "-c", copied["curl"], stdout=asyncio.subprocess.PIPE)
    said, _ = await ran.communicate()
    assert ran.returncode == 0
    ids = [each["id"] for each in json.loads(said)["results"]]
    assert ids == await page.locator('[data-side="a"] .name').all_text_contents()
    compile(copied["Python client"], "client", "exec")
    compile(copied["Cohere SDK"], "cohere", "exec")
    assert RIVER * 150 in ast.literal_eval(
        re.search(r"^documents = (\[.*?^\])", copied["Cohere SDK"], re.S | re.M)[1]  # type: ignore[index]
    )
    assert copied["Answer"].startswith('{\n  "results": [')


async def test_a_server_that_drains_says_so(page: Page, tiny_rankers: dict[str, Path]) -> None:
    async with opened_site(tiny_rankers) as other:
        await page.goto(other.url)
        await search(page)
        await other.bench.engine.drain(1)
        await page.press("#query", "Enter")
        problem = page.locator("#problem")
        await expect(problem).to_contain_text("The server takes no calls right now")
        await expect(problem).to_contain_text("Ask again in")
        # It also says so to users who come now, instead of showing nothing.
        await page.goto(other.url)
        await expect(problem).to_contain_text("The server takes no calls right now")


async def test_a_key_is_asked_for_and_shown_with_every_call(
    browser: Browser, tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    key = add_key(tmp_path / "keys.toml", "reader", {"rankers": ["biencoder"]})
    async with opened_site(tiny_rankers, tmp_path / "keys.toml") as site:
        tab = await browser.new_page()
        await tab.goto(site.url)
        await expect(tab.locator("#problem h2")).to_have_text("The server asks for a key")
        for shown in ("farrank_wrong", key):
            await tab.get_by_label("API key").fill(shown)
            await tab.get_by_role("button", name="Show this key").click()
            if shown != key:
                await expect(tab.locator("#problem .said")).to_contain_text("the API key is unknown")
        await expect(tab.locator("#problem")).to_be_hidden()
        assert await tab.locator("select[name=a] option").all_inner_texts() == ["biencoder"]
        await search(tab)
        assert key not in tab.url
        assert key not in await tab.content()
        await tab.close()
