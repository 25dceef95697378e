"""The shapes of Weaviate's module reranker-transformers and of NVIDIA's rerankers."""

import pytest

from support.http_endpoint import Opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXTS = ["flour and salt", "the river rises", "a river reaches the sea"]
LONG = "the river meets the sea " * 600


async def test_weaviate_gets_a_score_for_each_document_in_their_order(shared_endpoint: Opened) -> None:
    request = {"query": "river", "documents": TEXTS}
    status, answer = await shared_endpoint.post("/weaviate/rerank", request)
    _, plain = await shared_endpoint.post("/rerank", request)
    scores = {each["index"]: each["relevance_score"] for each in plain["results"]}
    assert (status, answer["query"]) == (200, "river")
    assert answer["scores"] == [{"document": text, "score": scores[n]} for n, text in enumerate(TEXTS)]
    status, said = await shared_endpoint.post("/weaviate/rerank", {**request, "query": ""})
    assert status == 400
    assert said["error"].startswith("query: is empty")


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/ranking", "maxp"),
        ("/v1/ranking", "maxp"),
        # RAGFlow puts `reranking` after the address, which is also llama.cpp's path.
        ("/v1/reranking", "nv-rerank-qa-mistral-4b:1"),
    ],
)
async def test_nvidia_gets_logits_best_first(shared_endpoint: Opened, path: str, model: str) -> None:
    request = {"query": {"text": "river"}, "passages": [{"text": text} for text in TEXTS], "truncate": "END"}
    status, answer = await shared_endpoint.post(path, {**request, "model": model, "top_n": len(TEXTS)})
    _, plain = await shared_endpoint.post(
        "/rerank", {"query": "river", "documents": TEXTS, "raw_scores": True}
    )
    assert status == 200
    assert [(each["index"], each["logit"]) for each in answer["rankings"]] == [
        (each["index"], each["relevance_score"]) for each in plain["results"]
    ]
    assert answer["usage"] == plain["usage"]


@pytest.mark.parametrize("truncate", ["NONE", "START"])
async def test_nvidias_passages_that_may_not_be_cut_are_refused(
    shared_endpoint: Opened, truncate: str
) -> None:
    request = {"query": {"text": "river"}, "passages": [{"text": LONG}], "truncate": truncate}
    status, said = await shared_endpoint.post("/v1/ranking", request)
    assert status == 400
    assert "tokens of document 0 were not read" in said["detail"]
    request["passages"] = [{"text": TEXTS[0]}]
    assert (await shared_endpoint.post("/v1/ranking", request))[0] == 200
