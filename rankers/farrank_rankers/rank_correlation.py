"""How alike two rankings of the same documents are."""

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]


def kendall_tau(first: Scores, second: Scores) -> float:
    """Correlate two lists of scores by the order of each pair of documents (tau-b, which handles ties).

    If all scores are equal in both lists, the result is 1; if in one list only, 0.
    Shapes: (D,), (D,).
    Source: Kendall, "The treatment of ties in ranking problems", Biometrika 1945.
    """
    pairs = np.triu_indices(len(first), k=1)
    orders = [np.sign(scores[:, None] - scores[None, :])[pairs] for scores in (first, second)]
    ordered = [float(np.abs(order).sum()) for order in orders]
    if not all(ordered):
        return 1.0 if ordered[0] == ordered[1] else 0.0
    return float((orders[0] * orders[1]).sum() / np.sqrt(ordered[0] * ordered[1]))
