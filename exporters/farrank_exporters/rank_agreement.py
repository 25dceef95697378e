"""How far two rankings of the same documents agree."""

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]


def kendall_tau(first: Scores, second: Scores) -> float:
    """Correlate two lists of scores by the order they give each pair of documents (tau-b, which knows ties).

    Of two lists without any order the correlation is 1, of one such list and another 0.
    Shapes: (D,), (D,).
    Source: Kendall, "The treatment of ties in ranking problems", Biometrika 1945.
    """
    pairs = np.triu_indices(len(first), k=1)
    orders = [np.sign(scores[:, None] - scores[None, :])[pairs] for scores in (first, second)]
    ordered = [float(np.abs(order).sum()) for order in orders]
    if not all(ordered):
        return 1.0 if ordered[0] == ordered[1] else 0.0
    return float((orders[0] * orders[1]).sum() / np.sqrt(ordered[0] * ordered[1]))


def top_overlap(first: Scores, second: Scores, depth: int) -> float:
    """Give the share of the first ranking's top documents that the second has at its top, too.

    Shapes: (D,), (D,).
    """
    tops = [set(np.argsort(-scores, kind="stable")[:depth].tolist()) for scores in (first, second)]
    return len(tops[0] & tops[1]) / len(tops[0])
