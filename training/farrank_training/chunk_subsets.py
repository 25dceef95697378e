"""The chunks that training reads of documents for adaptive depth: those that the server would choose."""

from collections.abc import Sequence
from random import Random

import numpy as np

from farrank_rankers.adaptive import why_not_adaptive
from farrank_rankers.depth.selection import TermCounts, best_first, bm25, count_terms, with_prior
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokenizer import finished
from farrank_rankers.tokens import Chunk, TokenizedText
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError


def check_depth(ranker: Ranker, config: TrainingConfig) -> None:
    """Check that a ranker can be trained with the depth of the settings.

    Raises: TrainingError saying why it cannot.
    """
    why = why_not_adaptive(ranker.spec)
    if config.depth == "adaptive" and why is not None:
        raise TrainingError(f"depth is adaptive; it must be all: {why}")


def chunks_to_validate(spec: RankerSpec) -> int:
    """Give the number of chunks that a ranker's plan reads of a document in the mean of many, rounded."""
    return round(sum(each.share * each.chunks for each in spec.depth_plan.rounds))


def most_to_learn(spec: RankerSpec, max_chunks: int | None) -> int:
    """Give the most chunks of a document that training reads: those of all rounds of the plan."""
    most = sum(each.chunks for each in spec.depth_plan.rounds)
    return most if max_chunks is None else min(most, max_chunks)


def chunks_to_learn(spec: RankerSpec, max_chunks: int | None, draw: str) -> int:
    """Draw the number of chunks to read of each document of a group, from 1 to the most of the plan.

    An aggregator so learns sets of every size; the documents of a group have one size, as in a round.
    """
    return Random(draw).randint(1, most_to_learn(spec, max_chunks))


def competing_chunks(
    reader: Reader, query: TokenizedText, texts: Sequence[str]
) -> tuple[list[tuple[Chunk, ...]], list[TermCounts]]:
    """Split documents up to the ranker's own limit, and count the query's tokens in their chunks."""
    limit = reader.spec.chunking.max_document_tokens
    documents = [reader.split(finished(reader.document_steps(text, limit))) for text in texts]
    return documents, [count_terms(query.ids, [chunk.ids for chunk in chunks]) for chunks in documents]


def promising_chunks(
    reader: Reader, query: TokenizedText, texts: Sequence[str], count: int
) -> list[list[Chunk]]:
    """Choose the best chunks of each document, in their order.

    The chunks of all documents compete, as those of a call do.
    """
    documents, terms = competing_chunks(reader, query, texts)
    scores = with_prior(list(bm25(terms)), reader.spec.depth_plan.prior)
    most = reader.spec.most_chunks(count)
    return [
        [chunks[number] for number in np.sort(best_first(each)[:most])]
        for chunks, each in zip(documents, scores, strict=True)
    ]
