"""Haystack's rankers for Cohere and text-embeddings-inference."""

import time
from typing import Any

import cohere
import pytest
from haystack import Document

from support.asked_server import AskedServer


@pytest.fixture
def documents(server: AskedServer) -> list[Document]:
    return [Document(content=text) for text in server.documents]


def check(server: AskedServer, found: list[Document], top_k: int) -> None:
    server.check_texts(((str(each.content), each.score) for each in found), top_k)


def test_the_lines_of_the_page_for_cohere(server: AskedServer, documents: list[Document]) -> None:
    ranker = server.run_written("Haystack, CohereRanker")["ranker"]
    check(server, ranker.run(query=server.query, documents=documents)["documents"], 3)


def test_coheres_errors_and_retries(server: AskedServer, documents: list[Document]) -> None:
    ranker = server.run_written("Haystack, CohereRanker")["ranker"]
    with pytest.raises(cohere.BadRequestError, match="query: is empty"):
        ranker.run(query="", documents=documents)
    with server.with_room_after_a_refusal():
        check(server, ranker.run(query=server.query, documents=documents)["documents"], 3)


def tei(server: AskedServer, documents: list[Document]) -> dict[str, Any]:
    return server.run_written("Haystack, HuggingFaceTEIRanker", documents=documents)


def test_the_lines_of_the_page_for_tei(server: AskedServer, documents: list[Document]) -> None:
    check(server, tei(server, documents)["best"], 3)


def test_teis_errors_have_the_servers_words(server: AskedServer, documents: list[Document]) -> None:
    ranker = tei(server, documents)["ranker"]
    with pytest.raises(RuntimeError, match="query: is empty") as wrong:
        ranker.run(query="", documents=documents)
    assert "422" in str(wrong.value)
    assert '"error_type":"Validation"' in str(wrong.value)
    # Requests that the server cannot answer raise an error; nothing is left out silently.
    too_long = "river " * 2_000
    from haystack_integrations.components.rankers.huggingface_api.ranker import TruncationDirection

    with pytest.raises(RuntimeError, match="truncation_direction is left"):
        ranker.run(query=too_long, documents=documents, truncation_direction=TruncationDirection.LEFT)


def test_tei_retries_what_has_no_room(server: AskedServer, documents: list[Document]) -> None:
    ranker = tei(server, documents)["ranker"]
    with server.with_room_after_a_refusal():
        began_s = time.monotonic()
        check(server, ranker.run(query=server.query, documents=documents)["documents"], 3)
        assert time.monotonic() - began_s < 60
    ranker.max_retries = 1
    with server.without_room(), pytest.raises(RuntimeError, match="max_concurrent_calls"):
        ranker.run(query=server.query, documents=documents)
