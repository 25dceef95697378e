"""Names of models that no ranker has: refused, or answered by the default ranker, which a header says."""

import pytest

from support.http_endpoint import Opened, OpenEndpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")

HEADER = "X-Farrank-Unknown-Model"
REQUEST = {
    "query": "river",
    "documents": ["the river rises", "flour and salt"],
    "model": "BAAI/bge-reranker",
}


async def test_an_unknown_name_is_refused_where_the_original_does(shared_endpoint: Opened) -> None:
    for path in (
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/infinity/rerank",
        "/voyage/v1/rerank",
        "/v1/ranking",
    ):
        assert (await shared_endpoint.post(path, REQUEST))[0] == 404


@pytest.mark.parametrize("path", ["/reranking", "/v1/reranking"])
async def test_llama_cpp_ignores_names(shared_endpoint: Opened, path: str) -> None:
    async with shared_endpoint.session.post(path, json=REQUEST) as response:
        assert (response.status, response.headers[HEADER]) == (200, REQUEST["model"])
        assert (await response.json())["model"] == "maxp"


async def test_a_setting_accepts_every_name(open_endpoint: OpenEndpoint) -> None:
    async with open_endpoint(
        unknown_models="default", models={"known-*": "biencoder", "lost": "nobody"}
    ) as endpoint:
        for model, ranker, header in (
            (REQUEST["model"], "maxp", REQUEST["model"]),
            ("lost", "maxp", "lost"),
            ("KNOWN-one", "biencoder", None),
            ("both", "both", None),
        ):
            async with endpoint.session.post("/v1/rerank", json={**REQUEST, "model": model}) as response:
                assert response.status == 200
                assert response.headers.get(HEADER) == header
                assert (await response.json())["model"] == ranker


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
async def test_the_rankers_are_listed_as_models(shared_endpoint: Opened, path: str) -> None:
    async with shared_endpoint.session.get(path) as response:
        answer = await response.json()
    assert answer["object"] == "list"
    assert [each["id"] for each in answer["data"]] == ["maxp", "biencoder", "both"]
    assert all(each["object"] == "model" for each in answer["data"])


async def test_a_version_is_asked_for_after_an_at(shared_endpoint: Opened) -> None:
    version = shared_endpoint.bench.engine.rankers["biencoder"].version
    for path in ("/v1/rerank", "/infinity/rerank"):
        status, answer = await shared_endpoint.post(path, {**REQUEST, "model": f"biencoder@{version[:8]}"})
        assert (status, answer["model"]) == (200, "biencoder")
        status, answer = await shared_endpoint.post(path, {**REQUEST, "model": "biencoder@zz"})
        assert status == 404
        assert f"begins with 'zz'; those of ranker biencoder are: {version}" in str(answer)


async def test_a_ranker_that_has_gone_is_named_with_the_reason(open_endpoint: OpenEndpoint) -> None:
    async with open_endpoint() as endpoint:
        endpoint.bench.engine.versions.gone["left"] = "it was unloaded"
        status, answer = await endpoint.post("/v2/rerank", {**REQUEST, "model": "left"})
        assert status == 404
        assert "model: no ranker 'left' here, it was unloaded" in str(answer)
