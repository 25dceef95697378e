"""Which load comes next: down a list, or up until the objective breaks and then between."""

import math
from collections.abc import Generator, Sequence

# Yields loads (calls a second, or callers), and is sent whether the objective held at each: it does where
# there is none.
Steps = Generator[float, bool | None, None]


def upwards(amounts: Sequence[float]) -> Steps:
    """Give the loads from the lowest up, until one breaks the objective: a higher one tells nothing more."""
    for amount in sorted(set(amounts)):
        if not (yield amount):
            return


def climb(start: float, factor: float, refinements: int, ceiling: float) -> Steps:
    """Give rates up by a factor until one breaks the objective, then between that and the last that held.

    `refinements` more rates are tried there, each the geometric middle; where the very first rate breaks,
    they go down by the factor instead. No rate goes beyond `ceiling`.
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
    """Round to three digits: a rate that a person can type again."""
    return float(f"{rate:.3g}")
