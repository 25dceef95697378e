"""A search engine as first stage: its answers, and all failures between it and a search."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import trustme
from osmem_server import OsmemServer

import farrank_client
from farrank_calls.errors import (
    DeadlineExceeded,
    DroppedAt,
    Gone,
    InvalidArgument,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from farrank_client import AsyncClient
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.search_engine import SearchEngineConfig
from farrank_first_stage.stages import FirstStages, open_first_stages
from farrank_server.config.schema import ListenConfig, ServerConfig
from farrank_server.config.server_config import build_config
from farrank_server.replica import Replica
from farrank_settings.errors import ConfigError
from farrank_settings.sources import from_file
from support.search_engines import INDEX, TEXTS, Front, fill, serve, write_json

TIMEOUT_S = 20.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def behind() -> Iterator[OsmemServer]:
    with OsmemServer.start(japanese=False) as engine:
        assert engine.process.stdout is not None
        with closing(engine.process.stdout):  # it would otherwise stay open
            fill(engine)
            yield engine


@pytest.fixture(params=["opensearch", "elasticsearch"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def front_of(behind: OsmemServer, kind: str) -> Front:
    return Front(behind.url, "Elasticsearch" if kind == "elasticsearch" else None)


@pytest_asyncio.fixture
async def front(behind: OsmemServer, kind: str) -> AsyncIterator[Front]:
    async with serve(front_of(behind, kind)) as front:
        yield front


def config_of(kind: str, front: Front, **others: Any) -> SearchEngineConfig:
    options = {"hosts": (front.url,), "index": INDEX, "text_field": "body"} | others
    return SearchEngineConfig(kind=kind, **options)


@asynccontextmanager
async def opened(
    config: SearchEngineConfig, start_timeout_s: float = TIMEOUT_S
) -> AsyncIterator[FirstStages]:
    first_stage = FirstStageConfig({"news": config}, max_searches=4, start_timeout_s=start_timeout_s)
    stages = open_first_stages(first_stage)
    try:
        await stages.start()
        yield stages
    finally:
        await stages.stop()


@pytest_asyncio.fixture
async def stages(front: Front, kind: str) -> AsyncIterator[FirstStages]:
    async with opened(config_of(kind, front)) as stages:
        yield stages


async def refused_start(config: SearchEngineConfig, start_timeout_s: float = TIMEOUT_S) -> str:
    with pytest.raises(ConfigError) as refused:
        async with opened(config, start_timeout_s):
            pass
    return str(refused.value)


async def test_candidates_come_with_their_texts_best_first(stages: FirstStages) -> None:
    found = await stages.search("news", "river rhine", 10, TIMEOUT_S)

    assert [(each.doc_id, each.text) for each in found] == [(key, TEXTS[key][1]) for key in ("rhine", "sea")]
    assert found[0].score > found[1].score > 0
    assert [each.doc_id for each in await stages.search("news", "river rhine", 1, TIMEOUT_S)] == ["rhine"]
    assert await stages.search("news", "volcano", 10, TIMEOUT_S) == []


async def test_a_search_asks_for_no_more_than_it_needs_and_for_no_part_of_an_answer(
    front: Front, stages: FirstStages
) -> None:
    await stages.search("news", "river", 7, 60.0)

    asked = front.searches[-1]
    assert (asked.method, asked.path) == ("POST", f"/{INDEX}/_search")
    assert asked.query == {"allow_partial_search_results": "false"}
    timeout = asked.body.pop("timeout")
    assert timeout.endswith("ms")
    assert 30_000 < int(timeout.removesuffix("ms")) <= 60_000
    assert asked.body == {
        "query": {"match": {"body": {"query": "river"}}},
        "size": 7,
        "_source": ["body"],
        "track_total_hits": False,
    }


async def test_it_says_what_the_index_holds_and_how_it_ranks(stages: FirstStages, kind: str) -> None:
    [described] = stages.describe()

    assert (described.name, described.documents) == ("news", len(TEXTS))
    assert described.ranking == f"{kind}(bm25(k1=0.9,b=0.4))"
    assert described.mean_characters == round(sum(len(body) for _, body in TEXTS.values()) / len(TEXTS))


async def test_titles_stand_before_texts(front: Front, kind: str) -> None:
    async with opened(config_of(kind, front, title_field="title")) as stages:
        [found] = await stages.search("news", "flour", 10, TIMEOUT_S)

        assert found.text == "\n".join(TEXTS["bread"])


async def test_a_body_of_ones_own_takes_the_query_as_text(front: Front, kind: str, tmp_path: Path) -> None:
    tree = {
        "query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "body"]}},
        "rescore": {
            "window_size": "{{k}}",
            "query": {"rescore_query": {"match_phrase": {"body": "{{query}}"}}},
        },
    }
    async with opened(config_of(kind, front, body=write_json(tmp_path / "titles.json", tree))) as stages:
        query = '"}}, {{k}} {{query}} coasts'

        [found] = await stages.search("news", query, 5, TIMEOUT_S)

        assert found.doc_id == "sea"
        body = front.searches[-1].body
        assert body["query"]["multi_match"]["query"] == query
        assert body["rescore"]["window_size"] == 5
        assert body["rescore"]["query"]["rescore_query"]["match_phrase"]["body"] == query
        assert stages.describe()[0].ranking == f"{kind}(titles.json)"


async def test_equal_scores_are_in_the_order_of_ids_and_deep_and_missing_fields_are_read(
    front: Front, kind: str
) -> None:
    async with opened(config_of(kind, front, text_field="body", title_field="meta.title")) as stages:
        hits = [
            {"_id": "c", "_score": 1.0, "_source": {"meta": {"title": "deep"}, "body": ["one", "two"]}},
            {"_id": "b", "_score": 1.0, "_source": {"meta.title": "flat", "body": None}},
            {"_id": "a", "_score": 0.5},
            {"_id": "d", "_score": 2, "_source": {"body": "best"}},
        ]
        front.fault = front.change(hits={"hits": hits})

        found = await stages.search("news", "river", 10, TIMEOUT_S)

        assert [(each.doc_id, each.text) for each in found] == [
            ("d", "best"),
            ("b", "flat"),
            ("c", "deep\none\ntwo"),
            ("a", ""),
        ]


async def test_a_slow_engine_is_left_at_the_deadline_and_stops_searching(
    front: Front, stages: FirstStages
) -> None:
    front.fault, timeout_s = front.hang, 0.2
    front.arrived.clear()

    # On a busy machine a search may take longer to arrive there.
    while not front.arrived.is_set():
        with pytest.raises(DeadlineExceeded) as late:
            await stages.search("news", "river", 10, timeout_s)
        timeout_s *= 4

    assert late.value.dropped_at is DroppedAt.FIRST_STAGE
    # The engine sees a closed connection, at which both engines end the search.
    await asyncio.wait_for(front.left.wait(), TIMEOUT_S)
    front.fault = None
    assert await stages.search("news", "river", 10, TIMEOUT_S)


async def test_a_caller_that_leaves_takes_its_search_with_it(front: Front, stages: FirstStages) -> None:
    front.fault = front.hang
    front.arrived.clear()
    searching = asyncio.create_task(stages.search("news", "river", 10, TIMEOUT_S))
    await asyncio.wait_for(front.arrived.wait(), TIMEOUT_S)

    searching.cancel()

    with pytest.raises(asyncio.CancelledError):
        await searching
    await asyncio.wait_for(front.left.wait(), TIMEOUT_S)


async def test_searches_that_still_wait_end_with_the_server(front: Front, kind: str) -> None:
    async with opened(config_of(kind, front)) as stages:
        front.fault = front.hang
        front.arrived.clear()
        searching = asyncio.create_task(stages.search("news", "river", 10, TIMEOUT_S))
        await asyncio.wait_for(front.arrived.wait(), TIMEOUT_S)

    with pytest.raises(Unavailable):
        await asyncio.wait_for(searching, TIMEOUT_S)


async def test_a_host_that_says_nothing_is_given_up_before_a_late_deadline(front: Front, kind: str) -> None:
    async with opened(config_of(kind, front, host_timeout_s=0.2)) as stages:
        front.fault = front.hang

        with pytest.raises(Unavailable, match=r"no complete answer within 0\.2 s"):
            await stages.search("news", "river", 10, TIMEOUT_S)


async def test_searches_that_wait_are_bounded(front: Front, stages: FirstStages) -> None:
    front.fault = front.hang
    waiting = [asyncio.create_task(stages.search("news", "river", 10, TIMEOUT_S)) for _ in range(4)]
    await asyncio.sleep(0)  # each has reached its first wait

    with pytest.raises(ResourceExhausted, match="max_searches is 4") as full:
        await stages.search("news", "river", 10, TIMEOUT_S)

    assert full.value.reason is Reason.FIRST_STAGE_FULL
    assert full.value.retry_after_ms
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def error(kind: str, reason: str, *, cause: str = "") -> dict[str, Any]:
    """Return an error in the format of both engines."""
    caused = {"caused_by": {"type": cause, "reason": cause}} if cause else {}
    root = {"type": kind, "reason": reason, **caused}
    return {
        "type": "search_phase_execution_exception",
        "reason": "all shards failed",
        "root_cause": [root],
        "failed_shards": [{"shard": 0, "index": INDEX, "reason": root}],
    }


@pytest.mark.parametrize(
    ("status", "body", "expected", "says"),
    [
        (
            429,
            {"error": error("es_rejected_execution_exception", "rejected execution of search")},
            ResourceExhausted,
            "no room",
        ),
        (429, "Too many requests", ResourceExhausted, "no room"),
        (503, {"error": error("no_shard_available_action_exception", "web")}, Unavailable, "503"),
        (503, "<html>Service Unavailable</html>", Unavailable, "503"),
        (500, {"error": error("null_pointer_exception", "oops")}, Unavailable, "500"),
        (403, {"error": error("security_exception", "no permissions")}, Unavailable, "403"),
        (404, {"error": error("index_not_found_exception", "no such index")}, Unavailable, "404"),
        # The search's own `timeout`, in Elasticsearch's and in OpenSearch's words.
        (429, {"error": error("search_timeout_exception", "Time exceeded")}, DeadlineExceeded, "in time"),
        (500, {"error": error("query_phase_execution_exception", "Time exceeded")}, DeadlineExceeded, "in"),
        (
            400,
            {"error": error("query_shard_exception", "failed to create query", cause="too_many_clauses")},
            InvalidArgument,
            r"^query: .*max_clause_count",
        ),
        (
            400,
            {"error": error("illegal_argument_exception", "Result window is too large, from + size …")},
            InvalidArgument,
            r"^k: .*max_result_window",
        ),
    ],
)
async def test_an_engines_refusal_becomes_the_callers_error(
    front: Front, stages: FirstStages, status: int, body: Any, expected: type[Exception], says: str
) -> None:
    content_type = "text/plain" if isinstance(body, str) else "application/json"
    front.fault = front.say(body, status, content_type)

    with pytest.raises(expected, match=says) as refused:
        await stages.search("news", "river", 10, TIMEOUT_S)

    assert type(refused.value) is expected
    if expected in (ResourceExhausted, Unavailable):
        assert getattr(refused.value, "retry_after_ms", None)
        assert getattr(refused.value, "reason", None)
    front.fault = None
    assert len(front.searches) == 3  # two from the start and this one: there are no retries
    assert await stages.search("news", "river", 10, TIMEOUT_S)


async def test_the_pages_examples_are_taken(behind: OsmemServer, tmp_path: Path) -> None:
    pages = [
        (ROOT / "docs" / "how-to" / f"{name}.md").read_text() for name in ("first-stages", "search-engines")
    ]
    [yaml] = re.findall(r"```yaml\n(first_stage:\n  indexes:\n    docs: .*?)```", pages[0], re.DOTALL)
    [body] = re.findall(r"```json\n(.*?)```", pages[1], re.DOTALL)
    (tmp_path / "farrank.yaml").write_text(yaml, encoding="utf-8")
    (tmp_path / "body.json").write_text(body, encoding="utf-8")

    example = build_config(from_file(tmp_path / "farrank.yaml")).first_stage.indexes["web"]

    assert isinstance(example, SearchEngineConfig)
    async with serve(front_of(behind, "opensearch")) as front:
        ours = replace(
            example, hosts=(front.url,), ca_file=None, credentials_file=None, body=tmp_path / "body.json"
        )
        async with opened(ours) as stages:
            # No document here has the language of the filter.
            assert await stages.search("news", "river", 10, TIMEOUT_S) == []


async def test_an_engines_own_words_say_what_is_wrong_with_a_query(
    front: Front, kind: str, tmp_path: Path
) -> None:
    tree = {"query": {"query_string": {"query": "{{query}}", "fields": ["body"]}}}
    async with opened(config_of(kind, front, body=write_json(tmp_path / "syntax.json", tree))) as stages:
        assert await stages.search("news", "river AND sea", 10, TIMEOUT_S)
        with pytest.raises(InvalidArgument, match=r"^query: the search engine rejects it: .*river AND \("):
            await stages.search("news", "river AND (", 10, TIMEOUT_S)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (lambda front: front.break_off, Unavailable),
        (lambda front: front.close_unanswered, Unavailable),
        (lambda front: front.say('{"took": 3, "hits": {"hits": [{"_id"'), Unavailable),
        (lambda front: front.say({"took": 3}), Unavailable),
        (lambda front: front.say([]), Unavailable),
        (lambda front: front.say("<html>Sign in</html>", content_type="text/html"), Unavailable),
        (lambda front: front.change(hits={"hits": [{"_id": "a", "_score": None}]}), Unavailable),
        (lambda front: front.change(_shards={"total": 3, "successful": 2, "failed": 1}), Unavailable),
        (lambda front: front.change(timed_out=True), DeadlineExceeded),
    ],
    ids=["half", "none", "cut-json", "no-hits", "list", "page", "no-score", "part", "timed-out"],
)
async def test_a_part_of_an_answer_is_none(
    front: Front, stages: FirstStages, fault: Any, expected: type[Exception]
) -> None:
    front.fault = fault(front)

    with pytest.raises(expected) as refused:
        await stages.search("news", "river", 10, TIMEOUT_S)

    assert type(refused.value) is expected
    front.fault = None
    assert await stages.search("news", "river", 10, TIMEOUT_S)


async def test_a_dead_engine_is_logged_once_and_searched_again_after_its_return(
    behind: OsmemServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    front = front_of(behind, kind)
    async with AsyncExitStack() as first:
        await first.enter_async_context(serve(front))
        async with opened(config_of(kind, front)) as stages:
            await first.aclose()
            for _ in range(3):
                with pytest.raises(Unavailable) as down:
                    await stages.search("news", "river", 10, TIMEOUT_S)
                assert down.value.reason is Reason.FIRST_STAGE_DOWN
                assert down.value.retry_after_ms
            async with serve(front, port=front.port):
                assert await stages.search("news", "river", 10, TIMEOUT_S)

    said = [record.message for record in caplog.records if record.name.startswith("farrank")]
    assert [message.partition(": ")[0] for message in said] == ["first_stage.indexes.news"] * 2
    assert "does not answer" in said[0]
    assert "answers again" in said[1]
    assert not [record for record in caplog.records if record.exc_info]


async def test_one_dead_host_of_two_costs_one_search(behind: OsmemServer, front: Front, kind: str) -> None:
    other = front_of(behind, kind)
    async with AsyncExitStack() as dying:
        await dying.enter_async_context(serve(other))
        async with opened(config_of(kind, front, hosts=(front.url, other.url))) as stages:
            await dying.aclose()
            outcomes = []
            for _ in range(6):
                try:
                    outcomes.append(bool(await stages.search("news", "river", 10, TIMEOUT_S)))
                except Unavailable:
                    outcomes.append(False)

    assert outcomes.count(False) == 1


async def test_problems_of_the_configuration_stop_the_start(front: Front, kind: str, tmp_path: Path) -> None:
    key = r"first_stage.indexes.news"

    assert (
        await refused_start(config_of(kind, front, index="nope"))
        == f"{key}.index: there is no index 'nope' at {front.url}"
    )
    assert (await refused_start(config_of(kind, front, text_field="bdoy"))).startswith(
        f"{key}.text_field: 'bdoy': none of 3 documents"
    )
    wrong = write_json(tmp_path / "wrong.json", {"query": {"mtach": {"body": "{{query}}"}}})
    said = await refused_start(config_of(kind, front, body=wrong))
    assert said.startswith(f"{key}.body: the engine rejects it: ")
    assert "unknown query [mtach]" in said


async def test_an_engine_that_is_not_up_yet_is_waited_for(front: Front, kind: str) -> None:
    front.fault_all = front.say("starting", 503, "text/plain")

    async def comes_up() -> None:
        await front.arrived.wait()
        front.fault_all = None

    coming = asyncio.create_task(comes_up())
    async with opened(config_of(kind, front)) as stages:
        assert stages.describe()[0].documents == len(TEXTS)
    await coming


async def test_an_engine_that_never_answers_stops_the_start(front: Front, kind: str) -> None:
    front.fault_all = front.say("starting", 503, "text/plain")

    said = await refused_start(config_of(kind, front), 0.3)

    assert said.startswith(f"first_stage.indexes.news.hosts: {front.url}: no answer within")
    assert "503" in said


@pytest.mark.parametrize("answer", [{}, [], {"count": None}, "{}"])
async def test_other_services_than_search_engines_stop_the_start(
    front: Front, kind: str, answer: object
) -> None:
    front.fault_all = front.say(answer)

    assert "it answers, but not like a search engine" in await refused_start(config_of(kind, front))


async def test_elasticsearchs_client_takes_no_other_engine(behind: OsmemServer) -> None:
    async with serve(Front(behind.url)) as front:
        assert "it is not Elasticsearch" in await refused_start(config_of("elasticsearch", front))


async def test_a_call_over_the_wire_and_its_search_end_together(behind: OsmemServer) -> None:
    async with serve(front_of(behind, "opensearch")) as front:
        config = ServerConfig(
            first_stage=FirstStageConfig({"news": config_of("opensearch", front)}),
            listen=ListenConfig(port=0, metrics_port=None),
        )
        async with Replica(config) as replica, AsyncClient(replica.address, timeout_s=TIMEOUT_S) as client:
            ranking = await client.search_and_rerank("river", k=2)
            assert {result.id for result in ranking.results} == {"rhine", "sea"}

            front.fault, timeout_s = front.hang, 0.5
            front.arrived.clear()
            while not front.arrived.is_set():
                with pytest.raises(farrank_client.DeadlineExceeded):
                    await client.search_and_rerank("river", k=2, timeout_s=timeout_s)
                timeout_s *= 4
            await asyncio.wait_for(front.left.wait(), TIMEOUT_S)

            front.left.clear()
            front.arrived.clear()
            asking = asyncio.create_task(client.search_and_rerank("river", k=2))
            await asyncio.wait_for(front.arrived.wait(), TIMEOUT_S)
            asking.cancel()
            await asyncio.wait_for(front.left.wait(), TIMEOUT_S)


async def test_documents_that_another_index_found_are_read_and_scored_here(
    front: Front, kind: str, tmp_path: Path
) -> None:
    own = {"query": {"match": {"body": "{{query}}"}}}
    for body in (None, write_json(tmp_path / "own.json", own)):
        async with opened(config_of(kind, front, body=body)) as stages:
            stage = stages.stages["news"]
            found = await stage.search("river rhine", 10, TIMEOUT_S, texts=False)
            assert [(each.doc_id, each.text) for each in found] == [("rhine", ""), ("sea", "")]
            assert front.searches[-1].body["_source"] is False

            scores = await stage.scores("river rhine", ["bread", "sea"], TIMEOUT_S)
            texts = await stage.texts(["sea", "rhine"], TIMEOUT_S)

            assert scores == {"sea": found[1].score}
            assert texts == [TEXTS["sea"][1], TEXTS["rhine"][1]]
            with pytest.raises(Gone, match="no longer in the index: 'ocean', 'pond'") as gone:
                await stage.texts(["ocean", "sea", "pond"], TIMEOUT_S)
            assert gone.value.doc_ids == ("ocean", "pond")
            assert (await stage.locate(["sea"], TIMEOUT_S), stage.stores) == ([None], None)


SECRET = "reader:pa:ss"
BASIC = "Basic cmVhZGVyOnBhOnNz"


@pytest.mark.parametrize(
    ("secret", "header"),
    [(SECRET, BASIC), ("ApiKey a2V5\n", "ApiKey a2V5"), ("Bearer to.ken", "Bearer to.ken")],
)
async def test_credentials_come_from_a_file_or_the_environment_and_are_nowhere_else(
    front: Front,
    kind: str,
    secret: str,
    header: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "secret"
    path.write_text(secret, encoding="utf-8")
    monkeypatch.setenv("SEARCH_SECRET", secret)
    for place in ({"credentials_file": path}, {"credentials_env": "SEARCH_SECRET"}):
        config = config_of(kind, front, **place)
        async with opened(config) as stages:
            front.fault = front.say("down", 503, "text/plain")
            with pytest.raises(Unavailable) as down:
                await stages.search("news", "river", 10, TIMEOUT_S)
            front.fault = None
        assert {each.headers["authorization"] for each in front.asked} == {header}
        for written in (repr(config), str(down.value), caplog.text):
            assert secret.strip() not in written
            assert header not in written
        front.asked.clear()


async def test_wrong_credentials_stop_the_start_and_are_not_printed(
    front: Front, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_SECRET", SECRET)
    front.fault_all = front.say({"error": error("security_exception", "missing authentication")}, 401)

    said = await refused_start(config_of(kind, front, credentials_env="SEARCH_SECRET"))

    assert said.startswith("first_stage.indexes.news.credentials_env: ")
    assert "401" in said
    assert SECRET not in said


async def test_certificates_are_checked_against_the_given_authority(
    behind: OsmemServer, kind: str, tmp_path: Path
) -> None:
    ours, others = trustme.CA(), trustme.CA()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.issue_cert("127.0.0.1").configure_cert(serving)
    for name, authority in (("ours", ours), ("others", others)):
        authority.cert_pem.write_to_path(str(tmp_path / name))
    async with serve(front_of(behind, kind), serving) as front:
        async with opened(config_of(kind, front, ca_file=tmp_path / "ours")) as stages:
            assert await stages.search("news", "river", 10, TIMEOUT_S)
        for ca_file in (tmp_path / "others", None):
            said = await refused_start(config_of(kind, front, ca_file=ca_file))
            assert said.startswith(f"first_stage.indexes.news.hosts: {front.url}: ")
            assert "certificate" in said.lower()


def check(**options: Any) -> list[str]:
    required = {"hosts": ("http://127.0.0.1:1",), "index": "web", "text_field": "body"}
    config = SearchEngineConfig(kind="opensearch", **required | options)
    with pytest.raises(ConfigError) as refused:
        open_first_stages(FirstStageConfig({"news": config}))
    return [problem.removeprefix("first_stage.indexes.news.") for problem in refused.value.problems]


def test_files_and_credentials_are_checked_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEARCH_SECRET", raising=False)
    missing, list_, sized, blank = (tmp_path / name for name in ("missing", "list", "sized", "blank"))
    write_json(list_, [])
    write_json(sized, {"query": {"match": {"body": "{{query}}"}}, "size": 3})
    write_json(blank, {"query": {"match_all": {}}})

    for body, problem in ((missing, "No such file"), (list_, "is not a JSON object"), (blank, "{{query}}")):
        [said] = check(body=body)
        assert said.startswith(f"body: {body}: ")
        assert problem in said
    assert "sets size" in check(body=sized)[0]
    assert check(credentials_env="SEARCH_SECRET") == [
        "credentials_env: SEARCH_SECRET: is empty or missing: NAME:PASSWORD, ApiKey KEY, Bearer TOKEN"
    ]
    for secret in ("password", "Bearer a\tb", "ApiKey "):
        monkeypatch.setenv("SEARCH_SECRET", secret)
        [said] = check(credentials_env="SEARCH_SECRET")
        assert "SEARCH_SECRET: holds none of these" in said
        assert "password" not in said
    monkeypatch.setenv("SEARCH_SECRET", SECRET)
    problems = check(
        hosts=("https://127.0.0.1:1",),
        ca_file=list_,
        body=missing,
        credentials_env="SEARCH_SECRET",
        credentials_file=missing,
    )
    assert [problem.partition(":")[0] for problem in problems] == ["credentials_file", "body", "ca_file"]


@pytest.mark.parametrize(
    "hosts",
    [
        (),
        ("search.example:9200",),
        ("https://search.example",),
        ("ftp://a:1",),
        ("http://a:b",),
        ("http://search..example:9200",),
        (f"http://{'a' * 64}.example:9200",),
        ("https://a:1", "http://b:1"),
    ],
)
def test_hosts_are_whole_addresses_of_one_scheme(hosts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^hosts: .* all https or all http$"):
        SearchEngineConfig(kind="opensearch", hosts=hosts, index="web", text_field="body")


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match=r"^hosts: .*credentials_file") as refused:
        SearchEngineConfig(kind="opensearch", hosts=("http://me:secret@a:1",), index="web", text_field="b")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("kind", ["opensearch", "elasticsearch"])
def test_a_missing_package_is_named_with_its_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = SearchEngineConfig(kind=kind, hosts=("http://127.0.0.1:1",), index="web", text_field="body")

    with pytest.raises(ConfigError, match=rf"kind: {kind} needs a package: pip install 'farrank\[{kind}\]'"):
        open_first_stages(FirstStageConfig({"news": config}))
