"""Which rankers can read with adaptive depth, and how many chunks of a document at most."""

from farrank_rankers.chunking import chunk_count
from farrank_rankers.family import family_named
from farrank_rankers.spec import RankerSpec


def most_chunks(spec: RankerSpec, max_chunks: int | None) -> int | None:
    """Bound the chunks of one document that a ranker scores together; None if nothing does.

    A transformer over chunks has positions only for as many as the ranker reads without adaptive depth.
    """
    if not family_named(spec.family).places_chunks:
        return max_chunks
    placed = chunk_count(spec.chunking, spec.chunking.max_document_tokens)
    return placed if max_chunks is None else min(placed, max_chunks)


def why_not_adaptive(spec: RankerSpec, *others: RankerSpec) -> str | None:
    """Explain why a ranker cannot read in rounds; None if it can: it scores any set of a document's chunks.

    Several specs are those of an ensemble's members.
    """
    if others:
        return "an ensemble has the mean of its members' scores, and those of different rounds do not compare"
    if spec.chunking.kind == "first" or getattr(spec.options, "aggregation", None) == "first":
        return f"family {spec.family} scores a document by its first chunk"
    if spec.chunking.max_document_tokens < spec.chunking.window:
        return "its max_document_tokens is less than its window"
    if spec.plan == "dual":
        return f"family {spec.family} encodes chunks without the query, and reads all of them"
    return None
