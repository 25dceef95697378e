"""Calibration of raw scores, whose range depends on the ranker, to scores between 0 and 1."""

import math
from dataclasses import dataclass

from farrank_rankers.errors import SpecError


@dataclass(frozen=True, slots=True)
class Calibration:
    """A score between 0 and 1 is sigmoid(scale · raw + offset), which never changes an order.

    With the defaults it is the probability of a cross-encoder's logit.
    Raises: SpecError naming field, value and limit.
    Source: Platt, "Probabilistic Outputs for Support Vector Machines", 1999.
    """

    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that would reverse an order or give NaN."""
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise SpecError(f"calibration.scale is {self.scale}; it must be above 0")
        if not math.isfinite(self.offset):
            raise SpecError(f"calibration.offset is {self.offset}; it must be a number")

    def apply(self, raw: float) -> float:
        """Convert a raw score to one between 0 and 1."""
        logit = self.scale * raw + self.offset
        # This form has no large exponent on either side of 0.
        return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
