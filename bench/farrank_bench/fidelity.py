"""What precision costs in ranking: `python -m farrank_bench.fidelity --index .cache/pydoc-index`.

The embedded bi-encoder ranks the candidates of the demo's judged questions through each runtime, offline;
its rankings in torch, fp32, are what the others are compared with.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ir_measures
import numpy as np
from scipy.stats import kendalltau

from farrank_bench.rank_offline import rank_offline
from farrank_bench.report import heading
from farrank_demo.questions import Question, load_qrels, load_questions
from farrank_exporters.int8 import quantize_onnx, quantize_openvino
from farrank_exporters.texts import CALIBRATION_INPUTS, calibration_batches, divide, python_documentation
from farrank_exporters.trace import trace_ranker
from farrank_rankers.files.location import EMBEDDED
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from farrank_runtimes import onnx_runtime, openvino_runtime
from farrank_runtimes.runtime import Placement, Precision, Runtime
from farrank_runtimes.runtime_table import GraphFiles
from farrank_runtimes.torch_runtime import TorchRuntime
from farrank_server.config.schema import FirstStageConfig, IndexConfig
from farrank_server.first_stage import Candidate
from farrank_server.first_stage.lucene import LuceneFirstStage

CANDIDATES = 100
TOP = 10
SEARCH_TIMEOUT_S = 60.0
INDEX = "pydoc"
MEASURE = ir_measures.nDCG @ 10
NOTES = (
    "the embedded bi-encoder (all-MiniLM-L6-v2) over {questions} judged questions, at most {candidates} "
    "candidates each; Kendall's tau-b and the overlap of the first 10 are means over questions, their least "
    "in brackets; differences are of cosines; int8 is calibrated on {inputs} stretches of Python's help()"
)

# Query id to document id to score.
Run = dict[str, dict[str, float]]


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
    """Rank through each runtime and print the table."""
    parser = argparse.ArgumentParser(prog="farrank_bench.fidelity", description=__doc__)
    parser.add_argument("--index", type=Path, required=True, help="the index of the embedded corpus")
    parser.add_argument("--questions", type=int, help="only the first so many")
    parser.add_argument("--max-chunks", type=int, help="read only so many chunks of a document")
    parser.add_argument("--threads", type=int, help="threads to compute with, default all")
    parser.add_argument("--out", type=Path, help="write the report here, too")
    arguments = parser.parse_args()
    questions = load_questions()[: arguments.questions]
    candidates = asyncio.run(find_candidates(arguments.index, questions))
    reader = open_ranker(EMBEDDED).reader
    reference: Run | None = None
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, open_runtime in runtimes(Path(folder), arguments.threads).items():
            started_s = time.monotonic()
            run = rank_offline(open_runtime(), reader, questions, candidates, arguments.max_chunks)
            reference = reference or run
            rows.append(_row(name, compare(reference, run), ndcg(run), ndcg(reference)))
            print(f"{rows[-1]}   {time.monotonic() - started_s:.0f} s", flush=True)
    command = f"python -m farrank_bench.fidelity --index {arguments.index}"
    for flag, value in (("questions", arguments.questions), ("max-chunks", arguments.max_chunks)):
        command += f" --{flag} {value}" if value else ""
    notes = NOTES.format(questions=len(questions), candidates=CANDIDATES, inputs=CALIBRATION_INPUTS)
    report = "\n".join([*heading("What precision costs in ranking", command, notes), "", *_head(), *rows, ""])
    print(report)
    if arguments.out:
        arguments.out.write_text(report)


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


def runtimes(folder: Path, threads: int | None) -> dict[str, Callable[[], Runtime]]:
    """Export the embedded ranker; give its runtimes by name, the reference first, none of them open yet."""
    ranker: Ranker = open_ranker(EMBEDDED)
    longest = ranker.reader.max_input_tokens
    trace_ranker(ranker, folder)
    encoder, aggregator = folder / "encoder.onnx", folder / "aggregator.onnx"
    _, texts = divide(python_documentation(), "the topics of help()")
    int8 = folder / "int8"
    int8.mkdir()
    quantize_openvino(encoder, int8, calibration_batches(ranker.reader, texts.queries, texts.documents))
    quantize_onnx(encoder, int8)
    xml, dynamic = int8 / "encoder.xml", int8 / "encoder.onnx"

    def torch(precision: Precision) -> Runtime:
        return TorchRuntime(open_ranker(EMBEDDED), precision, "cpu", threads)

    def onnx(graph: Path, precision: Precision) -> Runtime:
        return onnx_runtime.open_graphs(
            GraphFiles(graph, aggregator, precision, longest), Placement("cpu", threads)
        )

    def openvino(graph: Path, precision: Precision) -> Runtime:
        return openvino_runtime.open_graphs(
            GraphFiles(graph, aggregator, precision, longest), Placement("cpu", threads)
        )

    return {
        "torch fp32": partial(torch, "fp32"),
        "torch bf16": partial(torch, "bf16"),
        "onnx fp32": partial(onnx, encoder, "fp32"),
        "onnx int8": partial(onnx, dynamic, "int8"),
        "openvino fp32": partial(openvino, encoder, "fp32"),
        "openvino bf16": partial(openvino, encoder, "bf16"),
        "openvino int8": partial(openvino, xml, "int8"),
    }


def compare(reference: Run, run: Run) -> Fidelity:
    """Compare rankings of the same candidates, question by question.

    Raises: ValueError if a score is not a number: no comparison could tell it from an equal one.
    """
    taus, overlaps, differences = [], [], []
    for query_id, wanted in reference.items():
        scores = np.array([list(wanted.values()), [run[query_id][doc_id] for doc_id in wanted]])
        if not np.isfinite(scores).all():
            raise ValueError(f"{query_id}: a score is not finite")
        taus.append(float(kendalltau(*scores).statistic))
        first, second = (set(np.argsort(-row, kind="stable")[:TOP].tolist()) for row in scores)
        overlaps.append(len(first & second) / len(first))
        differences.append(np.abs(scores[1] - scores[0]))
    every = np.concatenate(differences)
    return Fidelity(
        float(np.mean(taus)),
        min(taus),
        float(np.mean(overlaps)),
        min(overlaps),
        float(every.mean()),
        float(every.max()),
    )


def ndcg(run: Mapping[str, Mapping[str, float]]) -> float:
    """Average nDCG@10 over the questions that were asked."""
    asked = {query_id: grades for query_id, grades in load_qrels().items() if query_id in run}
    return float(ir_measures.calc_aggregate([MEASURE], asked, run)[MEASURE])


def _head() -> list[str]:
    return [
        "| runtime | Kendall's tau | top 10 | mean difference | largest | nDCG@10 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]


def _row(name: str, found: Fidelity, value: float, wanted: float) -> str:
    return (
        f"| {name} | {found.mean_tau:.4f} ({found.least_tau:.4f}) "
        f"| {found.overlap:.3f} ({found.least_overlap:.1f}) "
        f"| {found.mean_difference:.1e} | {found.max_difference:.1e} | {value:.4f} ({value - wanted:+.4f}) |"
    )


if __name__ == "__main__":
    main()
