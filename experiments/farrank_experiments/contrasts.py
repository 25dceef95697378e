"""Tests of differences between rankers: a bootstrap over questions and seeds, and Holm's correction.

Source of the correction: Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian
Journal of Statistics 1979.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Key = TypeVar("Key")
Figures = NDArray[np.float64]

ALPHA = 0.01
POWER = 0.8
RESAMPLES = 10_000
# Resamples whose means are computed at once: some 20 MB for 1,000 questions.
_TOGETHER = 1_000


@dataclass(frozen=True, slots=True)
class Contrast:
    """The difference of two means, its standard error, and its two-sided p-value (None: one question)."""

    difference: float
    error: float
    p: float | None

    @property
    def detectable(self) -> float:
        """The difference that a test at ALPHA finds with a probability of POWER."""
        normal = NormalDist()
        return (normal.inv_cdf(1 - ALPHA / 2) + normal.inv_cdf(POWER)) * self.error


def contrast(ours: Figures, theirs: Figures, seed: int = 0) -> Contrast:
    """Compare the values of two rankers, each trained with several seeds, for the same questions.

    Questions are drawn again in pairs, and each ranker's seeds on their own, so that the result holds for
    other questions and for other seeds. Shapes: (S, Q) and (S', Q).
    """
    rng = np.random.default_rng(seed)
    questions = ours.shape[1]
    drawn = []
    for _ in range(0, RESAMPLES, _TOGETHER):
        mine, its = (_drawn(len(each), rng) @ each for each in (ours, theirs))  # (B, Q)
        drawn.append(((mine - its) * _drawn(questions, rng)).sum(axis=1))
    means = np.concatenate(drawn)
    difference = float(ours.mean() - theirs.mean())
    if questions < 2:
        return Contrast(difference, 0.0, None)
    # The observed order counts as one of the resamples, so no p-value is 0.
    beyond = min((means <= 0).sum(), (means >= 0).sum()) + 1
    return Contrast(difference, float(means.std()), min(1.0, 2 * float(beyond) / (len(means) + 1)))


def _drawn(count: int, rng: np.random.Generator) -> Figures:
    """The weights of `count` things drawn with replacement. Shape: (B, count), each row with a sum of 1."""
    weights: Figures = rng.multinomial(count, np.full(count, 1 / count), size=_TOGETHER) / count
    return weights


def adjusted(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Correct the p-values of a family of tests, so that ALPHA bounds the chance of any false one."""
    found: dict[Key, float] = {}
    least = 0.0
    for place, key in enumerate(sorted(p_values, key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[key]))
        found[key] = least
    return found
