"""Whether packed batches in bf16 rank as padded ones in fp32 do."""

import numpy as np

from farrank_bench.corpus_calls import QUERIES
from farrank_bench.gpu.bench import Bench
from farrank_bench.gpu.inputs import mixed_texts
from farrank_bench.offline import Request, score
from farrank_bench.report import Row, at_least
from farrank_exporters.parity import kendall_tau
from farrank_rankers.errors import SourceError
from farrank_rankers.files.model_files import EMBEDDED
from farrank_rankers.files.open import open_ranker

LEAST_TAU = 0.98
WHAT = "Kendall's tau with padded fp32: packed bf16"


def agreement(name: str, limit: float | None, bench: Bench) -> list[Row]:
    """Compare rankings with fp32's, query by query: of packed batches in bf16, and of padded ones.

    The embedded ranker, whose weights are trained, is what counts, where it is installed. Random weights give
    scores that differ by little more than bf16 rounds off: they have no limit.
    """
    try:
        ranker = open_ranker(EMBEDDED) if name == EMBEDDED else bench.model(name)
    except SourceError as error:
        return [at_least(WHAT, [], limit, missing=str(error))]
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
