"""An ensemble served: one name, its members' mean, its members' names."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import Client, DeadlineExceeded, InvalidArgument, NotFound, RetryPolicy
from farrank_rankers.ensemble import Ensemble, open_ensemble, save_ensemble
from farrank_rankers.files.open import open_ranker

QUERY = "where does the river rise"
TEXTS = [f"the river rises in the mountains {'and goes on ' * n}" for n in (0, 50, 400)]


@pytest.fixture(scope="module")
def folder(tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ensemble")
    save_ensemble(
        Ensemble({name: open_ranker(tiny_rankers[name]) for name in ("maxp", "avgp", "biencoder")}), folder
    )
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[SpawnedServer]:
    with spawned_server([f"--ranker=all={folder}", "--log-level=warning"]) as spawned:
        yield spawned


@pytest.fixture
def client(server: SpawnedServer) -> Iterator[Client]:
    with Client(server.address, retry=RetryPolicy(max_attempts=1)) as opened:
        yield opened


def test_the_answer_is_the_members_mean(client: Client, folder: Path) -> None:
    wanted = open_ensemble(folder).score(QUERY, TEXTS)
    answer = client.rerank(QUERY, TEXTS, return_chunk_scores=True)
    found = {result.index: result for result in answer.results}
    for index, each in enumerate(wanted):
        assert found[index].score == pytest.approx(each.score, abs=1e-5)
        assert [chunk.score for chunk in found[index].chunks] == pytest.approx(each.chunk_scores, abs=1e-5)
    parts = [client.rerank(QUERY, TEXTS, ranker=f"all/{name}") for name in ("maxp", "avgp", "biencoder")]
    assert answer.usage.chunks == sum(part.usage.chunks for part in parts)
    assert answer.usage.cached_chunks == 0
    assert answer.usage.pairs > max(part.usage.pairs for part in parts)
    assert answer.ranker.version == open_ensemble(folder).version


def test_ensemble_and_members_are_listed(client: Client) -> None:
    listed = {ranker.name: ranker for ranker in client.rankers().rankers}
    # The default ranker first, also where it is an ensemble.
    assert list(listed) == ["all", "all/maxp", "all/avgp", "all/biencoder"]
    assert listed["all"].family == "ensemble"
    assert listed["all"].options["members"] == "all/maxp, all/avgp, all/biencoder"


def test_an_ensembles_counters_are_shown_before_their_first_event(server: SpawnedServer) -> None:
    with urllib.request.urlopen(server.metrics_url) as page:
        lines = page.read().decode().splitlines()
    assert 'farrank_requests_total{code="INTERNAL",method="SearchAndRerank",ranker="all"} 0.0' in lines
    assert 'farrank_rejections_total{ranker="all",reason="queue_full"} 0.0' in lines


def test_a_call_is_refused_whole(client: Client) -> None:
    with pytest.raises(NotFound, match="all/maxp"):
        client.rerank(QUERY, TEXTS, ranker="all/nobody")
    with pytest.raises(InvalidArgument, match="holds no token"):
        client.rerank("\u200b", TEXTS)
    with pytest.raises(DeadlineExceeded):
        client.rerank(QUERY, TEXTS, timeout_s=0.001)
    assert len(client.rerank(QUERY, TEXTS).results) == 3
