"""Voyage's schema, selected by path or by `top_k`, and vLLM's scores of pairs."""

from typing import Any

import pytest

from support.http_endpoint import Opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXTS = ["the river rises", "flour and salt", "a river reaches the sea"]
REQUEST = {"query": "river", "documents": TEXTS, "model": "rerank-2"}


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/voyage/rerank", "/voyage/v1/rerank"])
async def test_voyages_shape(shared_endpoint: Opened, path: str) -> None:
    status, answer = await shared_endpoint.post(
        path, {**REQUEST, "top_k": 2, "return_documents": True, "truncation": True}
    )
    assert status == 200
    _, plain = await shared_endpoint.post("/v2/rerank", {**REQUEST, "top_n": 2})
    assert answer["data"] == [{**each, "document": TEXTS[each["index"]]} for each in plain["results"]]
    assert (answer["object"], answer["usage"]) == ("list", {"total_tokens": plain["usage"]["total_tokens"]})


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
@pytest.mark.parametrize("model", ["rerank-2", "rerank-2.5-lite", "Rerank-lite-1", "voyage/rerank-2.5"])
async def test_a_model_of_voyage_selects_its_shape(shared_endpoint: Opened, path: str, model: str) -> None:
    """Its JavaScript client leaves an unset `top_k` out."""
    status, answer = await shared_endpoint.post(path, {**REQUEST, "model": model})
    assert (status, len(answer["data"])) == (200, 3)
    _, other = await shared_endpoint.post(path, {**REQUEST, "model": "rerank-v3.5"})
    assert [each["index"] for each in answer["data"]] == [each["index"] for each in other["results"]]
    # Its clients never add a v2 to the address, Cohere's always do.
    assert "results" in (await shared_endpoint.post("/v2/rerank", {**REQUEST, "model": model}))[1]


async def test_voyage_without_top_k_and_its_errors(shared_endpoint: Opened) -> None:
    for request, path in (({**REQUEST, "top_k": None}, "/rerank"), (REQUEST, "/voyage/v1/rerank")):
        _, answer = await shared_endpoint.post(path, request)
        assert len(answer["data"]) == 3
    status, said = await shared_endpoint.post("/rerank", {**REQUEST, "top_k": -2})
    assert (status, said) == (400, {"detail": "top_k: is -2; it must be 0 or more"})


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
async def test_scores_stand_in_the_order_of_the_texts(
    shared_endpoint: Opened, path: str, names: tuple[str, str]
) -> None:
    status, answer = await shared_endpoint.post(path, dict(zip(names, (["river"], TEXTS), strict=True)))
    assert status == 200
    _, plain = await shared_endpoint.post("/rerank", {"query": "river", "documents": TEXTS})
    scores = {each["index"]: each["relevance_score"] for each in plain["results"]}
    assert answer["data"] == [{"index": n, "object": "score", "score": scores[n]} for n in range(len(TEXTS))]
    assert (answer["object"], answer["model"]) == ("list", "maxp")
    _, single = await shared_endpoint.post(path, dict(zip(names, ("river", TEXTS[1]), strict=True)))
    assert single["data"][0]["score"] == pytest.approx(scores[1], abs=1e-6)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"text_1": ["a", "b"], "text_2": ["c", "d"]}, "text_1: has 2 entries; it must be one text"),
        ({"text_1": "a"}, "text_2: is missing"),
        ({"text_1": 5, "text_2": "a"}, "text_1: is invalid"),
        ({"text_2": "a"}, "query: is empty"),
    ],
)
async def test_pairs_that_are_none(shared_endpoint: Opened, request_: dict[str, Any], words: str) -> None:
    status, said = await shared_endpoint.post("/score", request_)
    assert status == 400
    assert words in said["error"]["message"]
