"""Measure a cell: index its collection, serve its ranker, ask the questions, keep the run and the figures."""

import asyncio
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from farrank_bench.first_stages import latencies_ms, search_all, write_index
from farrank_bench.report import PACKAGES, describe_versions
from farrank_bench.reproduce.cells import CALLERS, INDEX, Cell, Figures, Kept
from farrank_bench.reproduce.corpora import Corpus
from farrank_bench.reproduce.ranking_peers import PeerTarget, started
from farrank_cli.spawn import spawned_server
from farrank_client import Client, Ranking
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.stages import open_first_stages
from farrank_indexes.index_manifest import read_manifest
from farrank_loadtest.accuracy.reranking import RunMaker
from farrank_loadtest.depths import Depth
from farrank_loadtest.machine import describe_machine
from farrank_loadtest.targets import Answer, CandidateDocument
from farrank_loadtest.targets.grpc import FarrankTarget
from farrank_loadtest.workloads import Call
from farrank_loadtest.workloads.recorded import calls_of_run
from farrank_runtimes.cores import usable_cores
from farrank_trec import Run, read_qrels, read_run, write_qrels, write_run
from farrank_trec.errors import InputError

SEED = 7
TIMEOUT_S = 600.0
# Keeps the environments of peers that have their own.
CACHE = Path(".cache")


@dataclass(frozen=True, slots=True)
class Index:
    """An index, the bytes of its files for each document, and the seconds of `farrank index`."""

    folder: Path
    bytes_a_document: float
    seconds: float


def built(corpus: Corpus, stored: Sequence[str], folder: Path) -> Index:
    """Index a collection, unless `folder` has the index. Raises: ContenderFailed."""
    times = folder.with_suffix(".json")
    if not times.exists():
        started_s = time.monotonic()
        # An index without its time is of a command that was interrupted.
        again = ["--overwrite"] if folder.exists() else []
        quick = ["--encode-precision=quick"] if stored else []
        write_index(corpus.judged, folder, [*stored, *quick, *again])
        times.write_text(json.dumps({"seconds": time.monotonic() - started_s}), "utf-8")
    manifest = read_manifest(folder)
    assert manifest is not None, "farrank index writes one"
    total = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    return Index(folder, total / manifest.documents, json.loads(times.read_text("utf-8"))["seconds"])


@dataclass(slots=True)
class Times:
    """The milliseconds of calls by number of callers: a list for each round."""

    rounds: dict[int, list[list[float]]] = field(default_factory=dict)

    def add(self, callers: int, taken_ms: Sequence[float]) -> None:
        """Add a round."""
        self.rounds.setdefault(callers, []).append(list(taken_ms))

    def add_parts(self, taken_ms: Sequence[float], rounds: int) -> None:
        """Divide the calls of one caller into rounds, in their order."""
        for part in np.array_split(taken_ms, min(rounds, len(taken_ms))):
            self.add(1, part.tolist())

    def calls(self) -> dict[str, int]:
        """The number of calls."""
        return {str(callers): sum(map(len, each)) for callers, each in self.rounds.items()}

    def p50_ms(self) -> dict[str, tuple[float, ...]]:
        """The median of each round."""
        return {str(callers): tuple(map(median, each)) for callers, each in self.rounds.items()}

    def p99_ms(self) -> dict[str, float]:
        """The 99th percentile over all rounds."""
        return {
            str(callers): float(np.percentile(np.concatenate(each), 99))
            for callers, each in self.rounds.items()
        }


class TimedTarget(FarrankTarget):
    """A Farrank server whose calls are timed; `taken_ms` has the time of each finished one."""

    def __init__(self, location: str, depth: Depth | None) -> None:
        super().__init__(location, depth=depth)
        self.taken_ms: list[float] = []

    async def rerank(
        self, query: str, documents: Sequence[CandidateDocument], *, ranker: str = "", timeout_s: float
    ) -> Answer:
        """Score the documents."""
        started_s = time.perf_counter()
        answer = await super().rerank(query, documents, ranker=ranker, timeout_s=timeout_s)
        self.taken_ms.append((time.perf_counter() - started_s) * 1e3)
        return answer

    async def search(
        self, query: str, *, index: str, k: int | None, ranker: str, timeout_s: float
    ) -> Ranking:
        """Rerank the documents that the server finds."""
        started_s = time.perf_counter()
        found = await super().search(query, index=index, k=k, ranker=ranker, timeout_s=timeout_s)
        self.taken_ms.append((time.perf_counter() - started_s) * 1e3)
        return found


