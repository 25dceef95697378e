"""Every family with a bf16 encoder, with callers that come and go; long inputs with the default settings."""

import asyncio
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import AsyncClient, Document, RetryPolicy
from farrank_rankers.family import FAMILIES
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import DocumentScore
from farrank_server.config.schema import DeviceConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica

QUERY = "where does the river rise"
WORDS = ["the", "river", "rises", "in", "mountains", "a", "ship", "sails", "to", "harbours", "bread"]
LENGTHS = (0, 1, 40, 151, 477, 478, 954, 1600)
DOCUMENTS = [" ".join(WORDS[(n * 5 + i * 7) % len(WORDS)] for i in range(n)) for n in LENGTHS]
CALLS = 54
ONCE = RetryPolicy(max_attempts=1)

# bf16 keeps 8 bits, and the last one may change with the shape of a batch. Sums over all tokens add such
# changes, and a token may move to another bin (DRMM) or off the sharp kernel (KNRM).
BOUND = dict.fromkeys(FAMILIES, 2e-3) | {"cedr-knrm": 0.1, "cedr-drmm": 0.5, "neural-model1": 1e-2}


@pytest.fixture(scope="module")
def server(tiny_rankers: dict[str, Path]) -> Iterator[SpawnedServer]:
    arguments = [f"--ranker={name}={path}" for name, path in tiny_rankers.items()]
    with spawned_server([*arguments, "--precision=bf16", "--log-level=warning"]) as spawned:
        yield spawned


@pytest.fixture(scope="module")
def offline(tiny_rankers: dict[str, Path]) -> dict[str, list[DocumentScore]]:
    return {
        family: open_ranker(path, dtype=torch.bfloat16).score(QUERY, DOCUMENTS)
        for family, path in tiny_rankers.items()
    }


async def test_all_families_at_once_score_as_offline_while_callers_leave(
    server: SpawnedServer, offline: dict[str, list[DocumentScore]]
) -> None:
    """A third of the calls is cancelled in flight; the others have their rankers' own scores."""
    drawn = random.Random(11)
    families = list(FAMILIES)

    async with AsyncClient(server.address, retry=ONCE) as client:

        async def ask(number: int) -> bool:
            family = families[number % len(families)]
            chosen = drawn.sample(range(len(DOCUMENTS)), drawn.randint(1, len(DOCUMENTS)))
            texts = [Document(str(index), DOCUMENTS[index]) for index in chosen]
            call = asyncio.create_task(client.rerank(QUERY, texts, ranker=family, depth="all", timeout_s=240))
            if number % 3 == 1:
                await asyncio.sleep(drawn.random() / 2)
                call.cancel()
            try:
                answer = await call
            except asyncio.CancelledError:
                return False
            for result in answer.results:
                wanted = offline[family][int(result.id)].score
                assert result.score == pytest.approx(wanted, rel=0, abs=BOUND[family]), family
            assert len(answer.results) == len(chosen)
            return True

        answered = await asyncio.gather(*(ask(number) for number in range(CALLS)))
        assert sum(answered) >= CALLS * 2 // 3
        catalog = await client.rankers()
        assert {ranker.precision for ranker in catalog.rankers} == {"bf16"}


async def test_an_input_longer_than_a_usual_batch_is_served_as_it_is(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    """A LongP ranker's 1,466 positions exceed a CPU's default batches."""
    backbone = Path(shutil.copytree(tiny_backbone, tmp_path / "backbone"))
    config = json.loads((backbone / "config.json").read_text()) | {"max_position_embeddings": 2048}
    (backbone / "config.json").write_text(json.dumps(config))
    ranker = new_ranker("longp", backbone, pretrained=False, max_document_tokens=1431).eval()
    assert ranker.reader.max_input_tokens == 1466
    save_ranker(ranker, tmp_path / "longp")
    wanted = [found.score for found in ranker.score(QUERY, DOCUMENTS)]
    config = ServerConfig(
        rankers={"longp": RankerConfig(str(tmp_path / "longp"))},
        listen=ListenConfig(port=0, metrics_port=None),
        device=DeviceConfig(threads=1),
    )
    async with Replica(config) as replica, AsyncClient(replica.address, retry=ONCE) as client:
        answer = await client.rerank(QUERY, DOCUMENTS, depth="all", count_tokens_cut=True)
    found = {result.index: result for result in answer.results}
    assert [found[index].score for index in range(len(DOCUMENTS))] == pytest.approx(wanted, abs=1e-5)
    (offline,) = ranker.score(QUERY, DOCUMENTS[7:8], count_tokens=True)
    assert found[7].tokens_cut == offline.tokens_cut != 0
