"""Other programs that rank the same candidates with the same weights, and their answers as a load test asks.

A library answers one call after the other: what waits in line counts to a call's time.
"""

import asyncio
import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from farrank_bench.depth.online import pair_scorer
from farrank_bench.peers import infinity_command, infinity_server, peer_python
from farrank_bench.reproduce import pylate_peer
from farrank_bench.reproduce.cells import BEST_CHUNK, BI_ENCODER, CALLERS, CROSS_ENCODER, INFINITY, PYLATE
from farrank_bench.rounds import ContenderFailed, child
from farrank_loadtest.targets import Answer, CandidateDocument
from farrank_rankers.files.model_files import EMBEDDED, locate
from farrank_rankers.files.open import open_ranker
from farrank_training.data_sets.lexical_index import LexicalIndex

PYLATE_REQUIREMENT = "pylate==1.6.0"
_MODEL = "embedded"
_BATCH = 64
# Infinity refuses longer texts, of which it would read 256 tokens.
_INFINITY_CHARACTERS = 100_000
# The scores of a query's documents, in their order.
Scorer = Callable[[str, Sequence[CandidateDocument]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Peer:
    """A started peer. `at_once` is the number of calls that it answers at the same time.

    One that encodes documents beforehand has the bytes of a document's vectors and the seconds for all.
    """

    score: Scorer
    at_once: int = 1
    bytes_a_document: float | None = None
    index_s: float | None = None


class PeerTarget:
    """A peer as a load test's target; `taken_ms` has the time of each finished call, waiting included."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._threads = ThreadPoolExecutor(peer.at_once)
        self.taken_ms: list[float] = []

    async def rerank(
        self, query: str, documents: Sequence[CandidateDocument], *, ranker: str = "", timeout_s: float
    ) -> Answer:
        """Score the documents. Raises: ContenderFailed if the peer does not answer."""
        started_s = time.perf_counter()
        asked = asyncio.get_running_loop().run_in_executor(self._threads, self._peer.score, query, documents)
        scores = await asyncio.wait_for(asked, timeout_s)
        self.taken_ms.append((time.perf_counter() - started_s) * 1e3)
        return Answer(tuple(map(float, scores)))

    async def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown()


@contextmanager
def started(
    name: str, ranker: str, documents: Mapping[str, str], threads: int, cache: Path
) -> Iterator[Peer]:
    """Run a peer until the block is left. `cache` keeps the environments of those that have their own.

    `ranker` has the weights. A peer with vectors encodes all documents first; an emulation of Elasticsearch
    cuts them into the ranker's chunks, which is not timed.
    Raises: ContenderFailed if it cannot be installed or started.
    """
    with ExitStack() as stack:
        if name in (CROSS_ENCODER, BEST_CHUNK):
            yield stack.enter_context(_pairs(ranker, documents if name == BEST_CHUNK else None, threads))
        elif name == BI_ENCODER:
            yield stack.enter_context(_bi_encoder(documents, threads))
        elif name == PYLATE:
            yield stack.enter_context(_pylate(ranker, documents, threads, cache))
        else:
            assert name == INFINITY, name
            yield stack.enter_context(_infinity(documents, threads, cache))


@contextmanager
def _pairs(ranker: str, chunked: Mapping[str, str] | None, threads: int) -> Iterator[Peer]:
    with pair_scorer(ranker, threads) as (reader, process):
        chunks = {}
        for doc_id, text in (chunked or {}).items():
            spans = reader.split(reader.read_document(text))
            chunks[doc_id] = [text[each.start : each.end] for each in spans]
        # As Elasticsearch does, BM25 counts words among the chunks of one document.
        indexes = {doc_id: LexicalIndex(each) for doc_id, each in chunks.items()}

        def read(query: str, document: CandidateDocument) -> str:
            if chunked is None:
                return document.text
            ((place, _),) = indexes[document.doc_id].best(query, 1)
            return chunks[document.doc_id][place]

        def score(query: str, documents: Sequence[CandidateDocument]) -> Sequence[float]:
            found: Sequence[float] = process.ask([(query, read(query, each)) for each in documents])[1]
            return found

        yield Peer(score)


@contextmanager
def _bi_encoder(documents: Mapping[str, str], threads: int) -> Iterator[Peer]:
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    folder = str(locate(EMBEDDED).folder)
    with child(BI_ENCODER, answer_queries, folder, threads, **environment) as process:
        seconds, total = process.ask(documents)

        def score(query: str, documents: Sequence[CandidateDocument]) -> Sequence[float]:
            found: Sequence[float] = process.ask((query, [each.doc_id for each in documents]))
            return found

        yield Peer(score, 1, total / len(documents), seconds)


def answer_queries(asked: Connection, folder: str, threads: int) -> None:
    """Encode documents on the CPU; then answer queries and ids of documents with cosines."""
    # Imported here, because the benchmark itself does not need them.
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(folder, device="cpu")
    texts = asked.recv()
    started_s = time.perf_counter()
    vectors = model.encode(list(texts.values()), show_progress_bar=False)
    asked.send((time.perf_counter() - started_s, vectors.nbytes))
    places = {doc_id: place for place, doc_id in enumerate(texts)}
    while True:
        query, ids = asked.recv()
        asked.send((vectors[[places[each] for each in ids]] @ model.encode(query)).tolist())


@contextmanager
def _pylate(ranker: str, documents: Mapping[str, str], threads: int, cache: Path) -> Iterator[Peer]:
    python = peer_python(cache, PYLATE_REQUIREMENT.replace("==", "-"), PYLATE_REQUIREMENT)
    opened: Any = open_ranker(ranker)
    with TemporaryDirectory() as folder:
        projection = Path(folder) / "projection.npy"
        np.save(projection, opened.encoder.head[0].linear.weight.detach().numpy())
        opened.encoder.backbone.save_pretrained(folder)
        opened.reader.tokenizer.files.write(Path(folder))
        command = [str(python), pylate_peer.__file__, folder, str(projection), str(threads)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            lines = process.stdout

            def ask(question: object) -> Any:
                assert process.stdin is not None
                try:
                    process.stdin.write(json.dumps(question) + "\n")
                    process.stdin.flush()
                except OSError as error:
                    raise ContenderFailed(f"{PYLATE}'s process ended") from error
                for line in lines:
                    if line.startswith("answer "):
                        return json.loads(line.removeprefix("answer "))
                raise ContenderFailed(f"{PYLATE}'s process ended")

            def score(query: str, documents: Sequence[CandidateDocument]) -> Sequence[float]:
                found: Sequence[float] = ask({"query": query, "ids": [each.doc_id for each in documents]})
                return found

            try:
                encoded = ask(documents)
                yield Peer(score, 1, encoded["bytes"] / len(documents), encoded["seconds"])
            finally:
                process.kill()
                # A line that was not read can no longer be sent, and leaving the process would try to.
                with suppress(OSError):
                    process.stdin.close()


@contextmanager
def _infinity(documents: Mapping[str, str], threads: int, cache: Path) -> Iterator[Peer]:
    command = infinity_command(cache)
    with (
        TemporaryDirectory() as folder,
        infinity_server(command, locate(EMBEDDED).folder, _MODEL, threads, Path(folder)) as address,
    ):
        url = address.removeprefix("cohere:").replace("/rerank", "/embeddings")
        texts = [text[:_INFINITY_CHARACTERS] for text in documents.values()]
        started_s = time.perf_counter()
        vectors = np.concatenate(
            [_embedded(url, texts[start : start + _BATCH]) for start in range(0, len(texts), _BATCH)]
        )
        seconds = time.perf_counter() - started_s
        places = {doc_id: place for place, doc_id in enumerate(documents)}

        def score(query: str, documents: Sequence[CandidateDocument]) -> Sequence[float]:
            of = vectors[[places[each.doc_id] for each in documents]]
            found: list[float] = (of @ _embedded(url, [query])[0]).tolist()
            return found

        yield Peer(score, max(CALLERS), vectors.nbytes / len(documents), seconds)


def _embedded(url: str, texts: Sequence[str]) -> np.ndarray:
    body = json.dumps({"model": _MODEL, "input": texts}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            found = json.load(response)["data"]
    except OSError as error:
        raise ContenderFailed(f"{INFINITY}: {error}") from error
    ordered = sorted(found, key=lambda each: int(each["index"]))
    return np.array([each["embedding"] for each in ordered], dtype=np.float32)