T = TypeVar("T", TimedTarget, PeerTarget)


def measure(cell: Cell, corpus: Corpus, kept: Kept, rounds: int) -> Figures:
    """Measure a cell, and keep its run, its judgements and, last, its figures.

    After a call that warms up, one caller asks all questions; the times of these calls are divided into
    `rounds` parts. Then 16 callers ask a draw of the questions in each round. Without rounds nothing is
    timed.
    Raises: ContenderFailed if the collection cannot be indexed, or a peer fails; SpawnError; TargetFailed;
        InputError if `kept` has the collection with other questions.
    """
    started_s = time.monotonic()
    _keep_judgements(cell, corpus, kept)
    # An interrupted command may have left a part of the run.
    for left in kept.runs.glob(f"{cell.name}.trec*"):
        left.unlink()
    way, index = cell.way, None
    if corpus.given is None:
        stored = re.sub(r"[:/]", "-", "-".join(["lucene", *way.stored[1:]]))
        index = built(corpus, way.stored, kept.folder / "indexes" / f"{cell.corpus}-{stored}")
    queries = corpus.judged.queries
    drawn = random.Random(SEED).sample(sorted(queries), min(way.timed, len(queries)))
    asked = Asked(cell, queries, {query_id: queries[query_id] for query_id in drawn}, rounds)
    vectors = None if index is None else (index.bytes_a_document, index.seconds)
    if way.peer:
        vectors = _by_peer(asked, corpus, index, kept)
        runs_on = "torch fp32, cpu"
    elif way.ranker:
        runs_on = _served(asked, corpus, index, kept)
    else:
        runs_on = "the given run" if index is None else "Lucene's process"
        write_run(kept.run(cell), _candidates(asked, corpus, index, asked.times), cell.name)
    figures = Figures(
        cell=cell,
        questions=len(queries),
        rounds=rounds,
        calls=asked.times.calls(),
        p50_ms=asked.times.p50_ms(),
        p99_ms=asked.times.p99_ms(),
        bytes_a_document=None if vectors is None else vectors[0],
        index_s=None if vectors is None else vectors[1],
        seconds=time.monotonic() - started_s,
        runs_on=runs_on,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=describe_machine(),
        versions=describe_versions(PACKAGES),
    )
    figures.write(kept.figures(cell))
    return figures


