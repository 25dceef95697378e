"""Rankings of packed batches in bf16, compared with those of padded batches in fp32."""

import numpy as np

from farrank_bench.corpus_calls import QUERIES
from farrank_bench.gpu.bench import DeviceBench
from farrank_bench.gpu.inputs import mixed_texts
from farrank_bench.offline import Request, score
from farrank_bench.report import Row, at_least
from farrank_rankers.errors import SourceError
from farrank_rankers.files.model_files import EMBEDDED
from farrank_rankers.files.open import open_ranker
from farrank_rankers.rank_correlation import kendall_tau

MIN_TAU = 0.98
WHAT = "Kendall's tau with padded fp32: packed bf16"


def agreement(name: str, limit: float | None, bench: DeviceBench) -> list[Row]:
    """Compare the rankings of packed and of padded batches in bf16 with those of fp32, query by query.

    The limit holds for the embedded ranker, whose weights are trained. Scores of random weights differ by
    little more than bf16's rounding, so they have no limit.
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
    # The runtimes share the ranker's weights, so bf16 comes only after all of fp32.
    found = []
    for packing in ("packed", "padded"):
        bench.check_time()
        runtime, _ = bench.open(ranker, packing)
        scores = [np.array(score(runtime, request)) for request in requests]
        found.append([kendall_tau(*pair) for pair in zip(wanted, scores, strict=True)])
    return [at_least(WHAT, found[0], limit, ".4f"), at_least("padded bf16", found[1], None, ".4f")]
