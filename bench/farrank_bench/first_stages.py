"""First stages side by side: the quality of their rankings, and the time of a search.

python -m farrank_bench.first_stages --data ../shared/data --out report.md

Each test set is indexed with its chunks' vectors by the embedded bi-encoder. BM25, RM3, these vectors and two
fusions of BM25 with the vectors then answer the same questions. There is no reranking.
"""

import argparse
import asyncio
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from farrank_bench.report import Heading
from farrank_bench.rounds import ContenderFailed
from farrank_demo.questions import load_qrels, load_questions
from farrank_first_stage.bm25 import Bm25Config, Bm25Rm3Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.dense import DenseConfig
from farrank_first_stage.fusion import FusionConfig
from farrank_first_stage.stages import FirstStages, open_first_stages
from farrank_loadtest.accuracy.accuracy_report import Report, render
from farrank_loadtest.accuracy.evaluation import RESAMPLES, EvaluationSettings, evaluate_models
from farrank_loadtest.kept_files import markdown_table
from farrank_rankers.files.model_files import EMBEDDED
from farrank_server.config.schema import RankerConfig, ServerConfig
from farrank_server.engine.query_encoders import OwnEncoders
from farrank_trec import Qrels, Run, rank, read_qrels, read_queries
from farrank_trec.measures import parse_measures

MEASURES = ("nDCG@10", "R@100")
DEPTH = 100
BASELINE = "bm25"
CALLERS = (1, 4, 16)
TIMEOUT_S = 60.0
ENCODER = "minilm"
ALPHA = 0.05
SEED = 7
# The chunks' vectors.
STORED = ("--encode", EMBEDDED)
# The number of timed searches of each test set.
TIMED = 200


@dataclass(frozen=True, slots=True)
class JudgedCollection:
    """A collection with questions and judgements. `flags` name the collection to `farrank index`."""

    name: str
    flags: Sequence[str]
    queries: Mapping[str, str]
    qrels: Qrels


def test_sets(data: Path | None) -> Iterator[JudgedCollection]:
    """Find the test sets: the demo's own, and those of a folder of public ones."""
    yield demo()
    if data is not None:
        yield nfcorpus(data / "nfcorpus")
        yield dl19(data / "trecdl19")


def demo() -> JudgedCollection:
    """Give the demo's documents and questions."""
    questions = {each.query_id: each.text for each in load_questions()}
    return JudgedCollection("demo", ["--pydoc"], questions, load_qrels())


def nfcorpus(folder: Path) -> JudgedCollection:
    """Read NFCorpus and its test questions. Raises: InputError or OSError if a file cannot be read."""
    return _judged(
        "NFCorpus", folder / "corpus.jsonl.gz", folder / "queries.jsonl.gz", folder / "qrels.test.txt.gz"
    )


def dl19(folder: Path) -> JudgedCollection:
    """Read the passages and topics of TREC DL 2019. Raises: InputError or OSError, as `nfcorpus`."""
    return _judged(
        "DL19", folder / "passages.jsonl.gz", folder / "topics.dl19.tsv.gz", folder / "qrels.dl19.txt.gz"
    )


def _judged(name: str, collection: Path, queries: Path, qrels: Path) -> JudgedCollection:
    judged = read_qrels(qrels)
    asked = {query_id: text for query_id, text in read_queries(queries).items() if query_id in judged}
    return JudgedCollection(name, [str(collection)], asked, judged)


def write_index(test_set: JudgedCollection, folder: Path, stored: Sequence[str] = STORED) -> None:
    """Index a collection; `stored` are the flags of its stores. Raises: ContenderFailed."""
    command = [sys.executable, "-m", "farrank_cli", "index", *test_set.flags, *stored]
    done = subprocess.run([*command, "--out", str(folder)])
    if done.returncode:
        raise ContenderFailed(f"farrank index ended with status {done.returncode}; its output is above")


async def search_all(stages: FirstStages, name: str, queries: Mapping[str, str]) -> Run:
    """Search for each query, one after the other."""
    run: Run = {}
    for query_id, text in queries.items():
        found = await stages.search(name, text, DEPTH, TIMEOUT_S)
        run[query_id] = rank(query_id, [(each.doc_id, each.score) for each in found])
    return run


