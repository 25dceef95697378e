"""Bring an answer's scores into the documents' order."""

import math
from collections.abc import Iterable

from farrank_loadtest.targets.interface import TargetError

MALFORMED = "malformed answer"


def scores_by_index(scored: Iterable[tuple[int, float]], documents: int) -> tuple[float, ...]:
    """Place each score at its document's index.

    Raises: TargetError if a document has no score, or several, or one that is no finite number, or an index
        names none.
    """
    scores: list[float | None] = [None] * documents
    for index, score in scored:
        if not 0 <= index < documents:
            raise TargetError(MALFORMED, f"index {index} of {documents} documents")
        if scores[index] is not None:
            raise TargetError(MALFORMED, f"two scores for index {index}")
        if not math.isfinite(score):
            raise TargetError(MALFORMED, f"score {score} for index {index}")
        scores[index] = score
    whole = tuple(score for score in scores if score is not None)
    if len(whole) != documents:
        raise TargetError(MALFORMED, f"{len(whole)} scores for {documents} documents")
    return whole
