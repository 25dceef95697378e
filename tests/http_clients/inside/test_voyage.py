"""The voyageai SDK."""

import asyncio
from typing import Any

import pytest
import voyageai

from support.asked_server import AskedServer

MODEL = "rerank-2.5"


def check(server: AskedServer, answer: Any, top_k: int | None = None) -> None:
    server.check(((each.index, each.relevance_score) for each in answer.results), top_k)
    assert [each.document for each in answer.results] == [server.documents[n] for n in server.order[:top_k]]
    assert answer.total_tokens > 0


def test_the_lines_of_the_page(server: AskedServer) -> None:
    names = server.run_written("Voyage")
    check(server, names["answer"])
    # Without top_k it sends null, and with one, that number.
    check(server, names["client"].rerank(server.query, list(server.documents), model=MODEL, top_k=2), 2)


def test_the_asynchronous_client(server: AskedServer) -> None:
    client = voyageai.AsyncClient(base_url=f"{server.url}/voyage/v1", api_key="unused")
    check(server, asyncio.run(client.rerank(server.query, list(server.documents), model=MODEL)))


def test_errors_are_its_own_with_the_servers_words(server: AskedServer) -> None:
    client = server.run_written("Voyage")["client"]
    with pytest.raises(voyageai.error.InvalidRequestError, match="query: is empty"):
        client.rerank("", list(server.documents), model=MODEL)
    with pytest.raises(voyageai.error.APIError, match="model: no ranker 'nobody' here") as unknown:
        client.rerank(server.query, list(server.documents), model="nobody")
    assert unknown.value.http_status == 404
    with pytest.raises(voyageai.error.InvalidRequestError, match="documents: "):
        client.rerank(server.query, [], model=MODEL)


def test_it_retries_what_has_no_room(server: AskedServer) -> None:
    client = server.run_written("Voyage")["client"]
    with server.with_room_after_a_refusal():
        check(server, client.rerank(server.query, list(server.documents), model=MODEL))


def test_without_retries_it_gives_the_status(server: AskedServer) -> None:
    client = voyageai.Client(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    with server.without_room(), pytest.raises(voyageai.error.RateLimitError) as full:
        client.rerank(server.query, list(server.documents), model=MODEL)
    assert "max_concurrent_calls" in str(full.value)
    assert full.value.http_status == 429
