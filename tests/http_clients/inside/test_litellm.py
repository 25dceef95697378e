"""LiteLLM, which supports the dialects of many providers."""

import asyncio
from typing import Any

import litellm
import pytest

from support.asked_server import AskedServer


def check(server: AskedServer, answer: Any, top_n: int | None = None) -> None:
    server.check(((each["index"], each["relevance_score"]) for each in answer.results), top_n)


@pytest.fixture(scope="module")
def names(server: AskedServer) -> dict[str, Any]:
    return server.run_written("LiteLLM")


def ask(server: AskedServer, model: str, base: str, **changed: Any) -> Any:
    values = {"query": server.query, "documents": list(server.documents), **changed}
    return litellm.rerank(model=model, api_base=base, api_key="unused", **values)


def test_the_lines_of_the_page(server: AskedServer, names: dict[str, Any]) -> None:
    answers = names["answers"]
    assert {model.partition("/")[0] for model in answers} == {
        *("cohere", "hosted_vllm", "jina_ai", "infinity", "voyage", "huggingface")
    }
    for answer in answers.values():
        check(server, answer)


def test_top_n_and_documents(server: AskedServer, names: dict[str, Any]) -> None:
    for model, base in names["known"].items():
        answer = ask(server, model, base, top_n=2, return_documents=True)
        check(server, answer, 2)
        # Its translation of Voyage's answer leaves out the documents.
        texts = [each["document"]["text"] for each in answer.results if each.get("document")]
        wanted = [server.documents[place] for place in server.order[:2]]
        assert texts == wanted or (model.startswith("voyage/") and not texts), model


def test_the_asynchronous_call(server: AskedServer) -> None:
    asked = litellm.arerank(
        model="cohere/rerank-v3.5",
        api_base=server.url,
        api_key="unused",
        query=server.query,
        documents=list(server.documents),
    )
    check(server, asyncio.run(asked))


def test_texts_that_may_not_be_cut_are_refused(server: AskedServer, names: dict[str, Any]) -> None:
    too_long = {"query": "river " * 2_000}
    for model, base in names["known"].items():
        if model.startswith("huggingface/"):
            with pytest.raises(litellm.exceptions.APIError, match="tokens of the query were not read"):
                ask(server, model, base, **too_long)
        else:
            assert len(ask(server, model, base, **too_long).results) == len(server.documents)


def test_errors_are_its_own_with_the_servers_words(server: AskedServer, names: dict[str, Any]) -> None:
    for model, base in names["known"].items():
        # It does not know 422, which is TEI's.
        kind, status = (
            (litellm.exceptions.APIError, 422)
            if model.startswith("huggingface/")
            else (litellm.exceptions.BadRequestError, 400)
        )
        with pytest.raises(kind, match="query: is empty") as wrong:
            ask(server, model, base, query="")
        assert wrong.value.status_code == status


def test_it_has_no_retries_and_gives_the_status(server: AskedServer, names: dict[str, Any]) -> None:
    with server.without_room():
        for model, base in names["known"].items():
            with pytest.raises(litellm.exceptions.RateLimitError, match="max_concurrent_calls") as full:
                ask(server, model, base)
            assert full.value.status_code == 429
