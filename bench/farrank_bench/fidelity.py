"""What precision costs in ranking: `python -m farrank_bench.fidelity --index .cache/pydoc-index`.

The embedded bi-encoder ranks the candidates of the demo's judged questions offline, with every runtime of its
exports as `farrank serve` opens them. Its rankings in torch, fp32, are what the others are compared with.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from farrank_bench.exporting import export_fast
from farrank_bench.offline import batches_in_order
from farrank_bench.report import Row, heading, not_measured, tables
from farrank_demo.questions import Question, load_qrels, load_questions
from farrank_exporters.parity import LEAST_TAU, kendall_tau, top_overlap
from farrank_rankers.features import Features, stacked
from farrank_rankers.files.location import EMBEDDED
from farrank_rankers.files.open import Overrides, open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.choose import candidates as candidates_for
from farrank_runtimes.choose import open_ranker_runtime
from farrank_runtimes.devices import usable_cores
from farrank_runtimes.runtime import Placement, Precision, Runtime
from farrank_runtimes.torch_runtime import TorchRuntime
from farrank_server.config.schema import FirstStageConfig, IndexConfig
from farrank_server.first_stage import Candidate
from farrank_server.first_stage.lucene import LuceneFirstStage
from farrank_trec import rank
from farrank_trec.measures import evaluate, parse_measures

CANDIDATES = 100
TOP = 10
SEARCH_TIMEOUT_S = 60.0
INDEX = "pydoc"
MEASURE = "nDCG@10"
# How far nDCG@10 may move, up or down.
NDCG_WITHIN: Mapping[Precision, float] = {"bf16": 0.005, "int8": 0.01}
NOTES = (
    f"the embedded bi-encoder (all-MiniLM-L6-v2) over judged questions, up to {CANDIDATES} candidates each; "
    f"Kendall's tau-b and the overlap of the first {TOP} are means over questions, their least in brackets; "
    "differences are of scores"
)

# Query id to document id to score.
Scored = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How rankings compare with the reference's: means over questions, and the worst question."""

    mean_tau: float
    least_tau: float
    overlap: float
    least_overlap: float
    mean_difference: float
    max_difference: float


def main() -> None:
    """Rank with every runtime of every export, and print the table."""
    parser = argparse.ArgumentParser(prog="farrank_bench.fidelity", description=__doc__)
    parser.add_argument("--index", type=Path, required=True, help="the index of the embedded corpus")
    parser.add_argument("--questions", type=int, help="only the first so many")
    parser.add_argument("--max-chunks", type=int, help="read only so many chunks of a document")
    parser.add_argument("--threads", type=int, help="threads to compute with, default all")
    parser.add_argument("--out", type=Path, help="write the report here, too")
    given = parser.parse_args()
    threads = given.threads or usable_cores()
    with tempfile.TemporaryDirectory() as folder:
        rows = fidelity_of_exports(
            given.index, Path(folder) / "embedded", threads, given.questions, given.max_chunks
        )
    command = f"python -m farrank_bench.fidelity --index {given.index}"
    for flag, value in (("questions", given.questions), ("max-chunks", given.max_chunks)):
        command += f" --{flag} {value}" if value else ""
    report = heading("What precision costs in ranking", command, NOTES)
    report += tables({"Fidelity of exports": rows})
    print(report)
    if given.out:
        given.out.write_text(report)


def fidelity_of_exports(
    index: Path | None, folder: Path, threads: int, questions: int | None, max_chunks: int | None
) -> list[Row]:
    """Rank the judged questions' candidates with every runtime of every export.

    `index` is the embedded corpus's, `folder` takes the exports; `questions` and `max_chunks` cut it short.
    """
    if index is None or not index.exists():
        return [not_measured("fidelity", f"--index is {index}; farrank index --pydoc --out FOLDER makes it")]
    asked = load_questions()[:questions]
    candidates = asyncio.run(find_candidates(index, asked))
    ranker = open_ranker(EMBEDDED)
    reader = ranker.reader
    save_ranker(ranker, folder)
    exports, rows = export_fast(ranker, folder)
    torch = TorchRuntime(ranker, "fp32", "cpu", threads)
    expected = rank_offline(torch, reader, asked, candidates, max_chunks)
    rows.append(Row("questions, nDCG@10 with torch fp32", f"{len(asked)}, {ndcg(expected):.4f}"))
    for each in candidates_for("cpu", exports, "auto", None):
        if each.export is None:
            continue
        print(f"  ranking with {each}", flush=True)
        placement = Placement("cpu", threads)
        served = open_ranker_runtime(
            str(folder), Overrides(), runtime=each.runtime, precision=each.precision, placement=placement
        )
        run = rank_offline(served.runtime, reader, asked, candidates, max_chunks)
        rows += fidelity_rows(f"{each.runtime} {each.precision}", each.precision, expected, run)
    return rows


