"""How far an export may be from its ranker, by precision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from farrank_exporters.rank_agreement import Scores
from farrank_rankers.exports.manifest import ExportPrecision, Parity

# fp32: another order of additions moves a score by some 1e-5 of the spread in twelve layers. Ten times that
# is still far below any difference between documents that a judge could see.
SHARE_OF_SPREAD = 1e-4

# What batching alone may do to a score in fp32, in torch, too: no export can be held to less.
BATCHING = 1e-5

# A kernel 0.001 wide turns the last digit of a cosine into 6e-5 of the score, for each query token.
BATCHING_BY_FAMILY: Mapping[str, float] = {"cedr-knrm": 3e-4}

# fp16 keeps 11 bits of a number, bf16 keeps 8, int8 as many of a range that calibration found. How far that
# moves a score says little by itself; whether documents change places does.
LEAST_TAU: Mapping[ExportPrecision, float] = {"fp16": 0.99, "bf16": 0.98, "int8": 0.95}


@dataclass(frozen=True, slots=True)
class Bound:
    """What one measure of a parity report must reach, or may not pass."""

    measure: Literal["max_difference", "kendall_tau"]
    limit: float

    def holds(self, parity: Parity) -> bool:
        """Tell whether a report is within the bound; one that is not a number never is."""
        if self.measure == "max_difference":
            return parity.max_difference <= self.limit
        return parity.kendall_tau >= self.limit

    def __str__(self) -> str:
        return f"{self.measure} {'<=' if self.measure == 'max_difference' else '>='} {self.limit:.3g}"


def bound_for(precision: ExportPrecision, family: str, expected: Sequence[Scores]) -> Bound:
    """Give the bound of a precision, for what the ranker itself says. Shapes: (D,) for each query."""
    if precision != "fp32":
        return Bound("kendall_tau", LEAST_TAU[precision])
    least = BATCHING_BY_FAMILY.get(family, BATCHING)
    return Bound("max_difference", max(SHARE_OF_SPREAD * spread(expected), least))


def spread(scores: Sequence[Scores]) -> float:
    """Give the mean standard deviation within a query. Shapes: (D,) for each query."""
    return float(np.mean([each.std() for each in scores]))
