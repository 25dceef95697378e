"""A ranker in this process: the same answers as over a socket, with real tiny rankers."""

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import farrank
from farrank import Client, InvalidArgument, NotFound, Reranker, Unavailable
from farrank_cli.spawn import spawned_server
from farrank_local.bulk import rerank_run
from farrank_local.reranker import DOCUMENTS_IN_FLIGHT
from farrank_settings.errors import ConfigError
from farrank_trec import rank
from farrank_trec.unfinished_run import UnfinishedRun

QUERY = "where does the river rise"
DOCUMENTS = {
    "rivers": "The river rises in the mountains and reaches the sea. " * 60,
    "bread": "Bread is baked from flour, water, salt and yeast. " * 60,
    "ships": "A ship sails over the sea towards the harbour. " * 10,
}


@pytest.fixture(scope="module")
def reranker(tiny_rankers: dict[str, Path]) -> Iterator[Reranker]:
    with Reranker(str(tiny_rankers["maxp"])) as opened:
        yield opened


def test_answers_are_those_of_a_server(reranker: Reranker, tiny_rankers: dict[str, Path]) -> None:
    options = {"return_chunk_scores": True, "evidence": "sentences", "context_tokens": 40}
    own = reranker.rank(QUERY, DOCUMENTS, **options)  # type: ignore[arg-type]
    with (
        spawned_server(["--ranker", f"ranker={tiny_rankers['maxp']}", "--log-level", "warning"]) as server,
        Client(server.address) as client,
    ):
        client.wait_until_healthy(60)
        served = client.rerank(QUERY, DOCUMENTS, **options)  # type: ignore[arg-type]
    assert [each.id for each in own.results] == [each.id for each in served.results]
    for one, other in zip(own.results, served.results, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-5)
        assert [chunk.start for chunk in one.chunks] == [chunk.start for chunk in other.chunks]
        assert [each.text for each in one.sentences] == [each.text for each in other.sentences]
    assert own.context == served.context
    assert own.ranker.version == served.ranker.version


def test_settings_and_depth_are_the_servers(tiny_rankers: dict[str, Path]) -> None:
    with Reranker(str(tiny_rankers["maxp"]), window=64, stride=64, precision="fp32") as opened:
        (info,) = opened.rankers().rankers
        assert (info.window, info.precision) == (64, "fp32")
        ranking = opened.rank(QUERY, DOCUMENTS, depth="adaptive")
        assert any(each.chunks_scored > each.chunks_read for each in ranking.results)
        assert opened.is_healthy()


def test_many_queries_keep_their_order_and_share_batches(reranker: Reranker) -> None:
    queries = [(f"{QUERY} {number}", list(DOCUMENTS.items())) for number in range(DOCUMENTS_IN_FLIGHT)]
    together = list(reranker.rank_all(queries, progress=True, top_n=2))
    assert len(together) == len(queries)
    for (query, documents), ranking in zip(queries[:4], together, strict=False):
        alone = reranker.rank(query, documents, top_n=2)
        assert [each.id for each in ranking.results] == [each.id for each in alone.results]
        assert ranking.results[0].score == pytest.approx(alone.results[0].score, abs=1e-4)


def test_progress_counts_answers(reranker: Reranker, capsys: pytest.CaptureFixture[str]) -> None:
    rankings = reranker.rank_all([(QUERY, DOCUMENTS)] * 3, progress=True)
    assert next(rankings).results
    assert "0/3" in (shown := capsys.readouterr().err)
    assert "3/3" not in shown
    assert len(list(rankings)) == 2
    assert "3/3" in capsys.readouterr().err


def test_closing_ends_calls_of_other_threads(tiny_rankers: dict[str, Path]) -> None:
    opened = Reranker(str(tiny_rankers["maxp"]))
    begun, failed = threading.Event(), list[Exception]()

    def rank() -> None:
        begun.set()
        with pytest.raises(Unavailable, match="the reranker is closed") as raised:
            opened.rank(QUERY, [DOCUMENTS["rivers"] * 20] * 200)
        failed.append(raised.value)

    thread = threading.Thread(target=rank)
    thread.start()
    begun.wait(60)
    time.sleep(0.3)
    opened.close()
    thread.join(60)
    assert failed
    opened.close()
    with pytest.raises(Unavailable, match="the reranker is closed"):
        opened.rank(QUERY, DOCUMENTS)
    assert not opened.is_healthy()


