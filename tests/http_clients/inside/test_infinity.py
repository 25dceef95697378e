"""Infinity's own client."""

from typing import Any

import pytest
from infinity_client.api.default import rerank
from infinity_client.errors import UnexpectedStatus
from infinity_client.models import RerankInput

from support.asked_server import AskedServer


@pytest.fixture
def client(server: AskedServer) -> Any:
    return server.run_written("Infinity")["client"]


def test_the_lines_of_the_page(server: AskedServer, client: Any) -> None:
    body = RerankInput(query=server.query, documents=list(server.documents), model="reranker")
    answer = rerank.sync(client=client, body=body)
    server.check((each.index, each.relevance_score) for each in answer.results)
    assert answer.model == "maxp"
    assert answer.usage.total_tokens > 0


def test_top_n_and_documents(server: AskedServer, client: Any) -> None:
    body = RerankInput(
        query=server.query, documents=list(server.documents), model="maxp", top_n=2, return_documents=True
    )
    answer = rerank.sync(client=client, body=body)
    server.check(((each.index, each.relevance_score) for each in answer.results), 2)
    assert [each.document for each in answer.results] == [server.documents[n] for n in server.order[:2]]


def test_errors_have_the_servers_words(server: AskedServer, client: Any) -> None:
    documents = list(server.documents)
    with pytest.raises(UnexpectedStatus, match="query: is empty") as wrong:
        rerank.sync(client=client, body=RerankInput(query="", documents=documents))
    # On 422 it would fail because the detail is a string.
    assert wrong.value.status_code == 400
    with pytest.raises(UnexpectedStatus, match="no ranker 'nobody' here") as unknown:
        rerank.sync(client=client, body=RerankInput(query="q", documents=documents, model="nobody"))
    assert unknown.value.status_code == 404


def test_it_has_no_retries_and_gives_the_status(server: AskedServer, client: Any) -> None:
    body = RerankInput(query=server.query, documents=list(server.documents))
    with server.without_room(), pytest.raises(UnexpectedStatus) as full:
        rerank.sync(client=client, body=body)
    assert full.value.status_code == 429
    assert b"max_concurrent_calls" in full.value.content
