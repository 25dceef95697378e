"""Cohere's SDK: v1 and v2, synchronous and asynchronous."""

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any

import cohere
import pytest
from cohere.core.api_error import ApiError

from support.asked_server import AskedServer

MODEL = "rerank-v3.5"


def pairs(answer: Any) -> list[tuple[int, float]]:
    return [(each.index, each.relevance_score) for each in answer.results]


@pytest.fixture
def v1(server: AskedServer) -> cohere.Client:
    return cohere.Client(base_url=server.url, api_key="unused")


@pytest.fixture
def v2(server: AskedServer) -> Any:
    return server.run_written("Cohere")["client"]


def test_the_lines_of_the_page(server: AskedServer) -> None:
    answer = server.run_written("Cohere")["answer"]
    server.check(pairs(answer))
    assert answer.id
    assert answer.meta.api_version.version == "2"
    assert answer.meta.billed_units.search_units == 1
    assert answer.meta.tokens.input_tokens > len(server.documents)


def test_its_variable_names_the_server(server: AskedServer) -> None:
    # The variable is read when the module is imported.
    script = (
        "import cohere, json, sys\n"
        "query, *documents = json.load(sys.stdin)\n"
        "client = cohere.ClientV2(api_key='unused')\n"
        f"answer = client.rerank(model={MODEL!r}, query=query, documents=documents)\n"
        "print(json.dumps([(each.index, each.relevance_score) for each in answer.results]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps([server.query, *server.documents]),
        env={**os.environ, "CO_API_URL": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    server.check(map(tuple, json.loads(done.stdout)))


def test_the_asynchronous_client(server: AskedServer) -> None:
    async def ask() -> Any:
        client = cohere.AsyncClientV2(base_url=server.url, api_key="unused")
        return await client.rerank(model=MODEL, query=server.query, documents=server.documents, top_n=3)

    server.check(pairs(asyncio.run(ask())), 3)


def test_unread_text_gives_a_warning(server: AskedServer, v2: Any) -> None:
    asked = {"model": MODEL, "query": server.query, "documents": server.documents, "max_tokens_per_doc": 64}
    answer = v2.rerank(**asked, request_options={"additional_body_parameters": {"depth": "all"}})
    (warning,) = [each for each in answer.meta.warnings if "document 1 " in each]
    assert warning.endswith("tokens of document 1 were not read")
    # The chunk that adaptive depth reads is chosen from the whole document.
    answer = v2.rerank(**asked)
    assert answer.meta.warnings is None
    assert answer.meta.chunks["read"] == len(server.documents) < answer.meta.chunks["scored"]


def test_v1_returns_documents_and_takes_fields(server: AskedServer, v1: cohere.Client) -> None:
    answer = v1.rerank(
        model=MODEL, query=server.query, documents=server.documents, top_n=4, return_documents=True
    )
    server.check(pairs(answer), 4)
    assert [each.document.text for each in answer.results] == [server.documents[n] for n in server.order[:4]]
    assert v1.rerank(query=server.query, documents=server.documents).results[0].document is None
    fields = [{"body": text, "title": "none"} for text in server.documents]
    server.check(pairs(v1.rerank(query=server.query, documents=fields, rank_fields=["body"])))


def test_relevant_spans_are_places_in_the_text(server: AskedServer, v2: Any) -> None:
    options = {"relevant_spans": {"mode": "enabled", "threshold": 0.0, "max_spans": 2}}
    answer = v2.rerank(
        model=MODEL,
        query=server.query,
        documents=server.documents,
        request_options={"additional_body_parameters": options},
    )
    server.check(pairs(answer))
    for result in answer.results:
        spans = [dict(each) for each in result.relevant_spans]
        text = server.documents[result.index]
        assert 1 <= len(spans) <= 2
        assert [each["score"] for each in spans] == sorted((each["score"] for each in spans), reverse=True)
        assert all(0 <= each["start"] < each["end"] <= len(text) for each in spans)


def test_errors_are_its_own_with_the_servers_words(server: AskedServer, v1: cohere.Client, v2: Any) -> None:
    for client in (v1, v2):
        with pytest.raises(cohere.NotFoundError) as unknown:
            client.rerank(model="nobody", query=server.query, documents=server.documents)
        assert unknown.value.status_code == 404
        assert unknown.value.body["message"].startswith("model: no ranker 'nobody' here; known are: maxp, ")
        with pytest.raises(cohere.BadRequestError) as wrong:
            client.rerank(model=MODEL, query="", documents=server.documents)
        assert wrong.value.body["message"].startswith("query: is empty")
        assert wrong.value.body["id"]


def test_it_comes_back_when_the_server_says(server: AskedServer, v1: cohere.Client, v2: Any) -> None:
    for client in (v1, v2):
        with server.with_room_after_a_refusal():
            began_s = time.monotonic()
            answer = client.rerank(model=MODEL, query=server.query, documents=server.documents)
            waited_s = time.monotonic() - began_s
        server.check(pairs(answer))
        # Retry-After and retry-after-ms are one second.
        assert 0.9 < waited_s < 30


def test_it_gives_up_with_its_own_error(server: AskedServer, v2: Any) -> None:
    with server.without_room():
        with pytest.raises(cohere.TooManyRequestsError) as full:
            v2.rerank(
                model=MODEL,
                query=server.query,
                documents=server.documents,
                request_options={"max_retries": 0},
            )
        assert isinstance(full.value, ApiError)
        assert "max_concurrent_calls" in full.value.body["message"]
        assert full.value.headers is not None
        assert {name.lower(): value for name, value in full.value.headers.items()}["retry-after"] == "1"
