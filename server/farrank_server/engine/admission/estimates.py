"""Measures the real speed of a stage, and estimates the work for a text."""

import math
import threading
import time
from dataclasses import dataclass

# Old observations say little about a machine that others share.
MEMORY_S = 10.0

# One observation may be a stall (a suspended machine, a stopped process). It counts for at most this much
# time, and as at most this much faster or slower than the known speed.
MAX_OBSERVED_S = 1.0
MAX_CHANGE = 4.0

# Scoring is not measured before the first call. For most rankers it costs almost nothing, which is assumed
# until the first documents are scored. The assumption weighs as much as this many seconds of work.
UNMEASURED_CHUNKS_PER_S = 10_000.0
UNMEASURED_WEIGHT_S = 0.1


class Speed:
    """Units per second of busy time, averaged over recent seconds. Thread-safe.

    The initial speed counts as if it had been observed for `weight_s`.
    """

    def __init__(self, initial_per_s: float, *, weight_s: float = MEMORY_S) -> None:
        self._per_s = initial_per_s
        self._weight_s = weight_s
        self._measured_at_s = time.monotonic()
        self._lock = threading.Lock()

    @property
    def per_s(self) -> float:
        """Units per second of busy time."""
        return self._per_s

    @property
    def age_s(self) -> float:
        """The time in seconds since the last measurement."""
        return time.monotonic() - self._measured_at_s

    def observe(self, units: float, busy_s: float) -> None:
        """Add the observation that `units` took `busy_s`. Its weight is its time."""
        if units <= 0 or busy_s <= 0:
            return
        weight_s = min(busy_s, MAX_OBSERVED_S)
        with self._lock:
            known, known_weight_s = self._per_s, self._weight_s * math.exp(-weight_s / MEMORY_S)
            seen = min(max(units / busy_s, known / MAX_CHANGE), known * MAX_CHANGE)
            # Average the seconds per unit: a mean of rates would give small fast batches too much weight.
            share = weight_s / (known_weight_s + weight_s)
            self._per_s = 1 / ((1 - share) / known + share / seen)
            self._weight_s = known_weight_s + weight_s
            self._measured_at_s = time.monotonic()

    def replace(self, per_s: float) -> None:
        """Replace all observations by one deliberate measurement."""
        with self._lock:
            self._per_s, self._weight_s, self._measured_at_s = per_s, MEMORY_S, time.monotonic()


@dataclass(frozen=True, slots=True)
class Speeds:
    """A ranker's speeds: tokens encoded per second, and chunks scored per second."""

    encoding: Speed
    scoring: Speed

    @staticmethod
    def measured(tokens_per_s: float) -> "Speeds":
        """Start with the speed measured by warming up."""
        return Speeds(Speed(tokens_per_s), Speed(UNMEASURED_CHUNKS_PER_S, weight_s=UNMEASURED_WEIGHT_S))


class TokenDensity:
    """Tokens per character of recent texts, for estimates before a text is tokenized."""

    # English prose has about 4.5 characters per WordPiece token, code fewer.
    def __init__(self, initial: float = 0.27) -> None:
        self.per_character = initial

    def observe(self, characters: int, tokens: int) -> None:
        """Add the counts of one text. A race between threads only loses an observation."""
        if characters > 0:
            weight = min(0.05, characters / 200_000)
            self.per_character += weight * (tokens / characters - self.per_character)
