"""text-embeddings-inference's routes, selected by path or by `texts`."""

from typing import Any

import pytest

from support.http_endpoint import Opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXTS = ["the river rises", "flour and salt", "a river reaches the sea"]
LONG = "the river meets the sea " * 600
REQUEST = {"query": "river", "texts": TEXTS}


@pytest.mark.parametrize("path", ["/rerank", "/", "/invocations", "/v1/rerank"])
async def test_a_bare_list_of_all(shared_endpoint: Opened, path: str) -> None:
    async with shared_endpoint.session.post(path, json=REQUEST) as response:
        assert response.status == 200
        for name in ("compute", "total", "tokenization", "queue", "inference"):
            assert int(response.headers[f"x-{name}-time"]) >= 0
        assert int(response.headers["x-compute-tokens"]) > 0
        assert response.headers["x-compute-characters"] == str(sum(map(len, TEXTS)))
        assert response.headers["x-compute-type"] == "cpu"
        answer = await response.json()
    _, plain = await shared_endpoint.post("/v2/rerank", {"query": "river", "documents": TEXTS})
    assert answer == [{"index": each["index"], "score": each["relevance_score"]} for each in plain["results"]]


async def test_texts_raw_scores_and_the_best(shared_endpoint: Opened) -> None:
    options = {"return_text": True, "raw_scores": True, "top_n": 2, "truncate": None}
    _, answer = await shared_endpoint.post("/rerank", {**REQUEST, **options})
    assert [each["text"] for each in answer] == [TEXTS[each["index"]] for each in answer]
    assert len(answer) == 2
    _, plain = await shared_endpoint.post(
        "/rerank", {"query": "river", "documents": TEXTS, "raw_scores": True}
    )
    assert answer[0]["score"] == plain["results"][0]["relevance_score"]


@pytest.mark.parametrize("option", [{"truncate": False}, {"truncation_direction": "Left"}])
async def test_texts_that_may_not_be_cut_are_refused(shared_endpoint: Opened, option: dict[str, Any]) -> None:
    assert (await shared_endpoint.post("/rerank", {**REQUEST, **option}))[0] == 200
    status, said = await shared_endpoint.post("/rerank", {"query": "river", "texts": [LONG], **option})
    assert (status, said["error_type"]) == (422, "Validation")
    assert "tokens of document 0 were not read" in said["error"]
    assert (await shared_endpoint.post("/rerank", {"query": "river", "texts": [LONG], "truncate": True}))[
        0
    ] == 200


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [
        ({"texts": []}, 400, "Empty"),
        ({"query": ""}, 422, "Validation"),
        ({"texts": [1]}, 422, "Validation"),
    ],
)
async def test_errors_have_teis_types(
    shared_endpoint: Opened, change: dict[str, Any], status: int, kind: str
) -> None:
    seen, said = await shared_endpoint.post("/rerank", {**REQUEST, **change})
    assert (seen, said["error_type"]) == (status, kind)
    assert said["error"]
    assert said.keys() == {"error", "error_type"}


async def test_the_name_of_a_model_is_ignored_as_by_tei(shared_endpoint: Opened) -> None:
    async with shared_endpoint.session.post("/rerank", json={**REQUEST, "model": "BAAI/größe\n"}) as response:
        assert response.status == 200
        assert response.headers["X-Farrank-Unknown-Model"] == "BAAI/gr%C3%B6%C3%9Fe%0A"
        answer = await response.json()
    async with shared_endpoint.session.post("/rerank", json=REQUEST) as response:
        assert "X-Farrank-Unknown-Model" not in response.headers
        assert answer == await response.json()
    _, other = await shared_endpoint.post("/rerank", {**REQUEST, "model": "biencoder"})
    assert {each["score"] for each in other} != {each["score"] for each in answer}


async def test_the_description_of_what_is_served(shared_endpoint: Opened) -> None:
    async with shared_endpoint.session.get("/info") as response:
        assert response.status == 200
        info = await response.json()
    assert info["model_type"] == {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
    assert (info["served_model_name"], info["model_dtype"]) == ("maxp", "float32")
    assert (info["max_client_batch_size"], info["max_concurrent_requests"]) == (1000, 1000)
    assert info["max_input_length"] > 1000
    assert info["auto_truncate"] is True
