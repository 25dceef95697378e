"""A search on the evidence page, in a real Chromium against a real server."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Request, expect
from scipy.stats import kendalltau

from farrank_calls.key_file import add_key
from support.engine_bench import until
from support.evidence_page import JUDGED, RIVER, RIVER_QUESTION, SCRIPT, TEXTS, Site, opened_site
from support.page_use import FOUND, answer_of, answered, file_of, names, row, search, share, unfold

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROW_PX = 64


async def test_a_search_shows_the_sentence_that_decided_and_the_whole_document(
    page: Page, site: Site
) -> None:
    await search(page)
    answer = await answer_of(site, evidenceDocuments=FOUND)
    assert await names(page) == [each["id"] for each in answer["results"]]
    for place, each in enumerate(answer["results"]):
        shown = page.locator("ranking-list li").nth(place)
        assert float(await shown.locator(".score").inner_text()) == pytest.approx(each["score"], abs=2e-3)
        up = each["index"] - place
        moved = f"▲{up}" if up > 0 else f"▼{-up}" if up < 0 else "="
        await expect(shown.locator(".move")).to_contain_text(moved)
        box = await shown.bounding_box()
        assert box
        assert box["height"] <= ROW_PX
        sentences = [" ".join(sentence["text"].split()) for sentence in each["sentences"]]
        assert await shown.locator(".sentence").inner_text() in sentences
    marks = await row(page, "danube").locator("mark").all_text_contents()
    assert set(marks) == {"river"}
    assert "q=where" in page.url

    # The read part is at its exact position; the rest is hatched.
    rhine = next(each for each in answer["results"] if each["id"] == "rhine")
    assert int(rhine["characters"]) == len(TEXTS["rhine"])
    strip = row(page, "rhine").locator(".strip")
    chunks = strip.locator(".chunk")
    assert await chunks.count() == len(rhine["chunks"]) > 5
    for chunk, shown in zip(rhine["chunks"], await chunks.all(), strict=True):
        begins, ends = await share(shown, strip)
        assert begins == pytest.approx(chunk["start"] / len(TEXTS["rhine"]), abs=0.01)
        assert ends == pytest.approx(chunk["end"] / len(TEXTS["rhine"]), abs=0.01)
    begins, ends = await share(strip.locator(".tail"), strip)
    assert begins == pytest.approx(1 - int(rhine["charactersCut"]) / len(TEXTS["rhine"]), abs=0.01)
    assert ends == pytest.approx(1, abs=0.01)
    deciding = [chunk == rhine["decidingPassage"] for chunk in rhine["chunks"]].index(True)
    await expect(chunks.nth(deciding)).to_have_class(re.compile("deciding"))
    in_all = rhine["chunksRead"] + rhine["chunksCut"]
    await expect(row(page, "rhine").locator(".partly")).to_contain_text(f"{rhine['chunksRead']} of {in_all}")
    await page.get_by_text("What the colours mean").click()
    await expect(page.locator("#legend")).to_contain_text("the score that the ranker gives to it alone")
    await expect(page.locator("#legend")).not_to_contain_text("scored by the selector")


async def test_scores_are_raw_if_asked(page: Page, site: Site) -> None:
    await search(page, scale="raw")
    raw = (await answer_of(site, scoreScale="SCORE_SCALE_RAW"))["results"]
    shown = await page.locator("ranking-list .score").all_text_contents()
    for each, text in zip(raw, shown, strict=True):
        assert float(text.replace("−", "-")) == pytest.approx(each["score"], abs=2e-3)


async def test_each_part_of_a_strip_is_read_scored_or_beyond_a_limit(page: Page, site: Site) -> None:
    depth = {"mode": "DEPTH_MODE_ADAPTIVE", "chunks": 2}
    answer = await answer_of(site, depth=depth)
    results = {each["id"]: each for each in answer["results"]}
    danube, strip = results["danube"], row(page, "danube").locator(".strip")
    await page.goto(f"{site.url}?q={RIVER_QUESTION}&depth=adaptive,chunks=2")
    await answered(page)
    await expect(page.locator("select[name=depth]")).to_have_value("adaptive,chunks=2")
    read, scored, cut = (
        sum(each[f"chunks{state}"] for each in results.values()) for state in ("Read", "Scored", "Cut")
    )
    assert read < scored + cut
    said = f"{read} of {scored + cut} chunks read in {answer['usage']['rounds']} round"
    await expect(page.locator("#status")).to_contain_text(said)
    await expect(row(page, "danube").locator(".partly")).to_contain_text(
        f"{danube['chunksRead']} of {danube['chunksScored']}"
    )
    # The coloured chunks and the thin lines cover the document from its beginning to its end.
    await expect(strip.locator(".chunk")).to_have_count(danube["chunksRead"])
    parts = [await share(each, strip) for each in await strip.locator(".chunk, .scored").all()]
    assert await strip.locator(".scored").count() > 0
    at = 0.0
    for begins, ends in sorted(parts):
        assert begins <= at + 0.01
        at = max(at, ends)
    assert at == pytest.approx(1, abs=0.01)

    # One document is read on, or all of them.
    await row(page, "danube").locator("button").click(position={"x": 80, "y": 12})
    await page.get_by_role("button", name="Read this document whole").click()
    await expect(page.locator("passage-reader .facts")).to_contain_text("when read whole")
    await expect(row(page, "danube").locator(".partly")).to_have_count(0)
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Read all of them whole").click()
    await answered(page)
    assert "depth=all" in page.url
    await expect(page.locator(".scored")).to_have_count(0)


async def hold_readings(page: Page, held: asyncio.Event) -> None:
    """Hold the calls that read whole documents. Those that fetch a text go on."""

    async def hold(route: Any) -> None:
        if "returnTexts" not in route.request.post_data:
            await held.wait()
        await route.continue_()

    await page.route("**/Rerank", hold)
    await unfold(page)
    await page.select_option("select[name=a]", "maxp")
    await page.fill("#query", RIVER_QUESTION)
    await page.press("#query", "Enter")
    await expect(page.locator("ranking-list li.pending").first).to_be_visible()


async def test_results_appear_as_they_come(page: Page, site: Site) -> None:
    """The beginnings of all documents are read first, then whole documents, with the share that is done."""
    calls: list[Request] = []
    page.on("request", lambda request: calls.append(request) if "Rerank" in request.url else None)
    held = asyncio.Event()
    await hold_readings(page, held)
    await expect(page.locator("#status")).to_contain_text("still reading")
    await expect(page.locator("#elapsed")).to_contain_text(re.compile(r"maxp: read \d+ of \d+ chunks, \d"))
    bar = page.get_by_role("progressbar")
    assert 0 < float(await bar.get_attribute("value") or 0) < float(await bar.get_attribute("max") or 0)
    # The first answer can be read while the rest comes.
    await row(page, "sea").locator("button").click(position={"x": 80, "y": 12})
    await expect(page.locator("passage-reader .facts")).to_contain_text("read 1 of")
    await page.keyboard.press("Escape")
    held.set()
    await answered(page)
    await expect(page.locator("li.pending")).to_have_count(0)
    assert await names(page) == [each["id"] for each in (await answer_of(site, ranker="maxp"))["results"]]
    assert len(calls) >= 2


async def test_rounds_leave_the_open_document_and_the_chosen_order(page: Page) -> None:
    held = asyncio.Event()
    await hold_readings(page, held)
    await expect(page.locator("#status")).to_contain_text(re.compile(r"^\d documents, still reading\."))
    await page.get_by_role("button", name="First stage", exact=True).click()
    await row(page, "sea").locator("button").click(position={"x": 80, "y": 12})
    text, facts = page.locator("passage-reader .text"), page.locator("passage-reader .facts")
    await expect(text).to_have_text(TEXTS["sea"])
    await expect(facts).to_contain_text("still reading · read 1 of")
    await text.hover()
    await page.mouse.wheel(0, 150)
    await asyncio.sleep(0.3)
    assert await text.evaluate("(text) => text.scrollTop") == 150
    held.set()
    await answered(page)
    await expect(page.locator("li.pending")).to_have_count(0)
    await expect(facts).not_to_contain_text("still reading")
    await expect(facts).to_contain_text(re.compile(r"read (\d+) of \1 chunks"))
    await expect(text).to_be_focused()
    assert await text.evaluate("(text) => text.scrollTop") == pytest.approx(150, abs=2)
    await expect(page.locator(".order[aria-pressed=true]")).to_have_text("First stage")
    assert await names(page) == [name for name in TEXTS if name != "bread"]


async def test_a_cancelled_answer_can_be_read_on(page: Page) -> None:
    held = asyncio.Event()
    await hold_readings(page, held)
    await page.get_by_role("button", name="Cancel").press("Enter")
    await expect(page.locator("#status")).to_contain_text(re.compile(r"^Cancelled\. \d documents in .* read"))
    await expect(page.locator("#query")).to_be_focused()
    await expect(page.locator("li.pending")).to_have_count(0)
    await expect(row(page, "sea").locator(".partly")).to_have_text(re.compile(r"^1 of \d+ chunks read$"))
    held.set()
    await row(page, "sea").locator("button").click(position={"x": 80, "y": 12})
    await page.get_by_role("button", name="Read this document whole").click()
    await expect(page.locator("passage-reader .facts")).to_contain_text("when read whole")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Read all of them whole").click()
    await answered(page)
    assert "depth=all" in page.url
    await expect(row(page, "danube").locator(".partly")).to_have_count(0)


async def test_a_document_is_read_whole_once(page: Page, site: Site) -> None:
    await page.goto(f"{site.url}?q={RIVER_QUESTION}&depth=adaptive,chunks=2")
    await answered(page)
    before = await names(page)
    await page.locator("ranking-list li button").first.click(position={"x": 80, "y": 12})
    twice = "(button) => { button.click(); button.click(); }"
    await page.get_by_role("button", name="Read this document whole").evaluate(twice)
    await expect(page.locator("passage-reader .facts")).to_contain_text("when read whole")
    await asyncio.sleep(0.5)
    assert await names(page) == before


async def test_texts_come_when_a_document_opens_and_little_is_moved(page: Page, site: Site) -> None:
    moved: dict[str, list[int]] = {}
    weighed: list[asyncio.Task[None]] = []

    async def weigh(request: Request) -> None:
        sizes = await request.sizes()
        moved.setdefault(request.url.rpartition("/")[2], []).append(sizes["responseBodySize"])

    def note(request: Request) -> None:
        weighed.append(asyncio.create_task(weigh(request)))

    page.on("requestfinished", note)
    await search(page, a="maxp")
    assert "Rhine" not in await page.content()
    assert max(moved["SearchAndRerank"]) < len(TEXTS["rhine"])
    rerank = len(moved.get("Rerank", []))
    await row(page, "rhine").locator("button").click(position={"x": 80, "y": 12})
    await expect(page.locator("passage-reader .current").first).to_be_visible()
    assert await page.locator("passage-reader .text").text_content() == TEXTS["rhine"]
    await until(lambda: len(moved["Rerank"]) == rerank + 1)
    # An opened text is kept.
    await page.keyboard.press("Escape")
    await row(page, "rhine").locator("button").click(position={"x": 80, "y": 12})
    assert await page.locator("passage-reader .text").text_content() == TEXTS["rhine"]
    assert len(moved["Rerank"]) == rerank + 1
    # A request that is weighed while the page closes would fail in the next test.
    page.remove_listener("requestfinished", note)
    await asyncio.gather(*weighed)


async def test_orders_are_chosen_and_filtered(page: Page, site: Site) -> None:
    await search(page)
    ranked = await names(page)
    await page.get_by_role("button", name="First stage", exact=True).click()
    assert await names(page) == [name for name in TEXTS if name != "bread"]
    await page.get_by_role("button", name="maxp", exact=True).click()
    assert await names(page) == ranked
    up = [place for place, each in enumerate((await answer_of(site))["results"]) if each["index"] > place]
    rose = page.get_by_role("button", name=re.compile("rose since the first stage"))
    await expect(rose).to_have_text(f"▲ {len(up)}")
    await rose.click()
    assert await names(page) == [ranked[place] for place in up]
    await rose.click()
    assert await names(page) == ranked
    # The line from a document's place before shows on hover.
    path = page.locator(".ladder path")
    await page.locator("ranking-list li").nth(up[0]).hover()
    await expect(path).to_have_class("up")
    assert (await path.get_attribute("d") or "").startswith("M1 ")


async def test_two_rankers_are_compared(page: Page, site: Site) -> None:
    await search(page, a="maxp", b="biencoder")
    of = {name: (await answer_of(site, ranker=name))["results"] for name in ("maxp", "biencoder")}
    for name in ("maxp", "biencoder"):
        await page.get_by_role("button", name=name, exact=True).click()
        assert await names(page) == [each["id"] for each in of[name]]
    scores = {name: {each["index"]: each["score"] for each in of[name]} for name in of}
    places = sorted(scores["maxp"])
    tau = kendalltau(*([scores[name][place] for place in places] for name in of)).statistic
    await page.get_by_text("Time and agreement").click()
    agreement = page.locator(".agreement")
    await expect(agreement).to_contain_text(f"{tau:.2f}".replace("-", "−"))
    await expect(agreement).to_contain_text(f"{FOUND} of {FOUND}")
    assert await page.locator(".timings").count() == 2
    assert "b=biencoder" in page.url
    # A document opens on the side whose order is shown.
    await row(page, "rhine").locator("button").click(position={"x": 80, "y": 12})
    rank = [each["id"] for each in of["biencoder"]].index("rhine") + 1
    await expect(page.locator("passage-reader .facts")).to_contain_text(f"rank {rank} ")


async def test_the_start_offers_judged_questions(page: Page) -> None:
    examples = page.locator(".example")
    assert await examples.all_text_contents() == [each["text"] for each in JUDGED["questions"]]  # type: ignore[index]
    await expect(page.locator("#holds")).to_contain_text("things: 1,000 documents")
    await examples.first.click()
    await answered(page)
    await expect(page.locator("#welcome")).to_be_hidden()
    await page.get_by_role("link", name="Farrank").click()
    await expect(examples.first).to_be_visible()
    await expect(page.locator("#answer")).to_be_hidden()


async def test_the_address_and_the_way_back(page: Page, site: Site) -> None:
    await search(page)
    await search(page, "sea brook")
    await page.go_back()
    await expect(page.locator("#query")).to_have_value(RIVER_QUESTION)
    await expect(page.locator("ranking-list li")).to_have_count(FOUND)
    await page.goto(f"{site.url}?q=river&index=nowhere")
    problem = page.get_by_role("alert")
    await expect(problem).to_contain_text("Index: this server has no “nowhere”. It has: things.")
    assert await page.locator("select[name=index] option").all_text_contents() == ["things (1,000)"]


async def test_documents_of_ones_own(page: Page) -> None:
    await page.get_by_role("button", name="Bring your own documents").click()
    await expect(page.locator("#paste")).to_be_focused()
    await page.fill("#paste", f"{RIVER * 30}\n---\nBread is baked from flour.")
    await page.get_by_role("button", name="Add").click()
    lines = b'{"id": "b", "title": "T", "text": "x"}\n'
    await page.set_input_files("#files", file_of("two.jsonl", lines))
    brought = page.locator("own-documents li .name")
    await expect(brought).to_have_text(["pasted 1, 1", "pasted 1, 2", "T"])
    await page.get_by_role("button", name="Remove T").click()
    await page.fill("#paste", "not added yet, the river")
    await search(page, "river")
    assert sorted(await names(page)) == ["pasted 1, 1", "pasted 1, 2", "pasted 2"]
    await page.get_by_role("button", name="As given").click()
    assert await names(page) == ["pasted 1, 1", "pasted 1, 2", "pasted 2"]
    await row(page, "pasted 1, 1").locator("button").click(position={"x": 80, "y": 12})
    await expect(page.locator("passage-reader .text")).to_have_text(RIVER * 30)
    # They are there for the question before, until the page is loaded anew.
    await page.keyboard.press("Escape")
    await search(page, "flour")
    await page.go_back()
    await expect(page).to_have_title(re.compile("^river"))
    await answered(page)
    assert await page.locator("ranking-list mark").all_text_contents() != []
    await page.reload()
    await expect(page.locator("#problem")).to_contain_text("Bring them again")

    await page.fill("#paste", '[{"id": "no text"}]')
    await page.get_by_role("button", name="Add").click()
    await expect(page.locator("own-documents [role=alert]")).to_contain_text('has no field "text"')


async def test_no_message_becomes_markup(page: Page, site: Site) -> None:
    await search(page, f"river {SCRIPT}")
    await row(page, SCRIPT).locator("button").click(position={"x": 80, "y": 12})
    await expect(page.locator("passage-reader .text")).to_contain_text(SCRIPT)
    await page.keyboard.press("Escape")
    await page.get_by_text("The same call from code").click()
    await unfold(page)
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


async def test_an_error_is_reported_in_the_pages_words(page: Page, site: Site) -> None:
    await page.goto(f"{site.url}?q=river&a=nobody")
    problem = page.locator("#problem")
    await expect(problem).to_contain_text(
        "Ranker: this server has no “nobody”. It has: maxp, biencoder, both."
    )
    await search(page)
    await expect(problem).to_be_hidden()
    # A second try cannot help here, and can there.
    await page.goto(f"{site.url}?q=river&k=100000")
    await expect(problem).to_contain_text("Candidates: is 100000; max_documents is")
    await expect(problem.get_by_role("button")).to_have_count(0)
    await page.goto(site.url)
    await search(page)
    await page.context.set_offline(True)
    await page.press("#query", "Enter")
    await expect(problem).to_contain_text("The server cannot be reached")
    await page.context.set_offline(False)
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator("ranking-list li")).to_have_count(FOUND)


async def test_nothing_found_and_nothing_asked(page: Page) -> None:
    await page.fill("#query", "xylophone")
    await page.press("#query", "Enter")
    await expect(page.locator("#status")).to_contain_text("Nothing in things has a word of this question")
    await expect(page.locator("#answer")).to_be_hidden()
    await page.fill("#query", "")
    await page.press("#query", "Enter")
    await expect(page.locator("#problem")).to_contain_text("Question: is empty")


async def test_progress_is_shown_and_cancelling_takes_the_work_away(page: Page, site: Site) -> None:
    def cancelled() -> float:
        labels = {"door": "http", "method": "SearchAndRerank", "ranker": "maxp", "code": "CANCELLED"}
        return site.bench.count("farrank_requests_total", **labels)

    running = {"door": "http", "method": "SearchAndRerank"}
    # The test before may have left a call that is cancelled only now.
    await until(lambda: site.bench.count("farrank_requests_in_flight", **running) == 0)
    before = cancelled()
    site.goes_on.clear()
    await page.fill("#query", "a river that nobody asked for before")
    await page.press("#query", "Enter")
    await expect(page.get_by_role("progressbar")).to_be_visible()
    await expect(page.locator("#progress")).to_contain_text(re.compile(r"maxp: \d"))
    # A call that is cancelled on its way is none of the ranker's.
    await until(lambda: site.bench.count("farrank_requests_in_flight", **running) == 1)
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.locator("#status")).to_contain_text("Cancelled")
    await expect(page.locator("#progress")).to_be_hidden()
    site.goes_on.set()
    await until(lambda: cancelled() == before + 1 and site.bench.waiting() == 0)
    await search(page)


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


async def test_a_key_is_asked_for_and_sent_with_every_call(
    browser: Browser, tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    key = add_key(tmp_path / "keys.toml", "reader", {"rankers": ["biencoder"]})
    async with opened_site(tiny_rankers, tmp_path / "keys.toml") as site:
        tab = await browser.new_page()
        await tab.goto(site.url)
        await expect(tab.locator("#problem h2")).to_have_text("The server asks for a key")
        await expect(tab.locator("#problem .said")).to_have_text("an API key is required")
        # A question that is asked before the key waits for it.
        await tab.fill("#query", RIVER_QUESTION)
        await tab.press("#query", "Enter")
        for shown in ("farrank_wrong", key):
            await tab.get_by_label("API key").fill(shown)
            await tab.get_by_role("button", name="Use this key").click()
            if shown != key:
                await expect(tab.locator("#problem .said")).to_contain_text("the API key is unknown")
                await expect(tab.get_by_label("API key")).to_be_focused()
        await expect(tab.locator("#problem")).to_be_hidden()
        await answered(tab)
        await expect(tab.locator("#query")).to_be_focused()
        assert await tab.locator("select[name=a] option").all_inner_texts() == ["biencoder"]
        await search(tab)
        await tab.get_by_text("The same call from code").click()
        await expect(tab.locator("code-panel pre")).to_contain_text("$FARRANK_API_KEY")
        assert key not in tab.url
        assert key not in await tab.content()
        await tab.close()
