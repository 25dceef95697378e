"""`farrank serve` on streams: no padding, the scores of every ranker offline, and what stops the start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from farrank_cli.main import main
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import Client, Document, RetryPolicy
from farrank_rankers.files.open import open_ranker

QUERY = "where does the river rise"
DOCUMENTS = [f"the river rises in the mountains {'and goes on ' * n}" for n in (0, 1, 30, 200, 400)]
# What features may be: vectors, logits, tokens of one layer and of all, of queries alone, and of both texts.
FAMILIES = (
    "maxp",
    "cross-encoder",
    "cedr-pacrr",
    "neural-model1",
    "parade-transf-pretr-q",
    "parade-transf-pretr-lateir",
    "biencoder",
)


@pytest.fixture(scope="module")
def server(tiny_rankers: dict[str, Path]) -> Iterator[SpawnedServer]:
    arguments = [f"--ranker={name}={tiny_rankers[name]}" for name in FAMILIES]
    arguments += [f"--set=rankers.{name}.packing=packed" for name in FAMILIES]
    with spawned_server([*arguments, "--device=cpu", "--log-level=warning"]) as spawned:
        yield spawned


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_ranker_answers_as_it_does_offline(
    server: SpawnedServer, tiny_rankers: dict[str, Path], family: str
) -> None:
    wanted = open_ranker(tiny_rankers[family]).score(QUERY, DOCUMENTS)
    documents = [Document(str(index), text) for index, text in enumerate(DOCUMENTS)]
    with Client(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        answer = client.rerank(QUERY, documents, ranker=family, return_chunk_scores=True)
    assert len(answer.results) == len(DOCUMENTS)
    for result in answer.results:
        own = wanted[result.index]
        assert result.score == pytest.approx(own.score, abs=1e-5, rel=1e-5)
        assert [each.score for each in result.chunks] == pytest.approx(own.chunk_scores, abs=1e-5, rel=1e-5)


def test_the_catalog_says_that_streams_are_read(server: SpawnedServer, tiny_rankers: dict[str, Path]) -> None:
    with Client(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        rankers = {each.name: each for each in client.rankers().rankers}
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
