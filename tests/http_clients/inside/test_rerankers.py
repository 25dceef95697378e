"""The rerankers library's providers of hosted rerankers."""

import pytest
from rerankers import Document, Reranker

from support.asked_server import AskedServer

# The provider, the model it is asked for, and the whole URL.
PROVIDERS = {
    "cohere": ("rerank-v3.5", "/v1/rerank"),
    "jina": ("jina-reranker-v2-base-multilingual", "/v1/rerank"),
    "voyage": ("rerank-2.5", "/v1/rerank"),
    # A server of TEI has one model and ignores the name.
    "text-embeddings-inference": ("BAAI/bge-reranker-base", "/rerank"),
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_its_providers(server: AskedServer, provider: str) -> None:
    model, path = PROVIDERS[provider]
    ranker = Reranker(
        model,
        model_type="APIRanker",
        api_provider=provider,
        api_key="unused",
        url=f"{server.url}{path}",
        verbose=0,
    )
    answer = ranker.rank(server.query, list(server.documents), doc_ids=list(range(len(server.documents))))
    server.check((each.doc_id, each.score) for each in answer.results)
    assert [each.text for each in answer.results] == [server.documents[n] for n in server.order]
    assert [each.rank for each in answer.results] == list(range(1, len(server.documents) + 1))
    best = server.order[0]
    score = ranker.score(server.query, Document(server.documents[best]))
    assert score == pytest.approx(server.scores[best], abs=1e-5)
