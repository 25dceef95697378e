"""Score documents with a runtime as a server does: inputs batched by length, documents together."""

from collections.abc import Iterator, Sequence

import numpy as np

from farrank_exporters.rank_agreement import Scores
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.interface import Runtime

# Features of tokens are large: 40 MB a chunk for all layers of a base-sized backbone.
DOCUMENTS_TOGETHER = 4


def score_documents(runtime: Runtime, reader: Reader, query: str, documents: Sequence[str]) -> Scores:
    """Give documents their scores, NaN to one whose evidence is NaN.

    Shapes: -> (D,).
    """
    read_query = reader.read_query(query)
    asked = None if reader.spec.plan == "dual" else read_query
    query_features = None if asked else _encode(runtime, [reader.query_input(read_query)])[0]
    scores: list[float] = []
    for start in range(0, len(documents), DOCUMENTS_TOGETHER):
        split = [
            reader.split(reader.read_document(text)) for text in documents[start : start + DOCUMENTS_TOGETHER]
        ]
        inputs = [reader.chunk_input(asked, chunk) for chunks in split for chunk in chunks]
        features = iter(_encode(runtime, inputs))
        parts, chunk_mask = batched([stacked([next(features) for _ in chunks]) for chunks in split])
        queries = stacked([query_features] * len(split)) if query_features else None
        found, evidence = runtime.aggregate(parts, chunk_mask, queries)
        scores += [
            float("nan") if np.isnan(of_chunks).any() else score
            for score, of_chunks in zip(found, evidence, strict=True)
        ]
    return np.array(scores, dtype=np.float64)


def _encode(runtime: Runtime, inputs: Sequence[EncoderInput]) -> list[Features]:
    """Encode inputs in batches of similar length; give their features in the inputs' order."""
    features: dict[int, Features] = {}
    for batch in _batches(inputs, runtime.capabilities().max_batch_tokens):
        rows = runtime.encode([inputs[index] for index in batch]).rows()
        features |= {index: row.to("cpu") for index, row in zip(batch, rows, strict=True)}
    return [features[index] for index in range(len(inputs))]


def _batches(inputs: Sequence[EncoderInput], max_batch_tokens: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for index in sorted(range(len(inputs)), key=lambda index: inputs[index].tokens):
        if batch and inputs[index].tokens * (len(batch) + 1) > max_batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    yield batch
