"""Whether packed batches in bf16 rank as padded ones in fp32 do."""

import numpy as np

from farrank_bench.corpus_calls import QUERIES
from farrank_bench.gpu.bench import Bench
from farrank_bench.gpu.inputs import mixed_texts
from farrank_bench.offline import Request, score
from farrank_bench.report import Row, at_least
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
        return [at_least(WHAT, [], LEAST_TAU, missing=str(error))]
    return compared_with_fp32(bench, ranker, LEAST_TAU)


def untrained(bench: Bench) -> list[Row]:
    """Rank texts with random weights, whose scores differ by little more than bf16 rounds off: no aim."""
    return compared_with_fp32(bench, bench.model(RANDOM), None)


def compared_with_fp32(bench: Bench, ranker: Ranker, limit: float | None) -> list[Row]:
    """Compare rankings with fp32's, query by query: of packed batches in bf16, and of padded ones."""
    extent = bench.extent
    requests = [
        Request(ranker.reader, query, mixed_texts(bench.corpus, ranker.reader, extent.documents, seed))
        for seed, query in enumerate(QUERIES[: extent.queries])
    ]
    exact, _ = bench.open(ranker, "padded", precision="fp32")
    wanted = [np.array(score(exact, request)) for request in requests]
    # Only now in bf16: the runtimes share the ranker's weights.
    found = []
    for packing in ("packed", "padded"):
        bench.check_time()
        runtime, _ = bench.open(ranker, packing)
        scores = [np.array(score(runtime, request)) for request in requests]
        found.append([kendall_tau(*pair) for pair in zip(wanted, scores, strict=True)])
    return [at_least(WHAT, found[0], limit, ".4f"), at_least("padded bf16", found[1], None, ".4f")]
