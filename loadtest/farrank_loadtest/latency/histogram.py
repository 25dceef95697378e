"""Seconds counted in an HdrHistogram: every percentile to three digits, whatever the range."""

import math
from collections.abc import Sequence

from hdrh.histogram import HdrHistogram

_SECOND_US = 1e6
_HIGHEST_US = 3_600_000_000
_DIGITS = 3


class Histogram:
    """Durations from 1 µs to an hour; shorter ones count as 1 µs, longer ones as an hour."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, _HIGHEST_US, _DIGITS)

    def record(self, seconds: float) -> None:
        """Count one duration."""
        self._counts.record_value(min(max(1, round(seconds * _SECOND_US)), _HIGHEST_US))

    def add(self, other: "Histogram") -> None:
        """Count all that another one counted."""
        self._counts.add(other._counts)

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._counts.get_total_count())

    @property
    def mean_s(self) -> float:
        """Their mean; 0 without any."""
        return float(self._counts.get_mean_value()) / _SECOND_US if self.count else 0.0

    @property
    def max_s(self) -> float:
        """The longest; 0 without any."""
        return float(self._counts.get_max_value()) / _SECOND_US if self.count else 0.0

    def percentile_s(self, percent: float) -> float:
        """Give the least duration that so many percent of them do not exceed; 0 without any."""
        if not self.count:
            return 0.0
        # The library rounds to the nearest rank, which leaves too few below it every other time. What a
        # float has too much must not make it one rank more.
        rank = math.ceil(percent / 100 * self.count - 1e-9)
        return float(self._counts.get_value_at_percentile(100 * rank / self.count)) / _SECOND_US

    def percentiles_s(self, percents: Sequence[float]) -> list[float]:
        """Give several."""
        return [self.percentile_s(percent) for percent in percents]
