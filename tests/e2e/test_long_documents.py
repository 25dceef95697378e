"""Documents far longer than a bi-encoder's window, read to their end from a text and from an index."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from farrank_bench.large_requests import ProcessMemory
from farrank_cli.main import main
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import Client, Ranking
from farrank_rankers.files.open import open_reader

TOKENS = 200_000
SENTENCES = (
    "the river rises in the mountains and reaches the sea",
    "a ship sails over the sea towards the harbour",
    "bread is baked from flour, water, salt and yeast",
)
QUERY = "the sea"

# The two calls took 55 MiB.
MAX_MEMORY_BYTES = 256 * 2**20


@pytest.fixture(scope="module")
def long_text(tiny_rankers: dict[str, Path]) -> str:
    tokenizer = open_reader(str(tiny_rankers["biencoder"])).tokenizer
    block = " ".join(each for each, _ in zip(cycle(SENTENCES), range(300), strict=False))
    return " ".join([block] * (TOKENS // len(tokenizer.ids(block)) + 1))


@pytest.fixture(scope="module")
def server(
    tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, long_text: str
) -> Iterator[SpawnedServer]:
    folder, ranker = tmp_path_factory.mktemp("long"), str(tiny_rankers["biencoder"])
    collection = folder / "collection.jsonl"
    documents = {"long": long_text, "short": "a short text of the sea"}
    collection.write_text("\n".join(json.dumps({"id": each, "text": documents[each]}) for each in documents))
    flags = ["--tokens", ranker, "--encode", ranker, "--out", str(folder / "index")]
    assert main(["index", str(collection), *flags]) == 0
    arguments = [f"--ranker=it={ranker}", f"--index=docs={folder / 'index'}", "--log-level=warning"]
    with spawned_server([*arguments, "--set=cache_bytes=0"]) as spawned:
        yield spawned


@dataclass
class Checks:
    """Runs health checks, one after the other, until the block is left."""

    address: str
    answers: list[int]

    def __enter__(self) -> "Checks":
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        with grpc.insecure_channel(self.address) as channel:
            while not self._ended.wait(0.02):
                self.answers.append(HealthStub(channel).Check(HealthCheckRequest(), timeout=60).status)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def read_to_the_end(ranking: Ranking, length: int) -> float:
    """Check that the long document's chunks leave no gap. Returns its score."""
    found = next(each for each in ranking.results if each.id == "long")
    assert (found.tokens_cut, found.characters_cut) == (0, 0)
    assert found.chunks[0].start == 0
    assert found.chunks[-1].end == length
    assert all(
        each.start <= before.end + 1 for before, each in zip(found.chunks, found.chunks[1:], strict=False)
    )
    assert found.score == max(each.score for each in found.chunks)
    return found.score


def test_a_text_and_its_stored_vectors_are_read_to_the_end_and_score_alike(
    server: SpawnedServer, long_text: str
) -> None:
    memory = ProcessMemory(server.process.pid)
    with Client(server.address) as client, Checks(server.address, []) as checks:
        memory.begin()
        stored = client.search_and_rerank(QUERY, return_chunk_scores=True, timeout_s=240)
        sent = client.rerank(QUERY, {"long": long_text}, return_chunk_scores=True, timeout_s=240)
        grown = memory.grown()
    assert read_to_the_end(sent, len(long_text)) == pytest.approx(
        read_to_the_end(stored, len(long_text)), abs=1e-4
    )
    assert set(checks.answers) == {HealthCheckResponse.SERVING}
    assert grown < MAX_MEMORY_BYTES
