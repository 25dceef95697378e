"""From raw scores, whose range is the ranker's own, to scores between 0 and 1."""

import math
from dataclasses import dataclass

from farrank_rankers.errors import SpecError


@dataclass(frozen=True, slots=True)
class Calibration:
    """A score between 0 and 1 is sigmoid(scale · raw + offset), which never changes an order.

    With the defaults it is the probability that a cross-encoder's logit stands for.
    Raises: SpecError naming field, value and limit.
    Source: Platt, "Probabilistic Outputs for Support Vector Machines", 1999.
    """

    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what would turn an order around or give no number."""
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise SpecError(f"calibration.scale is {self.scale}; it must be above 0")
        if not math.isfinite(self.offset):
            raise SpecError(f"calibration.offset is {self.offset}; it must be a number")

    def apply(self, raw: float) -> float:
        """Turn a raw score into one between 0 and 1."""
        logit = self.scale * raw + self.offset
        # The form without a large exponent on either side of 0.
        return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
