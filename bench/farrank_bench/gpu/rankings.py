"""Whether packed batches in bf16 rank as padded ones in fp32 do."""

import numpy as np

from farrank_bench.corpus_calls import QUERIES
from farrank_bench.gpu.bench import Bench
from farrank_bench.gpu.encoding import Request, score
from farrank_bench.gpu.inputs import varied_texts
from farrank_bench.report import Row, at_least, not_measured, spread
from farrank_exporters.parity import kendall_tau
from farrank_rankers.errors import SourceError
from farrank_rankers.files.location import EMBEDDED
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker

LEAST_TAU = 0.98
WHAT = "Kendall's tau with padded fp32: packed bf16"
RANDOM = "firstp-bert"


def trained(bench: Bench) -> list[Row]:
    """Rank texts with the embedded ranker, whose weights are trained: what counts, where it is installed."""
    try:
        ranker = open_ranker(EMBEDDED)
    except SourceError as error:
        return [not_measured(WHAT, str(error), f"at least {LEAST_TAU:g}")]
    packed, padded = taus_with_fp32(bench, ranker)
    return [
        at_least(WHAT, packed, LEAST_TAU, ".4f"),
        Row("padded bf16", spread(padded, ".4f")),
    ]


def untrained(bench: Bench) -> list[Row]:
    """Rank texts with random weights, whose scores differ by little more than bf16 rounds off: no aim."""
    packed, padded = taus_with_fp32(bench, bench.model(RANDOM))
    return [
        Row(WHAT, spread(packed, ".4f")),
        Row("padded bf16", spread(padded, ".4f")),
    ]


def taus_with_fp32(bench: Bench, ranker: Ranker) -> tuple[list[float], list[float]]:
    """Compare rankings with fp32's, query by query: of packed batches in bf16, and of padded ones."""
    extent = bench.extent
    requests = [
        Request(ranker.reader, query, varied_texts(bench.corpus, extent.documents, seed))
        for seed, query in enumerate(QUERIES[: extent.queries])
    ]
    exact, _ = bench.open(ranker, "padded", precision="fp32")
    wanted = [np.array(score(exact, request)) for request in requests]
    found: list[list[float]] = []
    # Only now in bf16: the runtimes share the ranker's weights.
    for packing in ("packed", "padded"):
        bench.limit.check()
        runtime, _ = bench.open(ranker, packing)
        scores = [np.array(score(runtime, request)) for request in requests]
        found.append([kendall_tau(a, b) for a, b in zip(wanted, scores, strict=True)])
    return found[0], found[1]
