"""Judged questions: read at the start, refused by their key and file, served to callers who may search."""

import asyncio
import gzip
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from farrank_calls.key_file import add_key
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_server.config.schema import (
    HttpConfig,
    JudgementsConfig,
    ListenConfig,
    RankerConfig,
    ServerConfig,
)
from farrank_server.http.judgements import MAX_QUESTIONS, read_judgements
from farrank_server.replica import Replica
from farrank_settings.errors import ConfigError
from support.http_endpoint import OpenEndpoint
from support.kept_index import kept_index

QUESTIONS = "q1\twhere does the Rhine rise?\nq2\tnobody judged this\nq3\tKäse 🧀?\nq4\tonly junk\n"
QRELS = "q3 0 bread 0\nq1 0 rhine 2\nq1 0 sea 0\nq1 0 spam -2\nq4 0 spam -1\n"
SERVED = [
    {"id": "q1", "text": "where does the Rhine rise?", "grades": {"rhine": 2, "sea": 0}},
    {"id": "q3", "text": "Käse 🧀?", "grades": {"bread": 0}},
]


@pytest.fixture
def files(tmp_path: Path) -> JudgementsConfig:
    (tmp_path / "questions.tsv").write_text(QUESTIONS, encoding="utf-8")
    (tmp_path / "qrels.txt.gz").write_bytes(gzip.compress(QRELS.encode()))
    return JudgementsConfig(tmp_path / "questions.tsv", tmp_path / "qrels.txt.gz")


def of_page(**judgements: JudgementsConfig) -> HttpConfig:
    return HttpConfig(port=0, judgements=judgements)


def refused(http: HttpConfig) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as error:
        read_judgements(http, {"docs": None, "other": None})
    return error.value.problems


@pytest.mark.parametrize(
    ("questions", "qrels", "said"),
    [
        ("q1 no tab\n", QRELS, "questions: {questions}:1: 1 columns; queries have 2"),
        ("\n", QRELS, "questions: {questions}: there are no queries"),
        (None, QRELS, "questions: {questions}: No such file or directory"),
        (QUESTIONS, "q1 0 rhine\n", "qrels: {qrels}:1: 3 columns; qrels have 4"),
        (QUESTIONS, "q1 0 rhine good\n", "qrels: {qrels}:1: grade 'good' must be a whole number"),
        (QUESTIONS, "", "qrels: {qrels}: the qrels are empty"),
        (QUESTIONS, None, "qrels: {qrels}: No such file or directory"),
        (
            QUESTIONS,
            QRELS + "q8 0 a 1\nq9 0 a 1\n",
            "qrels: {qrels}: judges documents for 'q8', and {questions} has no such question (2 in all)",
        ),
        (QUESTIONS, "q1 0 rhine -1\n", "qrels: {qrels}: no question has a grade of 0 or more"),
        (
            "".join(f"q{n}\tquestion {n}\n" for n in range(MAX_QUESTIONS + 1)),
            "".join(f"q{n} 0 a 1\n" for n in range(MAX_QUESTIONS + 1)),
            "questions: {questions}: 10,001 questions have judgements; the limit is 10,000",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_its_key(
    tmp_path: Path, questions: str | None, qrels: str | None, said: str
) -> None:
    paths = {"questions": tmp_path / "questions.tsv", "qrels": tmp_path / "qrels.txt"}
    for path, content in zip(paths.values(), (questions, qrels), strict=True):
        if content is not None:
            path.write_text(content)
    (problem,) = refused(of_page(docs=JudgementsConfig(**paths)))
    assert problem.startswith(f"listen.http.judgements.docs.{said.format(**paths)}")


def test_every_problem_is_named(files: JudgementsConfig) -> None:
    absent = replace(files, qrels=Path("absent"))
    assert refused(of_page(nowhere=files, docs=files, other=absent)) == (
        "listen.http.judgements.nowhere: no index 'nowhere' is configured; known are: docs, other",
        "listen.http.judgements.other.qrels: absent: No such file or directory",
    )


@pytest.mark.parametrize(
    ("changes", "why"), [({"port": None}, "port is none"), ({"page": False}, "page is false")]
)
def test_without_the_page_nobody_reads_them(
    files: JudgementsConfig, changes: Mapping[str, Any], why: str
) -> None:
    http = replace(of_page(docs=files), **changes)
    assert refused(http) == (f"listen.http.judgements: is for the page, and listen.http.{why}",)


def test_as_many_as_allowed_are_read(tmp_path: Path) -> None:
    questions, qrels = tmp_path / "questions.tsv", tmp_path / "qrels.txt"
    questions.write_text("".join(f"q{n}\tquestion {n}\n" for n in range(MAX_QUESTIONS + 5)))
    qrels.write_text("".join(f"q{n} 0 a 1\n" for n in range(MAX_QUESTIONS)))
    (text,) = read_judgements(of_page(docs=JudgementsConfig(questions, qrels)), {"docs"}).values()
    assert text.count(b'"grades"') == MAX_QUESTIONS


async def test_without_judgements_there_are_no_sets(open_endpoint: OpenEndpoint) -> None:
    async with open_endpoint() as endpoint, endpoint.session.get("/judgements.json") as answer:
        assert (answer.status, await answer.json()) == (200, {"sets": []})
    async with open_endpoint(page=False) as endpoint, endpoint.session.get("/judgements.json") as answer:
        assert answer.status == 404


async def test_a_key_gets_the_sets_of_its_indexes(
    tiny_rankers: dict[str, Path], tmp_path: Path, files: JudgementsConfig
) -> None:
    index = await asyncio.to_thread(kept_index, tmp_path / "index", {"rhine": "The Rhine rises."}, [])
    keys = tmp_path / "keys.toml"
    named = {
        name: add_key(keys, name, rights)
        for name, rights in (("all", {}), ("one", {"indexes": ("other",)}), ("none", {"indexes": ()}))
    }
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None, keys=keys, http=of_page(docs=files, other=files)),
        first_stage=FirstStageConfig(indexes={"docs": Bm25Config(index), "other": Bm25Config(index)}),
    )
    async with Replica(config) as replica, aiohttp.ClientSession(replica.http_url) as session:
        for name, indexes in (("all", ["docs", "other"]), ("one", ["other"]), ("none", [])):
            headers = {"Authorization": f"Bearer {named[name]}"}
            async with session.get("/judgements.json", headers=headers) as answer:
                assert (answer.status, answer.content_type) == (200, "application/json")
                assert answer.headers["Cache-Control"] == "no-cache"
                sets = [{"index": each, "questions": SERVED} for each in indexes]
                assert await answer.json() == {"sets": sets}
        async with session.get("/judgements.json") as answer:
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert (await answer.json())["code"] == "unauthenticated"


async def test_a_wrong_file_stops_the_start(tiny_rankers: dict[str, Path], files: JudgementsConfig) -> None:
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None, http=of_page(docs=files)),
    )
    with pytest.raises(ConfigError, match=r"judgements\.docs: no index 'docs' .* known are: none"):
        async with Replica(config):
            pass
