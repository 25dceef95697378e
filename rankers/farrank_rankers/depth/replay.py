"""Replay of reading in rounds: the ranking that a plan gives, and the chunks that it reads, without a ranker.

D candidates of a query have places for C chunks; a true value of `mask` (D, C) marks a chunk, and a
document's chunks stand first in its row. *Keys* (D,) order documents, the higher the better; equal keys are a
tie.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from farrank_rankers.depth.plan import Round
from farrank_rankers.depth.rounds import Rounds
from farrank_rankers.depth.selection import Floats, best_first

Mask = NDArray[np.bool_]
# Scores of documents of which the chunks of a mask were read, (D, C) -> (D,); anything for those without one.
Score = Callable[[Mask], Floats]


def reordered(keys: Floats, chosen: Mask, scores: Floats) -> Floats:
    """Order chosen documents by new scores, all of them before the others, which keep their order.

    Scores of different depths do not compare. Shapes: (D,) each -> (D,).
    """
    pairs = np.stack([chosen, np.where(chosen, scores, keys)], axis=1)  # (D, 2)
    places = np.unique(pairs, axis=0, return_inverse=True)[1]
    return places.reshape(-1).astype(np.float64)


def read_in_rounds(
    selector: Floats, mask: Mask, rounds: Sequence[Round], score: Score
) -> tuple[Floats, Mask]:
    """Read the chunks that a selector scores highest, as the server does. Without a round nothing is read.

    Before the first round the selector's best chunk orders the documents. After every round the keys are a
    valid ranking.
    Shapes: (D, C) each -> keys (D,) and the chunks that were read (D, C).
    """
    keys: Floats = np.where(mask, selector, -np.inf).max(axis=1)
    read = np.zeros(mask.shape, dtype=bool)
    orders = [best_first(scores[its]) for scores, its in zip(selector, mask, strict=True)]
    planned = Rounds(orders, [np.ones(len(order), dtype=np.int64) for order in orders], rounds)
    while (step := planned.next(best_first(keys).tolist())) is not None:
        for document, numbers in step.reads.items():
            read[document, numbers] = True
        chosen = np.isin(np.arange(len(keys)), step.documents)
        keys = reordered(keys, chosen, score(read))
    return keys, read
