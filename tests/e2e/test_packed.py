"""A replica on streams: no padding, every ranker's offline scores, and the errors that stop the start."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from farrank_cli.main import main
from farrank_client import AsyncClient, Document, RetryPolicy
from farrank_rankers.files.open import open_ranker
from farrank_server.config.schema import DeviceConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica

QUERY = "where does the river rise"
DOCUMENTS = [f"the river rises in the mountains {'and goes on ' * n}" for n in (0, 1, 30, 200, 400)]
# All kinds of features: vectors, logits, tokens of one layer and of all, of queries alone, and of both texts.
FAMILIES = (
    "maxp",
    "cross-encoder",
    "cedr-pacrr",
    "neural-model1",
    "parade-transf-pretr-q",
    "parade-transf-pretr-lateir",
    "biencoder",
)


in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tiny_rankers: dict[str, Path]) -> AsyncIterator[Replica]:
    config = ServerConfig(
        rankers={name: RankerConfig(str(tiny_rankers[name]), packing="packed") for name in FAMILIES},
        listen=ListenConfig(port=0, metrics_port=None),
        device=DeviceConfig(name="cpu", threads=1),
    )
    async with Replica(config) as replica:
        yield replica


@in_one_loop
@pytest.mark.parametrize("family", FAMILIES)
async def test_a_packed_ranker_answers_as_it_does_offline(
    server: Replica, tiny_rankers: dict[str, Path], family: str
) -> None:
    wanted = open_ranker(tiny_rankers[family]).score(QUERY, DOCUMENTS)
    documents = [Document(str(index), text) for index, text in enumerate(DOCUMENTS)]
    async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        answer = await client.rerank(QUERY, documents, ranker=family, depth="all", return_chunk_scores=True)
    assert len(answer.results) == len(DOCUMENTS)
    for result in answer.results:
        own = wanted[result.index]
        assert result.score == pytest.approx(own.score, abs=1e-5, rel=1e-5)
        assert [each.score for each in result.chunks] == pytest.approx(own.chunk_scores, abs=1e-5, rel=1e-5)


@in_one_loop
async def test_the_catalog_says_that_streams_are_read(server: Replica, tiny_rankers: dict[str, Path]) -> None:
    async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        rankers = {each.name: each for each in (await client.rankers()).rankers}
    for name in FAMILIES:
        assert rankers[name].version == open_ranker(tiny_rankers[name]).version
        assert rankers[name].runtime_reason == (
            "torch fp32, as configured; packed batches, plain attention (packing gains nothing without a GPU)"
        )


def test_packed_exports_stop_the_start(
    tiny_exports: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--device=cpu", f"--ranker=mine={tiny_exports['maxp']}", "--set=rankers.mine.runtime=onnx"]
    flags += ["--set=rankers.mine.packing=packed", "--port=0", "--metrics-port=none"]
    assert main(["serve", *flags]) == 2
    line = "farrank serve: rankers.mine.packing: only torch packs batches; onnx pads them"
    assert line in capsys.readouterr().err
