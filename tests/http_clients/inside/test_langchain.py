"""langchain-cohere inside LangChain's own retriever."""

from typing import Any

import cohere
import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from support.asked_server import AskedServer


class Whole(BaseRetriever):  # type: ignore[misc]  # mypy does not see its base
    """A first stage that returns all documents."""

    found: list[Document]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return self.found


@pytest.fixture
def documents(server: AskedServer) -> list[Document]:
    return [Document(text, metadata={"place": n}) for n, text in enumerate(server.documents)]


def check(server: AskedServer, found: list[Document], top_n: int) -> None:
    server.check(((each.metadata["place"], each.metadata["relevance_score"]) for each in found), top_n)
    assert [each.page_content for each in found] == [server.documents[n] for n in server.order[:top_n]]


def retriever(server: AskedServer, documents: list[Document]) -> Any:
    reranker = server.run_written("LangChain", documents=documents)["reranker"]
    return ContextualCompressionRetriever(base_compressor=reranker, base_retriever=Whole(found=documents))


def test_the_lines_of_the_page(server: AskedServer, documents: list[Document]) -> None:
    names = server.run_written("LangChain", documents=documents)
    check(server, names["best"], 3)
    # The client sends all fields, with null for those that are not set.
    ranked = names["reranker"].rerank(documents, server.query, top_n=None)
    server.check((each["index"], each["relevance_score"]) for each in ranked)


def test_inside_a_contextual_compression_retriever(server: AskedServer, documents: list[Document]) -> None:
    check(server, retriever(server, documents).invoke(server.query), 3)


def test_errors_are_coheres_with_the_servers_words(server: AskedServer, documents: list[Document]) -> None:
    with pytest.raises(cohere.BadRequestError) as wrong:
        retriever(server, documents).invoke("")
    assert wrong.value.body["message"].startswith("query: is empty")


def test_it_comes_back_when_there_is_room(server: AskedServer, documents: list[Document]) -> None:
    with server.with_room_after_a_refusal():
        check(server, retriever(server, documents).invoke(server.query), 3)
