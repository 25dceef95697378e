"""Judged questions on the evidence page, in a real Chromium against a real server."""

import asyncio
import csv
import io
from typing import Any

import aiohttp
import ir_measures
import pytest
from ir_measures import RR, nDCG
from playwright.async_api import Page, expect

from support.evidence_page import JUDGED, Site
from support.http_endpoint import METHODS
from support.page_use import answered, row, saved_text

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTIONS: Any = JUDGED["questions"]
QRELS = {each["id"]: each["grades"] for each in QUESTIONS}


async def runs_of(site: Site, rankers: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Ask the server the same questions, and return the run of each stage."""
    runs: dict[str, dict[str, dict[str, float]]] = {}
    url = f"{site.url.rstrip('/')}{METHODS}SearchAndRerank"
    async with aiohttp.ClientSession() as session:
        for ranker in rankers:
            for each in QUESTIONS:
                request = {"query": each["text"], "k": 100, "options": {"ranker": ranker}}
                async with session.post(url, json=request) as answered_:
                    results = (await answered_.json())["results"]
                scores = {result["id"]: -float(place) for place, result in enumerate(results)}
                runs.setdefault(ranker, {})[each["id"]] = scores
                first = {result["id"]: -float(result["index"]) for result in results}
                runs.setdefault("First stage", {})[each["id"]] = first
    return runs


async def test_figures_of_each_ranker_and_stage_are_those_of_ir_measures(page: Page, site: Site) -> None:
    await page.get_by_role("link", name="Judged questions").click()
    await expect(page.get_by_role("heading", name="3 judged questions about things")).to_be_visible()
    await page.get_by_role("checkbox", name="biencoder").check()
    await page.get_by_role("button", name="Measure").click()
    await expect(page.locator(".stages tbody tr")).to_have_count(3)
    await expect(page.locator(".running")).to_be_empty()
    runs = await runs_of(site, ["maxp", "biencoder"])
    shown = {
        await line.locator("th").inner_text(): await line.locator("td").all_inner_texts()
        for line in await page.locator(".stages tbody tr").all()
    }
    assert list(shown) == ["First stage", "maxp", "biencoder"]
    for name, run in runs.items():
        measured = ir_measures.calc_aggregate([nDCG @ 10, RR @ 10], QRELS, run)
        assert shown[name][:2] == [f"{measured[nDCG @ 10]:.3f}", f"{measured[RR @ 10]:.3f}"]
        assert shown[name][3] == "3"
    assert shown["First stage"][4] == "–"

    # Wins and losses, question by question.
    by_question = {
        name: {each.query_id: each.value for each in ir_measures.iter_calc([nDCG @ 10], QRELS, run)}
        for name, run in runs.items()
    }
    differences = {
        each["id"]: by_question["biencoder"].get(each["id"], 0)
        - by_question["First stage"].get(each["id"], 0)
        for each in QUESTIONS
    }
    wins = sum(value > 0 for value in differences.values())
    losses = sum(value < 0 for value in differences.values())
    balance = page.locator(".balance button")
    assert await balance.all_inner_texts() == [
        f"{wins} wins",
        f"{3 - wins - losses} ties",
        f"{losses} losses",
    ]
    await expect(page.locator(".against p")).to_contain_text("randomization test of 3 questions")
    listed = await page.locator(".question .text").all_inner_texts()
    order = sorted(QUESTIONS, key=lambda each: -differences[each["id"]])
    assert [differences[each["id"]] for each in order] == [
        differences[next(one["id"] for one in QUESTIONS if one["text"] == text)] for text in listed
    ]
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Save as CSV").click()
    table = csv.DictReader(io.StringIO(await saved_text(await download.value)))
    for line in table:
        for name in ("maxp", "biencoder"):
            assert float(line[name]) == pytest.approx(by_question[name].get(line["id"], 0), abs=1e-6)


async def test_the_evidence_of_a_question_is_one_click_away(page: Page) -> None:
    await page.get_by_role("link", name="Judged questions").click()
    await page.get_by_role("button", name="Measure").click()
    await expect(page.locator(".question")).to_have_count(3)
    await expect(page.locator(".running")).to_be_empty()
    await page.locator(".question").filter(has_text="where does the river rise").click()
    await answered(page)
    await expect(page.locator("judged-view")).to_be_hidden()
    await expect(row(page, "danube").locator(".grade")).to_have_text("judged 2")
    await expect(row(page, "rhine").locator(".grade")).to_have_text("judged 0")
    await expect(page.locator("#status")).to_contain_text("nDCG@10 0.")
    # The figures are still there on the way back.
    await page.go_back()
    await expect(page.locator(".question")).to_have_count(3)
    await expect(page.locator("#answer")).to_be_hidden()


async def test_measuring_is_cancelled(page: Page, site: Site) -> None:
    await page.get_by_role("link", name="Judged questions").click()
    site.goes_on.clear()
    await page.get_by_role("button", name="Measure").click()
    await expect(page.locator(".running")).to_contain_text("maxp: question 1 of 3")
    await page.locator(".running").get_by_role("button", name="Cancel").click()
    site.goes_on.set()
    await expect(page.locator(".running")).to_be_empty()
    await page.get_by_role("button", name="Measure").click()
    await expect(page.locator(".question")).to_have_count(3)


async def test_the_focus_stays_while_questions_are_asked(page: Page, site: Site) -> None:
    asked = asyncio.Semaphore(0)

    async def hold(route: Any) -> None:
        await asked.acquire()
        await route.continue_()

    await page.route("**/SearchAndRerank", hold)
    await page.goto(f"{site.url}?view=judged")
    await page.get_by_role("button", name="Measure").click()
    cancel = page.get_by_role("button", name="Cancel")
    await cancel.focus()
    asked.release()
    await expect(page.locator(".running")).to_contain_text("question 2 of 3")
    await expect(cancel).to_be_focused()
    asked.release()
    asked.release()
    await expect(page.locator(".running")).to_be_empty()
    await expect(page.get_by_role("button", name="Measure")).to_be_focused()

    # Figures of another number of candidates go at once; the title is that of the view.
    await expect(page.locator(".stages tr")).to_have_count(3)
    await expect(page).to_have_title("Judged questions – Farrank")
    await page.locator("judged-view input[name=k]").fill("2")
    await page.get_by_role("button", name="Measure").click()
    await expect(page.locator(".stages")).to_be_empty()
    await expect(page.locator(".against")).to_be_empty()
