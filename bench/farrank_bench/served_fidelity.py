"""What the runtimes of the embedded ranker's exports do to its rankings, as `farrank serve` opens them."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from farrank_bench.exporting import export_fast
from farrank_bench.fidelity import Run, compare, find_candidates, ndcg
from farrank_bench.rank_offline import rank_offline
from farrank_bench.report import Row, not_measured
from farrank_demo.questions import load_questions
from farrank_exporters.parity import LEAST_TAU
from farrank_rankers.files.location import EMBEDDED
from farrank_rankers.files.open import Overrides, open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_runtimes.choose import candidates as candidates_for
from farrank_runtimes.choose import open_ranker_runtime
from farrank_runtimes.runtime import Placement, Precision
from farrank_runtimes.torch_runtime import TorchRuntime

# How far nDCG@10 may move, up or down.
NDCG_WITHIN: Mapping[Precision, float] = {"bf16": 0.005, "int8": 0.01}


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


def fidelity_rows(name: str, precision: Precision, expected: Run, run: Run) -> Sequence[Row]:
    """Hold a run to the bounds of its precision; fp32 has none here."""
    found = compare(expected, run)
    moved = ndcg(run) - ndcg(expected)
    tau = LEAST_TAU.get(precision)
    within = NDCG_WITHIN.get(precision)
    return [
        Row(
            f"{name}: Kendall's tau, mean of questions (the worst)",
            f"{found.mean_tau:.4f} ({found.least_tau:.4f})",
            "" if tau is None else f"at least {tau:g}",
            None if tau is None else found.mean_tau >= tau,
        ),
        Row(
            f"{name}: nDCG@10 beside torch fp32",
            f"{moved:+.4f}",
            "" if within is None else f"within {within:g}",
            None if within is None else abs(moved) <= within,
        ),
    ]
