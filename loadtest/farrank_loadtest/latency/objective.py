"""The latency objective: which share of the calls must be answered how fast."""

import re
from dataclasses import dataclass

from farrank_loadtest.errors import LoadtestError

FORM = "pPERCENT=DURATION with ms or s, such as p99=500ms"
_UNITS_S = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Objective:
    """`percent` of all calls are answered within `bound_s`; a failed call is one that was not."""

    percent: float
    bound_s: float

    def __str__(self) -> str:
        return f"p{self.percent:g} within {self.bound_s * 1e3:g} ms"

    def holds(self, good: int, offered: int) -> bool:
        """Say whether so many answers in time out of so many calls are enough."""
        # Without a division, so that 99 of 100 are 99%. Nothing offered proves nothing.
        return offered > 0 and good * 100 >= self.percent * offered


def parse_objective(given: str) -> Objective:
    """Read an objective.

    Raises: LoadtestError saying what is allowed.
    """
    match = re.fullmatch(r"p(\d+(?:\.\d+)?)=(\d+(?:\.\d+)?)(ms|s)", given)
    if match is None:
        raise LoadtestError(f"objective {given!r}: must be {FORM}")
    percent, bound_s = float(match[1]), float(match[2]) * _UNITS_S[match[3]]
    if not 0 < percent <= 100 or not bound_s > 0:
        raise LoadtestError(
            f"objective {given!r}: the percent is above 0 and at most 100, the duration above 0"
        )
    return Objective(percent, bound_s)