async def latencies_ms(stages: FirstStages, name: str, queries: Sequence[str], callers: int) -> list[float]:
    """Let callers search, each for its next query when it has its answer. Searches read the texts, too."""
    waiting, taken = iter(queries), []

    async def ask_on() -> None:
        for text in waiting:
            started_s = time.monotonic()
            await stages.search(name, text, DEPTH, TIMEOUT_S)
            taken.append((time.monotonic() - started_s) * 1e3)

    async with asyncio.TaskGroup() as asking:
        for _ in range(callers):
            asking.create_task(ask_on())
    return taken


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[FirstStages]:
    """Open every kind of first stage over one index."""
    kinds = {
        BASELINE: Bm25Config(folder),
        "rm3": Bm25Rm3Config(folder),
        "dense": DenseConfig(folder, ENCODER),
        "rrf": FusionConfig(of=(BASELINE, "dense")),
        "linear": FusionConfig(of=(BASELINE, "dense"), method="linear", scores="min_max"),
    }
    config = FirstStageConfig(indexes=kinds)
    encoders = OwnEncoders(ServerConfig(rankers={ENCODER: RankerConfig()}))
    stages = open_first_stages(config, encoders)
    try:
        await stages.start()
        yield stages
    finally:
        await stages.stop()
        encoders.close()


async def measured(test_set: JudgedCollection, folder: Path) -> tuple[Report, list[tuple[str, ...]]]:
    """Rank a test set's questions with every kind, then time searches. Returns a report and latency rows."""
    rows = []
    async with opened(folder) as stages:
        runs = {name: [[await search_all(stages, name, test_set.queries)]] for name in stages.stages}
        asked = (list(test_set.queries.values()) * TIMED)[:TIMED]
        for name in stages.stages:
            taken = [np.percentile(await latencies_ms(stages, name, asked, n), (50, 99)) for n in CALLERS]
            rows.append((test_set.name, name, *(f"{p50:.1f} / {p99:.1f}" for p50, p99 in taken)))
    settings = EvaluationSettings(
        test_set=test_set.name,
        measures=parse_measures(MEASURES),
        baselines={name: BASELINE for name in runs if name != BASELINE},
        fulls={},
        alpha=ALPHA,
        resamples=RESAMPLES,
        seed=SEED,
        ranked_only=False,
    )
    report, _ = evaluate_models([test_set.qrels], runs, settings, notes=[], inputs={})
    return report, rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Index, rank, time, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m farrank_bench.first_stages", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with nfcorpus/ and trecdl19/")
    parser.add_argument("--indexes", type=Path, help="folder with an index of each test set, old or new")
    parser.add_argument("--out", type=Path, help="write the report here, too")
    given = parser.parse_args(arguments)
    reports, latencies = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for test_set in test_sets(given.data):
            folder = (given.indexes or Path(scratch)) / test_set.name
            if not folder.exists():
                write_index(test_set, folder)
            print(f"{test_set.name}: {len(test_set.queries)} questions", flush=True)
            report, rows = asyncio.run(measured(test_set, folder))
            reports.append(report)
            latencies += rows
    words = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "farrank_bench.first_stages", *words])
    heading = Heading("First stages side by side", NOTES)
    heads = ("test set", "first stage", *(f"{n} caller{'s' * (n > 1)}: p50 / p99, ms" for n in CALLERS))
    page = (
        f"{heading.page(command, {})}\n## Quality\n\n{render(reports)}"
        f"\n## Latency of a search for {DEPTH} candidates with their texts\n\n"
        f"{markdown_table(heads, latencies, aligned=False)}\n"
    )
    print(page)
    if given.out:
        given.out.write_text(page, encoding="utf-8")
    return 0


NOTES = (
    "bm25: k1 0.9, b 0.4; rm3: 10 terms of 10 documents, half the weight; dense: the embedded bi-encoder, "
    "the best chunk of a document, all chunks compared; rrf: k 60; "
    "linear: both scores from 0 to 1 by query, half the weight each"
)


if __name__ == "__main__":
    sys.exit(main())