def test_an_interrupt_ends_the_call(reranker: Reranker, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def interrupted(future: "Future[Any]", timeout: float | None = None) -> None:
        begun.append(future)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reranker.rank(QUERY, [DOCUMENTS["rivers"] * 20] * 200)
    assert begun[0].cancelled()
    assert reranker.rank(QUERY, DOCUMENTS).results


FORKED = """
import os, sys
from farrank import Reranker, Unavailable
with Reranker(sys.argv[1]) as reranker:
    if not (child := os.fork()):
        try:
            reranker.rank("river", ["a river"])
        except Unavailable as error:
            assert "after the fork" in error.message
            reranker.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert reranker.rank("river", ["a river"]).results
"""


def test_a_forked_process_is_refused(tiny_rankers: dict[str, Path]) -> None:
    # In a process of its own: a fork beside pytest's threads might disturb them.
    subprocess.run([sys.executable, "-c", FORKED, str(tiny_rankers["maxp"])], check=True, timeout=120)


def test_a_query_that_fails_fails_at_its_place(reranker: Reranker) -> None:
    rankings = reranker.rank_all([(QUERY, DOCUMENTS), ("", DOCUMENTS), (QUERY, DOCUMENTS)])
    assert next(rankings).results
    with pytest.raises(InvalidArgument, match="query: is empty"):
        next(rankings)


def test_a_run_keeps_each_query_when_it_has_finished(reranker: Reranker, tmp_path: Path) -> None:
    queries = {"long": QUERY, "short": QUERY, "last": QUERY}
    lengths = {"long": 40, "short": 1, "last": 1}
    run = {
        query_id: rank(query_id, ((f"{query_id}{number}", -float(number)) for number in range(length)))
        for query_id, length in lengths.items()
    }
    seen: list[tuple[str, int, bool]] = []
    with UnfinishedRun(tmp_path / "run", {}) as unfinished:

        def done(count: int, steady: bool) -> None:
            seen.append((list(unfinished.finished)[-1], count, steady))

        def document_of(doc_id: str) -> tuple[str, str]:
            return doc_id, DOCUMENTS["rivers" if doc_id.startswith("long") else "ships"]

        rerank_run(reranker, run, queries, document_of, unfinished, {}, done)
        assert [query_id for query_id, *_ in seen][-1] == "long"
        assert [(count, steady) for _, count, steady in seen] == [(1, False), (2, False), (3, True)]
        assert list(unfinished.publish(run, "tag")) == list(queries)


def test_errors_are_the_clients(reranker: Reranker) -> None:
    with pytest.raises(NotFound, match="known are: ranker"):
        reranker.rank(QUERY, DOCUMENTS, ranker="other")
    with pytest.raises(TypeError):
        reranker.rank(QUERY, [3])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="window"):
        Reranker("embedded", window=0)
    with pytest.raises(ConfigError, match="/nowhere"):
        Reranker("/nowhere")


async def test_it_works_in_a_running_loop(reranker: Reranker) -> None:
    """A notebook's cells run in one."""
    ranking = await asyncio.to_thread(reranker.rank, QUERY, DOCUMENTS)
    assert reranker.rank(QUERY, DOCUMENTS).results[0].id == ranking.results[0].id


def test_it_leaves_nothing_running(tiny_rankers: dict[str, Path]) -> None:
    before = set(threading.enumerate())
    opened = Reranker(str(tiny_rankers["biencoder"]))
    opened.rank(QUERY, DOCUMENTS)
    opened.close()
    opened.close()
    assert [thread.name for thread in threading.enumerate() if thread not in before] == []


def test_the_name_is_public_and_loads_nothing_before_its_use() -> None:
    assert "Reranker" not in farrank.__all__
    code = "import farrank, sys; farrank.Client; assert 'torch' not in sys.modules; farrank.Reranker"
    assert subprocess.run([sys.executable, "-c", code], timeout=280, check=False).returncode == 0


def test_the_documented_session() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "notebooks.md").read_text(encoding="utf-8")
    (session,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", session], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("rivers ")
    assert "Rotterdam" in lines[0]
    assert lines[2:] == ["where does the Rhine rise? rivers", "what is bread baked from? bread"]
