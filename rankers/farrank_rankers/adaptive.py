"""Which rankers can read with adaptive depth."""

from farrank_rankers.spec import RankerSpec


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
