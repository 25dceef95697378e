"""LlamaIndex's rerankers for Cohere, Jina and text-embeddings-inference."""

from typing import Any

import cohere
import pytest
from llama_index.core.schema import NodeWithScore, TextNode

from support.asked_server import AskedServer

COHERE = "LlamaIndex, CohereRerank"
JINA = "LlamaIndex, JinaRerank"
TEI = "LlamaIndex, TextEmbeddingInference"


@pytest.fixture
def nodes(server: AskedServer) -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=text), score=0.0) for text in server.documents]


def check(server: AskedServer, found: list[Any]) -> None:
    server.check_texts(((each.node.text, each.score) for each in found), 3)


@pytest.mark.parametrize("heading", [COHERE, JINA, TEI])
def test_the_lines_of_the_page(server: AskedServer, nodes: list[NodeWithScore], heading: str) -> None:
    check(server, server.run_written(heading, nodes=nodes)["best"])


def reranker(server: AskedServer, nodes: list[NodeWithScore], heading: str) -> Any:
    return server.run_written(heading, nodes=nodes)["reranker"]


def test_errors_have_the_servers_words(server: AskedServer, nodes: list[NodeWithScore]) -> None:
    with pytest.raises(cohere.BadRequestError, match="query: is empty"):
        reranker(server, nodes, COHERE).postprocess_nodes(nodes, query_str="")
    jina = reranker(server, nodes, JINA)
    with pytest.raises(RuntimeError, match=r"^query: is empty"):
        jina.postprocess_nodes(nodes, query_str="")
    jina.model = "nobody"
    with pytest.raises(RuntimeError, match=r"^model: no ranker 'nobody' here; known are: maxp, "):
        jina.postprocess_nodes(nodes, query_str=server.query)
    # It checks no status: an error has two entries instead of one per node.
    with pytest.raises(AssertionError):
        reranker(server, nodes, TEI).postprocess_nodes(nodes, query_str="")


def test_cohere_comes_back_when_there_is_room(server: AskedServer, nodes: list[NodeWithScore]) -> None:
    asked = reranker(server, nodes, COHERE)
    with server.with_room_after_a_refusal():
        check(server, asked.postprocess_nodes(nodes, query_str=server.query))


def test_the_others_have_no_retries_and_end_at_once(server: AskedServer, nodes: list[NodeWithScore]) -> None:
    jina, tei = reranker(server, nodes, JINA), reranker(server, nodes, TEI)
    with server.without_room():
        with pytest.raises(RuntimeError, match="max_concurrent_calls"):
            jina.postprocess_nodes(nodes, query_str=server.query)
        with pytest.raises(AssertionError):
            tei.postprocess_nodes(nodes, query_str=server.query)
