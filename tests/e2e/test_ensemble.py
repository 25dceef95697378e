"""An ensemble served under one name: its members' mean, and their names."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from farrank_client import (
    AsyncClient,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RetryPolicy,
)
from farrank_rankers.ensemble import Ensemble, save_ensemble
from farrank_rankers.files.open import open_ranker
from farrank_server.config.schema import DeviceConfig, LimitsConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from support.ensembles import open_ensemble

QUERY = "where does the river rise"
TEXTS = [f"the river rises in the mountains {'and goes on ' * n}" for n in (0, 50, 400)]


@pytest.fixture(scope="module")
def folder(tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ensemble")
    save_ensemble(
        Ensemble({name: open_ranker(tiny_rankers[name]) for name in ("maxp", "avgp", "biencoder")}), folder
    )
    return folder


in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folder: Path) -> AsyncIterator[Replica]:
    config = ServerConfig(
        rankers={"all": RankerConfig(str(folder))},
        listen=ListenConfig(port=0, metrics_port=0),
        device=DeviceConfig(threads=1),
    )
    async with Replica(config) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def client(server: Replica) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1)) as opened:
        yield opened


@in_one_loop
async def test_the_answer_is_the_members_mean(client: AsyncClient, folder: Path) -> None:
    wanted = open_ensemble(folder).score(QUERY, TEXTS)
    answer = await client.rerank(QUERY, TEXTS, return_chunk_scores=True)
    found = {result.index: result for result in answer.results}
    for index, each in enumerate(wanted):
        assert found[index].score == pytest.approx(each.score, abs=1e-5)
        assert [chunk.score for chunk in found[index].chunks] == pytest.approx(each.chunk_scores, abs=1e-5)
    parts = [
        await client.rerank(QUERY, TEXTS, ranker=f"all/{name}", depth="all")
        for name in ("maxp", "avgp", "biencoder")
    ]
    assert answer.usage.chunks == sum(part.usage.chunks for part in parts)
    assert answer.usage.cached_chunks == 0
    assert answer.usage.pairs > max(part.usage.pairs for part in parts)
    assert answer.ranker.version == open_ensemble(folder).version


@in_one_loop
async def test_ensemble_and_members_are_listed(client: AsyncClient) -> None:
    listed = {ranker.name: ranker for ranker in (await client.rankers()).rankers}
    # The default ranker comes first, also if it is an ensemble.
    assert list(listed) == ["all", "all/maxp", "all/avgp", "all/biencoder"]
    assert listed["all"].family == "ensemble"
    assert listed["all"].options["members"] == "all/maxp, all/avgp, all/biencoder"


def test_an_ensembles_counters_are_shown_before_their_first_event(server: Replica) -> None:
    assert server.metrics_url is not None
    with urllib.request.urlopen(server.metrics_url) as page:
        lines = page.read().decode().splitlines()
    assert (
        'farrank_requests_total{code="INTERNAL",door="grpc",method="SearchAndRerank",ranker="all"} 0.0'
        in lines
    )
    assert 'farrank_rejections_total{door="grpc",ranker="all",reason="queue_full"} 0.0' in lines


@in_one_loop
async def test_a_call_is_refused_whole(client: AsyncClient) -> None:
    with pytest.raises(NotFound, match="all/maxp"):
        await client.rerank(QUERY, TEXTS, ranker="all/nobody")
    with pytest.raises(InvalidArgument, match="holds no token"):
        await client.rerank("\u200b", TEXTS)
    with pytest.raises(DeadlineExceeded):
        await client.rerank(QUERY, TEXTS, timeout_s=0.001)
    assert len((await client.rerank(QUERY, TEXTS)).results) == 3


async def test_a_call_beyond_any_queue_is_refused_for_good_and_others_are_answered(
    folder: Path,
) -> None:
    """Members are admitted together: no member waits for room that another one of the same call has taken."""
    config = ServerConfig(
        rankers={"all": RankerConfig(str(folder))},
        listen=ListenConfig(port=0, metrics_port=None),
        device=DeviceConfig(threads=1),
        limits=LimitsConfig(max_queued_tokens=6000),
    )
    once = RetryPolicy(max_attempts=1)
    async with Replica(config) as replica, AsyncClient(replica.address, retry=once) as client:
        too_many = ["river " * 400] * 20
        for member in ("all/maxp", "all/avgp", "all/biencoder"):  # each alone fits
            assert len((await client.rerank(QUERY, too_many, ranker=member)).results) == 20
        with pytest.raises(InvalidArgument, match="max_queued_tokens 6000") as refused:
            await client.rerank(QUERY, too_many)
        assert refused.value.retry_after_s is None
        # More than half of the queue: either all members are admitted, or none.
        calls = [client.rerank(QUERY, ["river " * 200] * 6) for _ in range(6)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for each in answers:
            if isinstance(each, ResourceExhausted):
                assert each.retry_after_s is not None
            else:
                assert not isinstance(each, BaseException), each
                assert len(each.results) == 6
        assert any(not isinstance(each, BaseException) for each in answers)
