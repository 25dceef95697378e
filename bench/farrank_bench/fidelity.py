"""The effect of precision on rankings.

The embedded bi-encoder ranks the candidates of the demo's judged questions offline, with every runtime of its
exports as `farrank serve` opens them. All rankings are compared with those of torch in fp32.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from farrank_bench.exporting import export_fast
from farrank_bench.report import Row, not_measured
from farrank_demo.questions import Question, load_qrels, load_questions
from farrank_exporters.parity import MIN_TAU, encode_all, top_overlap
from farrank_first_stage import Candidate
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.stages import open_first_stages
from farrank_rankers.features import stacked
from farrank_rankers.files.model_files import EMBEDDED
from farrank_rankers.files.open import Overrides, open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.rank_correlation import kendall_tau
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.choose import candidates as candidates_for
from farrank_runtimes.choose import open_ranker_runtime
from farrank_runtimes.runtime import Placement, Precision, Runtime
from farrank_runtimes.torch_runtime import TorchRuntime
from farrank_trec import rank
from farrank_trec.measures import evaluate, parse_measures

CANDIDATES = 100
TOP = 10
SEARCH_TIMEOUT_S = 60.0
INDEX = "pydoc"
MEASURE = "nDCG@10"
# The largest change of nDCG@10, up or down.
NDCG_WITHIN: Mapping[Precision, float] = {"bf16": 0.002, "int8": 0.01}

# Query id to document id to score.
RunScores = dict[str, dict[str, float]]


def fidelity_of_exports(
    index: Path | None, folder: Path, threads: int, questions: int | None, max_chunks: int | None
) -> list[Row]:
    """Rank the judged questions' candidates with every runtime of every export.

    `index` is the embedded corpus's, and `folder` takes the exports. `questions` and `max_chunks` limit the
    work.
    """
    if index is None or not index.exists():
        return [
            not_measured("fidelity", f"--index is {index}; build one: farrank index --pydoc --out FOLDER")
        ]
    asked = load_questions()[:questions]
    candidates = asyncio.run(find_candidates(index, asked))
    ranker = open_ranker(EMBEDDED)
    save_ranker(ranker, folder)
    exports, rows = export_fast(ranker, folder)
    torch = TorchRuntime(ranker, "fp32", "cpu", threads)
    expected = rank_offline(torch, ranker.reader, asked, candidates, max_chunks)
    rows.append(Row(f"questions, {MEASURE} with torch fp32", f"{len(asked)}, {ndcg(expected):.4f}"))
    placement = Placement("cpu", threads)
    for each in candidates_for("cpu", exports, "auto", None):
        if each.export is None:
            continue
        print(f"  ranking with {each}", flush=True)
        served = open_ranker_runtime(
            str(folder), Overrides(), runtime=each.runtime, precision=each.precision, placement=placement
        )
        run = rank_offline(served.runtime, ranker.reader, asked, candidates, max_chunks)
        rows += fidelity_rows(f"{each.runtime} {each.precision}", each.precision, expected, run)
    return rows


def fidelity_rows(name: str, precision: Precision, expected: RunScores, scored: RunScores) -> list[Row]:
    """Compare rankings of the same candidates by question, and check the precision's bounds, if any.

    Raises: ValueError if a score is not finite, because comparisons would take it for an equal one.
    """
    taus, overlaps, differences = [], [], []
    for query_id, wanted in expected.items():
        first = np.array(list(wanted.values()))
        second = np.array([scored[query_id][doc_id] for doc_id in wanted])
        if not (np.isfinite(first).all() and np.isfinite(second).all()):
            raise ValueError(f"{query_id}: a score is not finite")
        taus.append(kendall_tau(first, second))
        overlaps.append(top_overlap(first, second, TOP))
        differences.append(np.abs(second - first))
    mean_tau, every = float(np.mean(taus)), np.concatenate(differences)
    moved = ndcg(scored) - ndcg(expected)
    tau_aim: tuple[str, bool | None] = ("", None)
    ndcg_aim = tau_aim
    if precision in NDCG_WITHIN:
        tau, within = MIN_TAU[precision], NDCG_WITHIN[precision]
        tau_aim, ndcg_aim = (
            (f"at least {tau:g}", mean_tau >= tau),
            (f"within {within:g}", abs(moved) <= within),
        )
    overlap = f"{np.mean(overlaps):.3f} ({min(overlaps):.1f})"
    difference = f"{every.mean():.1e}, {every.max():.1e}"
    what = f"{name}: overlap of the first {TOP} (the lowest), mean and largest difference"
    return [
        Row(
            f"{name}: Kendall's tau, mean of questions (the worst)",
            f"{mean_tau:.4f} ({min(taus):.4f})",
            *tau_aim,
        ),
        Row(f"{name}: {MEASURE} less that of torch fp32", f"{moved:+.4f}", *ndcg_aim),
        Row(what, f"{overlap}, {difference}"),
    ]


def ndcg(scored: RunScores) -> float:
    """Average nDCG@10 over the questions of the run."""
    asked = {query_id: grades for query_id, grades in load_qrels().items() if query_id in scored}
    run = {query_id: rank(query_id, scores.items()) for query_id, scores in scored.items()}
    return float(np.mean(list(evaluate(asked, run, parse_measures([MEASURE]))[MEASURE].values())))


async def find_candidates(index: Path, questions: Sequence[Question]) -> dict[str, list[Candidate]]:
    """Search Lucene for each question's candidates, by query id."""
    first_stage = open_first_stages(FirstStageConfig(indexes={INDEX: Bm25Config(index)}))
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
) -> RunScores:
    """Score each question's candidates with a ranker of plan dual: query id to document id to score."""
    texts = {each.doc_id: each.text for found in candidates.values() for each in found}
    chunks: list[EncoderInput] = []
    spans: dict[str, slice] = {}
    for doc_id, text in texts.items():
        split = reader.split(reader.read_document(text, max_chunks), max_chunks)
        spans[doc_id] = slice(len(chunks), len(chunks) + len(split))
        chunks += [reader.chunk_input(None, chunk) for chunk in split]
    queries = [reader.query_input(reader.read_query(question.text)) for question in questions]
    encoded_chunks, encoded_queries = encode_all(runtime, chunks), encode_all(runtime, queries)
    scored: RunScores = {}
    for question, query in zip(questions, encoded_queries, strict=True):
        found = [each.doc_id for each in candidates[question.query_id]]
        documents = [stacked(encoded_chunks[spans[doc_id]]) for doc_id in found]
        scores = runtime.score(documents, [query] * len(found)).scores
        scored[question.query_id] = dict(zip(found, scores, strict=True))
    return scored
