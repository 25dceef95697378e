"""The share of a ranking's quality that cheaper rankings keep, with its uncertainty."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Resamples at a time: their weights are a matrix.
_AT_ONCE = 100


def kept_shares(quality: Floats, *, resamples: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """Divide the mean of each row by that of the first, with 95% intervals; the first mean is not 0.

    A paired bootstrap draws the queries: all values of a query stay together. It also draws one query more,
    of which only the first row has any quality. A bootstrap never draws a loss that it has not seen: a
    ranking that loses nothing on these queries would have an interval without width, however few they are. A
    row keeps a share with 97.5% confidence, non-inferiority, if its interval's lower end is not below it.
    Shapes: quality of N rankings on Q queries (N, Q) -> the shares and their intervals' ends, (N,) each.
    """
    means, full = quality.mean(axis=1), quality[0]
    lost = np.zeros((len(quality), 1))
    lost[0] = full[full > 0].mean()
    quality = np.hstack([quality, lost])
    queries, random = quality.shape[1], np.random.default_rng(seed)
    ratios = []
    for start in range(0, resamples, _AT_ONCE):
        some = min(_AT_ONCE, resamples - start)
        weights = random.multinomial(queries, np.full(queries, 1 / queries), size=some)  # (R, Q)
        sums = weights @ quality.T  # (R, N)
        sums = sums[sums[:, 0] > 0]
        ratios.append(sums / sums[:, :1])
    low, high = np.percentile(np.concatenate(ratios), (2.5, 97.5), axis=0)
    return means / means[0], low, high
