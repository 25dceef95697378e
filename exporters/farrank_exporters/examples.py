"""What the ranker is traced with: real inputs of a size that no other dimension has.

A tracer takes two dimensions of the same size for the same dimension, and one of size 1 for a constant.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from farrank_exporters.graphs import ENCODER_INPUTS
from farrank_rankers.collate import collate
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import Chunk, EncoderInput

QUERIES = ("how does a long query find its document", "which document", "what is a passage of evidence")
CHUNKS_OF_DOCUMENTS = (5, 2, 4)
CHUNK_TOKENS = 17
TEXT = (
    "a reranker reads the whole of a long document and says which of its passages decided, where a retriever "
    "saw a few words only"
)


def encoder_example(ranker: Ranker) -> dict[str, Tensor]:
    """Give one batch by input name. Shapes: (2, L) each, int64."""
    inputs = _chunk_inputs(ranker, QUERIES[0], 2)
    return dict(zip(ENCODER_INPUTS, _batch(ranker, inputs), strict=True))


def aggregator_example(ranker: Ranker) -> dict[str, Tensor]:
    """Give the features of three documents by input name, as the ranker's own encoder makes them.

    Shapes: see `AggregatorGraph`; D is 3 and C is 5.
    """
    documents = [
        stacked(_encode(ranker, _chunk_inputs(ranker, query, count)))
        for query, count in zip(QUERIES, CHUNKS_OF_DOCUMENTS, strict=True)
    ]
    features, chunk_mask = batched(documents)
    example = {"vectors": features.vectors, "chunk_mask": chunk_mask}
    if features.roles is not None:
        example["roles"] = features.roles
    if ranker.spec.plan == "dual":
        reader = ranker.reader
        queries = stacked(
            _encode(ranker, [reader.query_input(reader.read_query(query)) for query in QUERIES])
        )
        example["query_vectors"] = queries.vectors
        if queries.roles is not None:
            example["query_roles"] = queries.roles
    return example


def _chunk_inputs(ranker: Ranker, query: str, count: int) -> list[EncoderInput]:
    """Frame chunks of different lengths, however the ranker would split a document."""
    reader = ranker.reader
    ids = np.resize(reader.tokenizer.ids(TEXT), CHUNK_TOKENS)
    asked = reader.read_query(query) if ranker.spec.plan == "pair" else None
    return [
        reader.chunk_input(asked, Chunk(index, ids[: CHUNK_TOKENS - index], 0, 0)) for index in range(count)
    ]


def _encode(ranker: Ranker, inputs: Sequence[EncoderInput]) -> list[Features]:
    with torch.no_grad():
        features: Features = ranker.encoder(*_batch(ranker, inputs))
        return features._replace(vectors=features.vectors.float()).rows()


def _batch(ranker: Ranker, inputs: Sequence[EncoderInput]) -> list[Tensor]:
    return [torch.from_numpy(array) for array in collate(inputs, ranker.reader.pad_id)]
