"""Which load comes next: down a list, or up until the objective breaks and then between."""

import math
from collections.abc import Sequence
from typing import Protocol


class Steps(Protocol):
    """Gives loads (calls a second, or callers) and is told how each went."""

    def next(self) -> float | None:
        """Give the next load; None: there is nothing left to learn."""

    def tell(self, amount: float, *, held: bool) -> None:
        """Hear whether the objective held at this load (it does where there is none)."""


class Listed:
    """The given loads from the lowest up, until one breaks the objective."""

    def __init__(self, amounts: Sequence[float]) -> None:
        self._left = sorted(set(amounts), reverse=True)

    def next(self) -> float | None:
        """Give the next load."""
        return self._left.pop() if self._left else None

    def tell(self, amount: float, *, held: bool) -> None:
        """A higher load than one that broke the objective tells nothing more."""
        if not held:
            self._left.clear()


class Climb:
    """Rates up by a factor until one breaks the objective, then between that and the last that held.

    `refinements` more rates are tried there, each the geometric middle; where the very first rate breaks,
    they go down by the factor instead. No rate goes beyond `ceiling`.
    """

    def __init__(self, start: float, factor: float, refinements: int, ceiling: float) -> None:
        if not (start > 0 and factor > 1 and refinements >= 0 and ceiling >= start):
            raise ValueError("start must be above 0 and within the ceiling, factor above 1, refinements >= 0")
        self._next: float | None = start
        self._factor = factor
        self._refinements = refinements
        self._ceiling = ceiling
        self._held: float | None = None
        self._broke: float | None = None

    def next(self) -> float | None:
        """Give the next rate, to three digits: a rate that a person can type again."""
        return self._next

    def tell(self, amount: float, *, held: bool) -> None:
        """Narrow down where the objective breaks."""
        if held:
            self._held = amount
        else:
            self._broke = amount
        self._next = self._choose()

    def _choose(self) -> float | None:
        if self._broke is None:
            assert self._held is not None
            following = min(_rounded(self._held * self._factor), self._ceiling)
            return following if following > self._held else None
        if self._refinements == 0:
            return None
        self._refinements -= 1
        if self._held is None:
            return _rounded(self._broke / self._factor)
        middle = _rounded(math.sqrt(self._held * self._broke))
        return middle if self._held < middle < self._broke else None


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")