def fidelity_rows(name: str, precision: Precision, expected: Scored, scored: Scored) -> list[Row]:
    """Hold rankings to the bounds of their precision; fp32 has none here."""
    found = compare(expected, scored)
    moved = ndcg(scored) - ndcg(expected)
    tau, within = LEAST_TAU.get(precision), NDCG_WITHIN.get(precision)
    return [
        Row(
            f"{name}: Kendall's tau, mean of questions (the worst)",
            f"{found.mean_tau:.4f} ({found.least_tau:.4f})",
            "" if tau is None else f"at least {tau:g}",
            None if tau is None else found.mean_tau >= tau,
        ),
        Row(
            f"{name}: {MEASURE} beside torch fp32",
            f"{moved:+.4f}",
            "" if within is None else f"within {within:g}",
            None if within is None else abs(moved) <= within,
        ),
        Row(
            f"{name}: overlap of the first {TOP} (the least), mean and largest difference",
            f"{found.overlap:.3f} ({found.least_overlap:.1f}), "
            f"{found.mean_difference:.1e}, {found.max_difference:.1e}",
        ),
    ]


def compare(reference: Scored, scored: Scored) -> Fidelity:
    """Compare rankings of the same candidates, question by question.

    Raises: ValueError if a score is not a number: no comparison could tell it from an equal one.
    """
    taus, overlaps, differences = [], [], []
    for query_id, wanted in reference.items():
        first = np.array(list(wanted.values()))
        second = np.array([scored[query_id][doc_id] for doc_id in wanted])
        if not (np.isfinite(first).all() and np.isfinite(second).all()):
            raise ValueError(f"{query_id}: a score is not finite")
        taus.append(kendall_tau(first, second))
        overlaps.append(top_overlap(first, second, TOP))
        differences.append(np.abs(second - first))
    every = np.concatenate(differences)
    return Fidelity(
        float(np.mean(taus)),
        min(taus),
        float(np.mean(overlaps)),
        min(overlaps),
        float(every.mean()),
        float(every.max()),
    )


def ndcg(scored: Scored) -> float:
    """Average nDCG@10 over the questions that were asked."""
    asked = {query_id: grades for query_id, grades in load_qrels().items() if query_id in scored}
    run = {query_id: rank(query_id, scores.items()) for query_id, scores in scored.items()}
    return float(np.mean(list(evaluate(asked, run, parse_measures([MEASURE]))[MEASURE].values())))


async def find_candidates(index: Path, questions: Sequence[Question]) -> dict[str, list[Candidate]]:
    """Ask Lucene for each question's candidates, by query id."""
    first_stage = LuceneFirstStage(FirstStageConfig(indexes={INDEX: IndexConfig(index)}))
    await first_stage.start()
    try:
        return {
            question.query_id: await first_stage.search(INDEX, question.text, CANDIDATES, SEARCH_TIMEOUT_S)
            for question in questions
        }
    finally:
        await first_stage.stop()


def rank_offline(
    runtime: Runtime,
    reader: Reader,
    questions: Sequence[Question],
    candidates: Mapping[str, Sequence[Candidate]],
    max_chunks: int | None = None,
) -> Scored:
    """Score each question's candidates with a ranker of plan dual: query id to document id to score."""
    texts = {each.doc_id: each.text for found in candidates.values() for each in found}
    chunks: list[EncoderInput] = []
    spans: dict[str, slice] = {}
    for doc_id, text in texts.items():
        split = reader.split(reader.read_document(text, max_chunks), max_chunks)
        spans[doc_id] = slice(len(chunks), len(chunks) + len(split))
        chunks += [reader.chunk_input(None, chunk) for chunk in split]
    queries = [reader.query_input(reader.read_query(question.text)) for question in questions]
    encoded_chunks = encode_all(runtime, chunks)
    encoded_queries = encode_all(runtime, queries)
    scored: Scored = {}
    for question, query in zip(questions, encoded_queries, strict=True):
        found = [each.doc_id for each in candidates[question.query_id]]
        documents = [stacked(encoded_chunks[spans[doc_id]]) for doc_id in found]
        scores = runtime.score(documents, [query] * len(found)).scores
        scored[question.query_id] = dict(zip(found, scores, strict=True))
    return scored


def encode_all(runtime: Runtime, inputs: Sequence[EncoderInput]) -> list[Features]:
    """Encode inputs in full batches of like lengths; give their features in the order of the inputs."""
    longest_first = sorted(range(len(inputs)), key=lambda index: -inputs[index].tokens)
    features: dict[int, Features] = {}
    ordered = [inputs[index] for index in longest_first]
    places = iter(longest_first)
    for batch in batches_in_order(ordered, runtime.capabilities().max_batch_tokens, padded=True):
        rows = runtime.encode(batch).rows()
        features |= {next(places): row for row in rows}
    return [features[index] for index in range(len(inputs))]


if __name__ == "__main__":
    main()
