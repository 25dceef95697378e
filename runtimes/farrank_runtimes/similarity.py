"""Bi-encoders' scores from chunk vectors, without padding documents to the longest.

An index's stores give a call the vectors of thousands of chunks. A padded batch of documents would make all
documents as long as the longest, and copies would take most of the time.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from farrank_rankers.family import Aggregation
from farrank_rankers.features import Features
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.runtime import DocumentScores


def score_similarities(
    documents: Sequence[Features], queries: Sequence[Features], aggregation: Aggregation
) -> DocumentScores:
    """Score documents by their chunks' inner products with the document's query: first, mean, maximum or sum.

    Scores and evidence are those of `SimilarityAggregator`, to rounding. Products are computed in fp32.
    Shapes: documents (C, H) each, queries (H,) each.
    Raises: OutOfMemory, DeviceLost.
    """
    if not documents:
        return DocumentScores([], [])
    with torch.inference_mode(), device_failures():
        # Caches and stores have vectors in host memory, but a query is encoded on the device.
        where = {document.vectors.device for document in documents}
        on = where.pop() if len(where) == 1 else torch.device("cpu")
        moved = {id(query): query.vectors.to(on) for query in queries}
        pairs = zip(documents, queries, strict=True)
        products = torch.cat([each.vectors.to(on).float() @ moved[id(query)] for each, query in pairs])
        of_chunks: NDArray[np.float32] = products.cpu().numpy()  # (all chunks,)
    counts = np.array([len(document.vectors) for document in documents])
    starts = np.cumsum(counts) - counts
    if aggregation == "first":
        scores = of_chunks[starts]
        of_chunks = np.full_like(of_chunks, -np.inf)
        of_chunks[starts] = scores
    elif aggregation == "max":
        scores = np.maximum.reduceat(of_chunks, starts)
    else:
        scores = np.add.reduceat(of_chunks, starts)
        if aggregation == "mean":
            scores = scores / counts
    listed = of_chunks.tolist()
    return DocumentScores(
        scores.tolist(),
        [listed[start : start + count] for start, count in zip(starts, counts, strict=True)],
    )
