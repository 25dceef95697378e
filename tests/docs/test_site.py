"""The documentation's site: it builds without a warning, and its pages keep their promises."""

import json
import re
import subprocess
import sys
from argparse import ArgumentParser
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import farrank
from farrank.v1 import rerank_pb2 as pb
from farrank_cli.main import COMMANDS, load
from farrank_docs.extension import SECTIONS, expanded, first_sentence
from farrank_docs.python_names import listed
from farrank_docs.records import FOLDER as DECISIONS
from farrank_docs.records import status_of
from farrank_docs.reports import dated, replaced_by
from farrank_first_stage.kinds import INDEX_KINDS
from farrank_page.documentation import documentation_routes
from farrank_page.openapi import describe
from farrank_server.config.schema import ServerConfig
from farrank_server.http.dialects.dialect_request import RerankBody
from farrank_server.http.dialects.score import ScoreBody
from farrank_settings.sources import keys_of
from support.browser import TIMEOUT_MS, opened_browser
from support.http_endpoint import opened_endpoint

DOCS = Path(__file__).parents[2] / "docs"
RECORD = DECISIONS / "0076-a-documentation-site.md"
MOST_WORDS, MOST_CLICKS = 1500, 3


def build(source: Path, out: Path) -> "subprocess.CompletedProcess[str]":
    """Build as `make docs` does."""
    flags = ("--fail-on-warning", "--keep-going", "--quiet", "--jobs", "2", "--doctree-dir", f"{out}-trees")
    command = [sys.executable, "-m", "sphinx", *flags, str(source), str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


class Html(HTMLParser):
    """The links of a page's own text, all its ids, and whatever a strict policy of a browser would refuse."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.refused: list[str] = []
        self._is_text = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        if tag == "article":
            self._is_text = True
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and self._is_text:
            self.links.append(given.get("href", ""))
        loaded = given.get("src", "") or (given.get("href", "") if tag == "link" else "")
        if tag == "style" or (tag == "script" and "src" not in given) or urlsplit(loaded).scheme:
            self.refused.append(tag)
        self.refused += [name for name in given if name == "style" or name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._is_text = False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("documentation") / "site"
    done = build(DOCS, out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Html]:
    return {path.relative_to(site).as_posix(): Html(path) for path in site.rglob("*.html")}


def leads_to(page: str, link: str) -> tuple[str, str]:
    """Return the page and the anchor of a relative link; other links lead to no page."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return "", ""
    target = (Path("/", page).parent / unquote(parts.path)).resolve() if parts.path else Path("/", page)
    return target.as_posix().lstrip("/"), unquote(parts.fragment)


def clicks_to(pages: dict[str, Html]) -> dict[str, int]:
    """Return the clicks from the start to each page, by links in the pages' texts."""
    clicks, waiting = {"index.html": 0}, ["index.html"]
    for page in waiting:
        for target, _ in (leads_to(page, link) for link in pages[page].links):
            if target in pages and target not in clicks:
                clicks[target] = clicks[page] + 1
                waiting.append(target)
    return clicks


def tasks() -> list[tuple[str, str]]:
    """Return the tasks of a stranger in the decision record, each with the page and the anchor for it."""
    text = RECORD.read_text(encoding="utf-8").partition("| task | page |")[2]
    return re.findall(r"^\| (.+?) \| `(\S+?)` \|$", text, re.MULTILINE)


def test_eight_tasks_of_a_stranger_are_done_within_three_clicks(pages: dict[str, Html]) -> None:
    clicks = clicks_to(pages)
    assert len(tasks()) == 8
    for task, place in tasks():
        page, _, anchor = place.partition("#")
        assert clicks[page] <= MOST_CLICKS, task
        assert not anchor or anchor in pages[page].ids, task


def test_every_page_can_be_reached_from_the_start(pages: dict[str, Html]) -> None:
    assert pages.keys() - clicks_to(pages).keys() == {"search.html"}


def test_links_inside_the_site_lead_to_files_and_anchors(site: Path, pages: dict[str, Html]) -> None:
    for page, html in pages.items():
        for target, anchor in (leads_to(page, link) for link in html.links):
            assert not target or (site / target).is_file(), (page, target)
            assert not anchor or target not in pages or anchor in pages[target].ids, (page, target, anchor)


def test_pages_load_only_files_of_the_site(pages: dict[str, Html]) -> None:
    assert {page: html.refused for page, html in pages.items() if html.refused} == {}


async def test_a_browser_searches_and_reads_without_a_complaint_or_a_foreign_request(
    site: Path, tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = partial(documentation_routes, site)
    monkeypatch.setattr("farrank_server.http.application.documentation_routes", routes)
    complaints: list[str] = []
    asked: list[str] = []
    async with opened_endpoint(tiny_rankers) as endpoint, opened_browser() as browser:
        tab = await browser.new_page(color_scheme="dark")
        tab.set_default_timeout(TIMEOUT_MS)
        tab.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        await tab.goto(f"{endpoint.listener.url}/docs")
        paper = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(20, 23, 28)"  # the evidence page's
        await tab.fill("input[name=q]", "revoke an API key")
        await tab.keyboard.press("Enter")
        await tab.locator("ul.search a", has_text=re.compile("^API keys$")).click()
        await tab.wait_for_url("**/how-to/api-keys.html*")
        assert await tab.locator("h1").inner_text() == "API keys"
        await tab.locator(".theme-toggle:visible").first.click()
    assert complaints == []
    assert len(asked) > 10
    assert {url for url in asked if not url.startswith(f"{endpoint.listener.url}/")} == set()


def test_no_page_but_references_is_long() -> None:
    folders = ("tutorial", "how-to", "explanation")
    checked = [path for folder in folders for path in (DOCS / folder).glob("*.md")]
    assert len(checked) > 40
    lengths = {path.name: len(expanded(path).split()) for path in checked}
    assert {name: words for name, words in lengths.items() if words > MOST_WORDS} == {}


def test_each_page_is_there_as_markdown_and_listed_for_language_models(
    site: Path, pages: dict[str, Html]
) -> None:
    copies = {path.relative_to(site).as_posix() for path in site.rglob("*.md")}
    assert copies == {page.replace(".html", ".md") for page in pages if page != "search.html"}
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# Farrank\n\n> Farrank reranks whole long documents")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == list(SECTIONS.values())
    named = re.findall(r"^- \[.+\]\((\S+\.md)\)(?:: .+)?$", text, re.MULTILINE)
    assert sorted(named) == sorted(each for each in copies if Path(each).name != "index.md")
    made = (site / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert "| `listen.port` | whole number | `50051` |" in made
    assert "{generated}" not in made


def test_the_search_knows_the_words_of_the_pages(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(index.removeprefix("Search.setIndex(").rstrip(")\n"))
    places = found["terms"]["revok"]  # stems, as the page's script makes them
    names = [found["docnames"][each] for each in (places if isinstance(places, list) else [places])]
    assert "how-to/api-keys" in names


def test_all_keys_of_the_configuration_are_there() -> None:
    page = expanded(DOCS / "reference" / "configuration.md")
    keys = set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))
    assert keys == set(keys_of(ServerConfig, INDEX_KINDS))
    assert "| `limits.max_documents` | whole number | `1000` | at least 1 |" in page


def test_all_commands_and_flags_are_there() -> None:
    page = expanded(DOCS / "reference" / "command-line.md")
    for name in COMMANDS:
        assert f"\n## farrank {name}\n" in page
        parser = ArgumentParser()
        load(name).configure(parser)
        for flag in (flag for action in parser._actions for flag in action.option_strings):
            assert flag in page, (name, flag)
    assert "\n### farrank loadtest capacity\n" in page


def test_all_operations_of_http_and_their_types_are_there() -> None:
    page = expanded(DOCS / "reference" / "openapi.md")
    described = describe((RerankBody, ScoreBody))
    for path, operations in described["paths"].items():
        assert all(f"\n## `{method.upper()} {path}`\n" in page for method in operations)
    assert all(f"\n### {name}\n" in page for name in described["components"]["schemas"])


def test_all_messages_of_the_contract_are_there() -> None:
    page = expanded(DOCS / "reference" / "contract.md")
    names = [*pb.DESCRIPTOR.message_types_by_name, *pb.DESCRIPTOR.enum_types_by_name]
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE)[0] == "RerankService"
    assert sorted(re.findall(r"^## (\w+)$", page, re.MULTILINE)[1:]) == sorted(names)


def test_all_public_names_of_python_are_there_and_the_page_is_the_same_twice() -> None:
    page = expanded(DOCS / "reference" / "python.md")
    names = {f"farrank.{name}" for name in (*farrank.__all__, "Reranker")}
    names |= {f"{module}.{name}" for module, found in listed() for name in found}
    assert set(re.findall(r"^### `([\w.]+)`$", page, re.MULTILINE)) == names
    assert "#### `Client.search_and_rerank`" in page
    assert " at 0x" not in page


def test_all_metrics_have_their_texts() -> None:
    page = expanded(DOCS / "reference" / "metrics.md")
    assert "| `farrank_batch_tokens` | histogram | `ranker` | Padded tokens of a batch |" in page


def test_a_record_that_a_later_one_replaces_names_it() -> None:
    statuses = {path.name: status_of(path) for path in DECISIONS.glob("[0-9]*.md")}
    found = 0
    for name, status in statuses.items():
        if sentence := re.match(r"accepted\. (?:It r|R)eplaces (.*?)(?:\. [A-Z]|; |$)", status):
            for older in re.findall(r"\]\((\d{4}[\w-]+\.md)\)", sentence[1]):
                assert name in statuses[older], f"{older} does not name {name}"
                found += 1
    assert found >= 8


def test_a_report_names_the_later_one_that_replaces_it(pages: dict[str, Html]) -> None:
    reports = dict(dated())
    replaced = {name: found for name, path in reports.items() if (found := replaced_by(path))}
    assert len(replaced) >= 5
    for name, link in replaced.items():
        assert re.findall(r"\((.*)\)", link)[0][:10] >= name[:10]
    listed_there = {
        leads_to("benchmarks/index.html", link)[0] for link in pages["benchmarks/index.html"].links
    }
    assert len({each for each in listed_there if each.startswith("benchmarks/2")}) == len(reports)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A site of one page, with the settings of the real one."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("_static", "_templates", "farrank_docs"):
        (source / name).symlink_to(DOCS / name)
    settings = (DOCS / "conf.py").read_text(encoding="utf-8")
    (source / "conf.py").write_text(settings.replace('"../page', f'"{DOCS.parent}/page'), encoding="utf-8")
    return source


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("gone.md", "gone.md"),
        ("index.md#gone", "gone"),
        ("{generated}", "{generated} nothing: is not one of"),
    ],
)
def test_a_broken_link_or_part_ends_the_build(small: Path, link: str, problem: str) -> None:
    broken = f"[here]({link})" if link != "{generated}" else "```{generated} nothing\n```"
    (small / "index.md").write_text(f"# Start\n\n{broken}\n", encoding="utf-8")
    done = build(small, small.parent / "site")
    assert done.returncode != 0
    assert problem in done.stderr
    (small / "index.md").write_text("# Start\n\n[here](index.md#start)\n", encoding="utf-8")
    assert build(small, small.parent / "site").returncode == 0


def test_links_out_of_the_site_become_names_of_files(tmp_path: Path) -> None:
    page = DOCS / "reference" / "contract.md"
    assert "`proto/farrank/v1/rerank.proto`" in expanded(page)
    assert "](../../" not in expanded(page)


def test_the_first_sentence_of_a_page_has_no_link_and_no_code() -> None:
    text = "# A\n\n```bash\nrun\n```\n\nIt [reads](a.md) all\nof it. `More` follows."
    assert first_sentence(text) == "It reads all of it."
