"""A call's own instruction reaches the rankers that take one, over gRPC and HTTP; the others refuse it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from farrank_client import AsyncClient, InvalidArgument, RetryPolicy
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_server.config.schema import (
    DepthConfig,
    DeviceConfig,
    HttpConfig,
    ListenConfig,
    RankerConfig,
    ServerConfig,
)
from farrank_server.engine.call import RerankCall, text_documents
from farrank_server.engine.loaded.ranker import MIN_DENSITY
from farrank_server.replica import Replica
from farrank_server.service.validate import MAX_INSTRUCTION_BYTES
from support.language_models import make_language_model

QUERY = "what ranks a long document?"
TEXT = "windows slide over text and passages of the long document score by a query, hello world. "
DOCUMENTS = [TEXT * 4, TEXT + "A search engine ranks them.", "", "hello"]
INSTRUCTIONS = ["", "Find the law.", "Find the document that ranks, and no other one.", "why?"]
PREFIX = "Instruct: Find passages.\nQuery: "
CONNECT = "farrank.v1.RerankService/Rerank"

in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    made = tmp_path_factory.mktemp("instructed")
    folders = {name: make_language_model(made / name, name) for name in ("qwen3", "gemma")}
    bi_encoder = new_ranker("biencoder", "embedded", pretrained=False, options={"query_prefix": PREFIX})
    save_ranker(bi_encoder, made / "bi")
    return {**folders, "bi": made / "bi"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folders: Mapping[str, Path]) -> AsyncIterator[Replica]:
    config = ServerConfig(
        rankers={
            "lm": RankerConfig(str(folders["qwen3"]), window=40, stride=30),
            "bi": RankerConfig(str(folders["bi"])),
            "gemma": RankerConfig(str(folders["gemma"])),
        },
        listen=ListenConfig(port=0, metrics_port=None, http=HttpConfig(port=0)),
        device=DeviceConfig(name="cpu", threads=1),
    )
    async with Replica(config) as replica:
        yield replica


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: Replica) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        yield client


@in_one_loop
@pytest.mark.parametrize("name", ["lm", "bi"])
async def test_calls_with_different_instructions_keep_their_own(
    client: AsyncClient, folders: Mapping[str, Path], name: str
) -> None:
    """Their inputs share batches, and a bi-encoder's documents are cached after the first call."""
    ranker = (
        open_ranker(folders["qwen3"], window=40, stride=30) if name == "lm" else open_ranker(folders[name])
    )
    expected = [
        [each.score for each in ranker.score(QUERY, DOCUMENTS, instruction=instruction)]
        for instruction in INSTRUCTIONS
    ]
    assert len({tuple(each) for each in expected}) == len(INSTRUCTIONS)
    for _ in range(2):
        answers = await asyncio.gather(
            *(
                client.rerank(QUERY, DOCUMENTS, ranker=name, depth="all", instruction=instruction)
                for instruction in INSTRUCTIONS
            )
        )
        for answer, scores in zip(answers, expected, strict=True):
            found = [each.score for each in sorted(answer.results, key=lambda each: each.index)]
            assert found == pytest.approx(scores, abs=1e-5)
    if name == "bi":
        assert answers[0].usage.cached_chunks == answers[1].usage.cached_chunks > 0
    else:
        assert answers[0].usage.tokens != answers[2].usage.tokens


@in_one_loop
async def test_http_carries_the_instruction_in_every_shape(
    server: Replica, folders: Mapping[str, Path]
) -> None:
    ranker = open_ranker(folders["qwen3"], window=40, stride=30)
    scores = [each.score for each in ranker.score(QUERY, DOCUMENTS, instruction=INSTRUCTIONS[1])]
    instructed = {"model": "lm", "instruction": INSTRUCTIONS[1], "depth": "all"}
    options = {"ranker": "lm", "instruction": INSTRUCTIONS[1], "depth": {"mode": "DEPTH_MODE_ALL"}}
    texts = [{"text": text} for text in DOCUMENTS]
    async with aiohttp.ClientSession(server.http_url) as http:

        async def post(path: str, body: dict[str, Any]) -> Any:
            async with http.post(path, json=body) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()

        listed = {"query": QUERY, "documents": DOCUMENTS, "raw_scores": True, **instructed}
        cohere = (await post("/v2/rerank", listed))["results"]
        voyage = (await post("/voyage/v1/rerank", listed))["data"]
        found = [{each["index"]: each["relevance_score"] for each in results} for results in (cohere, voyage)]
        tei = await post("/rerank", {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True, **instructed})
        found.append({each["index"]: each["score"] for each in tei})
        pairs = {"text_1": QUERY, "text_2": DOCUMENTS, "use_activation": False, **instructed}
        found.append({each["index"]: each["score"] for each in (await post("/v1/score", pairs))["data"]})
        own = await post(f"/{CONNECT}", {"query": QUERY, "documents": texts, "options": options})
        found.append({each.get("index", 0): each["score"] for each in own["results"]})
    for by_index in found:
        assert [by_index[index] for index in range(len(scores))] == pytest.approx(scores, abs=1e-5)


@in_one_loop
@pytest.mark.parametrize(
    ("name", "instruction", "said"),
    [
        (
            "gemma",
            "Find it.",
            "instruction: ranker gemma takes none: the template has no",
        ),
        (
            "lm",
            "x" * (MAX_INSTRUCTION_BYTES + 1),
            "instruction: has 2049 bytes; at most 2048 are",
        ),
        ("lm", "why " * 500, "options.instruction: for ranker lm, has "),
    ],
)
async def test_an_instruction_that_cannot_be_followed_is_refused(
    server: Replica, client: AsyncClient, name: str, instruction: str, said: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await client.rerank(QUERY, DOCUMENTS, ranker=name, instruction=instruction)
    assert said in str(refused.value)
    body = {"query": QUERY, "documents": DOCUMENTS, "model": name, "instruction": instruction}
    async with aiohttp.ClientSession(server.http_url) as http, http.post("/v2/rerank", json=body) as answer:
        assert (answer.status, said in (await answer.json())["message"]) == (400, True)


@in_one_loop
async def test_admission_counts_the_tokens_of_the_instruction(server: Replica) -> None:
    ranker = server.engine.loaded["lm"]
    call = RerankCall("lm", QUERY, text_documents(DOCUMENTS), None, 0.0, 60.0)
    depth = DepthConfig("all")
    lengths = [len(text) for text in DOCUMENTS]
    plain = ranker.estimate(call, lengths, depth)
    call.instruction = INSTRUCTIONS[2]
    instructed = ranker.estimate(call, lengths, depth)
    assert instructed.chunks == plain.chunks >= len(DOCUMENTS)
    assert instructed.tokens >= plain.tokens + plain.chunks * len(INSTRUCTIONS[2]) * MIN_DENSITY
