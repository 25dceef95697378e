"""Measure a cell: index its collection, serve its ranker, ask the questions, keep the run and the figures."""

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from farrank_bench.first_stages import latencies_ms, search_all, write_index
from farrank_bench.report import PACKAGES, describe_versions
from farrank_bench.reproduce.cells import CALLERS, Cell, Figures, Kept
from farrank_bench.reproduce.corpora import Corpus
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
from farrank_loadtest.workloads.recorded import calls_of_run
from farrank_rankers.files.model_files import EMBEDDED
from farrank_server.config.schema import RankerConfig, ServerConfig
from farrank_server.engine.query_encoders import OwnEncoders
from farrank_trec import Run, read_run, write_qrels, write_run

SEED = 7
# The number of questions of each timed round.
TIMED = 32
TIMEOUT_S = 600.0
_INDEX = "docs"


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
        write_index(corpus.judged, folder, [*stored, *again])
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


def measure(cell: Cell, corpus: Corpus, kept: Kept, rounds: int) -> Figures:
    """Measure a cell, and keep its run, its judgements and, last, its figures.

    All questions are asked once, untimed, by one caller; then TIMED of them in each round, by one caller and
    by several at once.
    Raises: ContenderFailed if the collection cannot be indexed; SpawnError; TargetFailed.
    """
    started_s = time.monotonic()
    index = None
    if corpus.given is None:
        stored = "-".join(["lucene", *cell.way.stored[1:]]).replace(":", "-")
        index = built(corpus, cell.way.stored, kept.folder / "indexes" / f"{cell.corpus}-{stored}")
    queries = corpus.judged.queries
    timed_ids = random.Random(SEED).sample(sorted(queries), min(TIMED, len(queries)))
    timed = {query_id: queries[query_id] for query_id in timed_ids}
    times = Times()
    if cell.way.ranker:
        runs_on = _served(cell, corpus, index, kept, timed, rounds, times)
    elif index is None:
        assert corpus.given is not None
        runs_on = "the given run"
        run = {key: found[: cell.way.candidates] for key, found in read_run(corpus.given).items()}
        write_run(kept.run(cell), {key: found for key, found in run.items() if key in queries}, cell.name)
    else:
        runs_on = "this process"
        found = asyncio.run(_searched(index.folder, queries, list(timed.values()), rounds, times))
        write_run(kept.run(cell), found, cell.name)
    judgements = kept.judgements(cell.corpus)
    judgements.parent.mkdir(parents=True, exist_ok=True)
    write_qrels(judgements, corpus.judged.qrels)
    figures = Figures(
        cell=cell,
        questions=len(queries),
        rounds=rounds,
        calls=len(timed) * rounds,
        p50_ms=times.p50_ms(),
        p99_ms=times.p99_ms(),
        bytes_a_document=None if index is None else index.bytes_a_document,
        index_s=None if index is None else index.seconds,
        seconds=time.monotonic() - started_s,
        runs_on=runs_on,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=describe_machine(),
        versions=describe_versions(PACKAGES),
    )
    figures.write(kept.figures(cell))
    return figures


async def _searched(
    folder: Path, queries: Mapping[str, str], timed: Sequence[str], rounds: int, times: Times
) -> Run:
    """Let Lucene rank alone. A call that reranks is the wire's only one, so it is asked in this process."""
    encoders = OwnEncoders(ServerConfig(rankers={EMBEDDED: RankerConfig()}))
    stages = open_first_stages(FirstStageConfig(indexes={_INDEX: Bm25Config(folder)}), encoders)
    try:
        await stages.start()
        run = await search_all(stages, _INDEX, queries)
        for _ in range(rounds):
            for callers in CALLERS:
                times.add(callers, await latencies_ms(stages, _INDEX, timed, callers))
    finally:
        await stages.stop()
        encoders.close()
    return run


def _served(
    cell: Cell,
    corpus: Corpus,
    index: Index | None,
    kept: Kept,
    timed: Mapping[str, str],
    rounds: int,
    times: Times,
) -> str:
    """Let a server rank; returns the runtime, precision and device of its ranker."""
    # What an interrupted command left is measured again.
    for left in kept.runs.glob(f"{cell.name}.trec*"):
        left.unlink()
    searched = [] if index is None else ["--index", f"{_INDEX}={index.folder}"]
    flags = [*cell.way.server_flags, *searched, "--log-level=error"]
    with spawned_server(flags) as server, TemporaryDirectory() as scratch:
        with Client(server.address) as client:
            ranker = client.rankers(timeout_s=TIMEOUT_S).rankers[0]
        maker = RunMaker(
            server.address,
            allow_remote=False,
            in_flight=1,
            timeout_s=TIMEOUT_S,
            folder=kept.runs,
            begun=lambda _tag, _queries: lambda _done: None,
            index=None if index is None else _INDEX,
            k=cell.way.candidates,
        )
        asyncio.run(_asked(maker, cell, corpus, timed, rounds, times, Path(scratch)))
    return f"{ranker.runtime} {ranker.precision}, {ranker.device}"


async def _asked(
    maker: RunMaker,
    cell: Cell,
    corpus: Corpus,
    timed: Mapping[str, str],
    rounds: int,
    times: Times,
    scratch: Path,
) -> None:
    target = TimedTarget(maker.address, "adaptive" if cell.way.depth == "adaptive" else "all")

    async def ask(by: RunMaker, queries: Mapping[str, str]) -> None:
        if corpus.given is None:
            await by.search(target, "it", queries, "", {}, cell.name)
            return
        run = {key: found for key, found in read_run(corpus.given).items() if key in queries}
        cut = {key: found[: cell.way.candidates] for key, found in run.items()}
        calls, missing = calls_of_run(cut, queries, corpus.texts)
        assert not missing, missing
        await by.rerank(target, "it", calls, "", cell.name)

    try:
        await ask(maker, corpus.judged.queries)
        for _ in range(rounds):
            for callers in CALLERS:
                target.taken_ms.clear()
                await ask(replace(maker, in_flight=callers, folder=scratch), timed)
                times.add(callers, target.taken_ms)
    finally:
        await target.close()
