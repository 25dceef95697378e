"""Peers score as the rankers whose weights they have, and a call's time includes its waiting."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from farrank_bench.reproduce import pylate_peer, ranking_peers
from farrank_bench.reproduce.cells import BEST_CHUNK, BI_ENCODER, CROSS_ENCODER, INFINITY, PYLATE
from farrank_bench.reproduce.ranking_peers import Peer, PeerTarget, started
from farrank_bench.rounds import ContenderFailed
from farrank_loadtest.targets import CandidateDocument
from farrank_rankers.files.open import open_ranker

ROOT = Path(__file__).parents[3]
QUERY = "which river flows through Cologne?"
TEXTS = {
    "rhine": "The Rhine flows through Cologne to the sea.",
    "bread": "Bread is baked from flour, water and salt.",
    "long": "Flour and water. " * 100 + "The Rhine flows through Cologne.",
}
DOCUMENTS = [CandidateDocument(doc_id, text) for doc_id, text in TEXTS.items()]
SHORT = DOCUMENTS[:2]


@pytest.mark.parametrize(("at_once", "slowest_ms"), [(1, 300), (3, 100)])
async def test_a_calls_time_includes_its_waiting(at_once: int, slowest_ms: float) -> None:
    def score(query: str, documents: Sequence[CandidateDocument]) -> list[float]:
        time.sleep(0.1)
        return [float(len(query)) for _ in documents]

    target = PeerTarget(Peer(score, at_once))
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(target.rerank("a" * n, SHORT, timeout_s=60)) for n in (1, 2, 3)]
    await target.close()
    assert [call.result().scores for call in calls] == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]
    assert max(target.taken_ms) == pytest.approx(slowest_ms, abs=95)


@pytest.mark.slow
def test_pairs_are_scored_as_by_the_ranker_and_of_a_long_document_the_best_chunk(tmp_path: Path) -> None:
    ranker = open_ranker("embedded:maxp")
    expected = [each.score for each in ranker.score(QUERY, [each.text for each in SHORT], batch_size=1)]
    with started(CROSS_ENCODER, "embedded:maxp", TEXTS, 1, tmp_path) as peer:
        assert peer.score(QUERY, SHORT) == pytest.approx(expected, abs=1e-4)
        assert peer.bytes_a_document is None
        beginning = peer.score(QUERY, DOCUMENTS)[2]
    with started(BEST_CHUNK, "embedded:maxp", TEXTS, 1, tmp_path) as peer:
        scores = peer.score(QUERY, DOCUMENTS)
    assert scores[:2] == pytest.approx(expected, abs=1e-4)
    assert scores[2] > max(beginning, scores[1])


@pytest.mark.slow
def test_the_bi_encoder_has_the_cosines_of_the_ranker(tmp_path: Path) -> None:
    ranker = open_ranker("embedded")
    expected = [each.score for each in ranker.score(QUERY, [each.text for each in SHORT], batch_size=1)]
    with started(BI_ENCODER, "embedded", TEXTS, 1, tmp_path) as peer:
        assert peer.score(QUERY, SHORT) == pytest.approx(expected, abs=1e-4)
        assert peer.bytes_a_document == 384 * 4
        assert peer.index_s is not None


class Embeddings(BaseHTTPRequestHandler):
    """Embeds a text as its length, in another order than asked, and refuses long ones as Infinity does."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = [{"index": n, "embedding": [len(each), 1.0]} for n, each in enumerate(asked["input"])]
        body = json.dumps({"data": data[::-1]}).encode()
        refused = self.path != "/embeddings" or max(map(len, asked["input"])) > 122_880
        self.send_response(422 if refused else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_infinitys_vectors_are_those_of_their_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def server(*_given: object) -> Iterator[str]:
        with ThreadingHTTPServer(("127.0.0.1", 0), Embeddings) as httpd:
            thread = threading.Thread(target=httpd.serve_forever)
            thread.start()
            yield f"cohere:http://127.0.0.1:{httpd.server_port}/rerank"
            httpd.shutdown()
            thread.join()

    monkeypatch.setattr(ranking_peers, "infinity_command", lambda _cache: Path("infinity_emb"))
    monkeypatch.setattr(ranking_peers, "infinity_server", server)
    with started(INFINITY, "embedded", {**TEXTS, "longest": "a" * 200_000}, 1, tmp_path) as peer:
        assert peer.score("four", SHORT) == [4.0 * len(each.text) + 1 for each in SHORT]
        assert (peer.bytes_a_document, peer.at_once) == (2 * 4, 16)
    with pytest.raises(ContenderFailed, match="Infinity"):
        peer.score("four", SHORT)


def test_pylates_process_is_asked_by_lines_and_its_end_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "peer.py"
    script.write_text(
        "import json, sys\n"
        "texts = json.loads(input())\n"
        "print('a line of a library')\n"
        "print('answer', json.dumps({'seconds': 2.5, 'bytes': 30}), flush=True)\n"
        "asked = json.loads(input())\n"
        "print('answer', json.dumps([len(texts[each]) for each in asked['ids']]), flush=True)\n"
    )
    monkeypatch.setattr(pylate_peer, "__file__", str(script))
    monkeypatch.setattr(ranking_peers, "peer_python", lambda *_given: Path(sys.executable))
    with started(PYLATE, "embedded:maxsim", TEXTS, 1, tmp_path) as peer:
        assert (peer.index_s, peer.bytes_a_document) == (2.5, 10)
        assert peer.score(QUERY, SHORT) == [len(each.text) for each in SHORT]
        with pytest.raises(ContenderFailed, match="PyLate's process ended"):
            peer.score(QUERY, SHORT)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".cache/pylate-1.6.0/.ready").exists(), reason="PyLate is not installed")
def test_pylate_finds_the_document_with_the_querys_words() -> None:
    with started(PYLATE, "embedded:maxsim", TEXTS, 1, ROOT / ".cache") as peer:
        rhine, bread = peer.score(QUERY, SHORT)
    assert rhine > bread + 0.5
    assert peer.bytes_a_document is not None
    assert peer.bytes_a_document > 10 * 128 * 4
