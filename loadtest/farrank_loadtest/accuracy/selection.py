"""The ranking of adaptive depth's selector alone: BM25 orders documents by their best chunks.

A ranker that reads the selected chunks must be better than this, or reading them is worth nothing.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.workloads import Call
from farrank_rankers.chunking import WHOLE_DOCUMENT
from farrank_rankers.depth.selection import bm25, count_terms
from farrank_rankers.errors import RankerError
from farrank_rankers.files.open import Overrides, open_reader
from farrank_rankers.tokens import IntArray
from farrank_trec import Run, rank

SELECTOR = "selector"


def selector_run(source: str, calls: Sequence[Call]) -> Run:
    """Order each call's documents by BM25 of their best chunks, over the tokens and chunks of a ranker.

    `source` is the ranker's folder, or `embedded:NAME`; documents are read whole.
    Raises: LoadtestError if there is no such ranker.
    """
    try:
        reader = open_reader(source, **Overrides(max_document_tokens=WHOLE_DOCUMENT))
    except RankerError as error:
        raise LoadtestError(f"selector {source!r}: {error}") from error

    @cache
    def chunks_of(text: str) -> tuple[IntArray, ...]:
        return tuple(chunk.ids for chunk in reader.split(reader.read_document(text)))

    run: Run = {}
    for call in calls:
        query = reader.read_query(call.query).ids
        scores = bm25([count_terms(query, chunks_of(text)) for text in call.texts])
        best = [float(np.max(each, initial=0.0)) for each in scores]
        run[call.query_id] = rank(
            call.query_id, zip((each.doc_id for each in call.documents), best, strict=True)
        )
    return run
