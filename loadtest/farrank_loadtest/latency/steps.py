"""The next load: from a list, or upwards until the objective breaks and then between."""

import math
from collections.abc import Generator, Sequence

# Yields loads (calls a second, or callers), and receives whether the objective held at each; without an
# objective it always holds.
Steps = Generator[float, bool | None, None]


def upwards(amounts: Sequence[float]) -> Steps:
    """Give the loads from the lowest up until one breaks the objective; higher ones would add nothing."""
    for amount in sorted(set(amounts)):
        if not (yield amount):
            return


def climb(start: float, factor: float, refinements: int, ceiling: float) -> Steps:
    """Raise the rate by a factor until the objective breaks, then search between the last two rates.

    The search tries `refinements` more rates, each the geometric middle; if the first rate breaks, they go
    down by the factor instead. No rate exceeds `ceiling`.
    """
    held: float | None = None
    rate = start
    while (yield rate):
        held, rate = rate, min(_rounded(rate * factor), ceiling)
        if rate <= held:
            return
    broke = rate
    for _ in range(refinements):
        rate = _rounded(broke / factor if held is None else math.sqrt(held * broke))
        if held is not None and not held < rate < broke:
            return
        if (yield rate):
            held = rate
        else:
            broke = rate


def _rounded(rate: float) -> float:
    """Round to three digits, so that a person can type the rate again."""
    return float(f"{rate:.3g}")