def _keep_judgements(cell: Cell, corpus: Corpus, kept: Kept) -> None:
    path = kept.judgements(cell.corpus)
    if path.exists() and read_qrels(path).keys() != corpus.judged.qrels.keys():
        raise InputError(f"{path}: measured with other questions than now; name another --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_qrels(path, corpus.judged.qrels)


@dataclass(frozen=True, slots=True)
class Asked:
    """A cell's questions, those of a timed round of many callers, and the times of the calls so far."""

    cell: Cell
    queries: Mapping[str, str]
    timed: Mapping[str, str]
    rounds: int
    times: Times = field(default_factory=Times)


def _candidates(asked: Asked, corpus: Corpus, index: Index | None, times: Times | None = None) -> Run:
    """Let Lucene rank alone, or take the given run."""
    if corpus.given is None:
        assert index is not None
        found = asyncio.run(_searched(asked, index.folder, times))
    else:
        found = {key: each for key, each in read_run(corpus.given).items() if key in asked.queries}
    return {key: each[: asked.cell.way.candidates] for key, each in found.items()}


async def _searched(asked: Asked, folder: Path, times: Times | None) -> Run:
    """Let Lucene's process search, without a server: the wire has no call that only searches."""
    stages = open_first_stages(FirstStageConfig(indexes={INDEX: Bm25Config(folder)}))
    try:
        await stages.start()
        run = await search_all(stages, INDEX, asked.queries)
        if times is not None and asked.rounds:
            times.add_parts(await latencies_ms(stages, INDEX, list(asked.queries.values()), 1), asked.rounds)
            for _ in range(asked.rounds):
                timed = list(asked.timed.values())
                times.add(CALLERS[1], await latencies_ms(stages, INDEX, timed, CALLERS[1]))
    finally:
        await stages.stop()
    return run


def _by_peer(asked: Asked, corpus: Corpus, index: Index | None, kept: Kept) -> tuple[float, float] | None:
    """Let a peer rank; returns the bytes of a document's vectors and the seconds for all, if it has any."""
    way, documents = asked.cell.way, corpus.documents()
    calls = {
        query_id: Call(
            asked.queries[query_id],
            tuple(CandidateDocument(each.doc_id, documents[each.doc_id]) for each in found),
            query_id,
        )
        for query_id, found in _candidates(asked, corpus, index).items()
        if found
    }
    with started(way.peer, way.ranker, documents, usable_cores(), CACHE) as peer:

        async def ask(target: PeerTarget, by: RunMaker, queries: Mapping[str, str]) -> None:
            some = [calls[query_id] for query_id in queries if query_id in calls]
            await by.rerank(target, "", some, "", asked.cell.name)

        maker = _maker("", kept.runs, None, way.candidates)
        asyncio.run(_asked(asked, lambda: PeerTarget(peer), ask, maker))
    if peer.bytes_a_document is None or peer.index_s is None:
        return None
    return peer.bytes_a_document, peer.index_s


def _served(asked: Asked, corpus: Corpus, index: Index | None, kept: Kept) -> str:
    """Let a server rank; returns the runtime, precision and device of its ranker."""
    way = asked.cell.way
    flags = [*way.server_flags(None if index is None else index.folder), "--log-level=error"]
    with spawned_server(flags) as server:
        with Client(server.address) as client:
            ranker = client.rankers(timeout_s=TIMEOUT_S).rankers[0]
        maker = _maker(server.address, kept.runs, None if index is None else INDEX, way.candidates)
        depth: Depth = "adaptive" if way.depth == "adaptive" else "all"
        calls = {}
        if corpus.given is not None:
            found, missing = calls_of_run(_candidates(asked, corpus, index), asked.queries, corpus.texts)
            assert not missing, missing
            calls = {each.query_id: each for each in found}

        async def ask(target: TimedTarget, by: RunMaker, queries: Mapping[str, str]) -> None:
            if corpus.given is None:
                await by.search(target, "it", queries, "", {}, asked.cell.name)
            else:
                some = [calls[query_id] for query_id in queries if query_id in calls]
                await by.rerank(target, "it", some, "", asked.cell.name)

        asyncio.run(_asked(asked, lambda: TimedTarget(server.address, depth), ask, maker))
    return f"{ranker.runtime} {ranker.precision}, {ranker.device}"


def _maker(address: str, folder: Path, index: str | None, k: int) -> RunMaker:
    return RunMaker(
        address,
        allow_remote=False,
        in_flight=1,
        timeout_s=TIMEOUT_S,
        folder=folder,
        begun=lambda _tag, _queries: lambda _done: None,
        index=index,
        k=k,
    )


async def _asked(
    asked: Asked,
    opened: Callable[[], T],
    ask: Callable[[T, RunMaker, Mapping[str, str]], Awaitable[None]],
    maker: RunMaker,
) -> None:
    # A client belongs to the event loop in which it is made.
    target = opened()
    with TemporaryDirectory() as scratch:
        untimed = replace(maker, folder=Path(scratch))
        try:
            await ask(target, untimed, dict(list(asked.queries.items())[:1]))
            target.taken_ms.clear()
            await ask(target, maker, asked.queries)
            if asked.rounds:
                asked.times.add_parts(target.taken_ms, asked.rounds)
            for _ in range(asked.rounds if asked.timed else 0):
                target.taken_ms.clear()
                await ask(target, replace(untimed, in_flight=CALLERS[1]), asked.timed)
                asked.times.add(CALLERS[1], target.taken_ms)
        finally:
            await target.close()
