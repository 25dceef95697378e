"""How fast a stage really is, and how much work a text will be."""

import math
import threading
import time
from dataclasses import dataclass

# What happened half a minute ago says little about a machine that others share.
MEMORY_S = 10.0

# One observation may be a stall (a suspended machine, a stopped process): it counts for no more than this
# much time, and for no more than this much faster or slower than what was known.
MOST_OF_ONE_S = 1.0
MOST_CHANGE = 4.0

# Scoring is not measured before the first call. For most rankers it costs next to nothing, and that is
# assumed until the first documents are scored; the assumption weighs as much as so many seconds of work.
UNMEASURED_CHUNKS_PER_S = 10_000.0
UNMEASURED_WEIGHT_S = 0.1


class Speed:
    """Units per second of busy time, averaged with a memory of some seconds. Thread-safe.

    `weight_s`: the initial speed counts as if it had been observed for so long.
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
        """How long ago anything was measured."""
        return time.monotonic() - self._measured_at_s

    def observe(self, units: float, busy_s: float) -> None:
        """Take in that `units` took `busy_s`. Each observation weighs by its time, not by its rate."""
        if units <= 0 or busy_s <= 0:
            return
        weight_s = min(busy_s, MOST_OF_ONE_S)
        with self._lock:
            known, known_weight_s = self._per_s, self._weight_s * math.exp(-weight_s / MEMORY_S)
            seen = min(max(units / busy_s, known / MOST_CHANGE), known * MOST_CHANGE)
            # Averaged as seconds a unit: a mean of rates would let quick little batches outweigh slow ones.
            share = weight_s / (known_weight_s + weight_s)
            self._per_s = 1 / ((1 - share) / known + share / seen)
            self._weight_s = known_weight_s + weight_s
            self._measured_at_s = time.monotonic()

    def replace(self, per_s: float) -> None:
        """Forget what was observed: this was measured on purpose."""
        with self._lock:
            self._per_s, self._weight_s, self._measured_at_s = per_s, MEMORY_S, time.monotonic()


@dataclass(frozen=True, slots=True)
class Speeds:
    """A ranker's: tokens that it encodes per second, and chunks that it scores per second."""

    encoding: Speed
    scoring: Speed

    @staticmethod
    def measured(tokens_per_s: float) -> "Speeds":
        """Begin with what warming up measured."""
        return Speeds(Speed(tokens_per_s), Speed(UNMEASURED_CHUNKS_PER_S, weight_s=UNMEASURED_WEIGHT_S))


class TokenDensity:
    """Tokens per character of the texts seen lately: what admission knows before it has tokenized."""

    # English prose has about 4.5 characters a WordPiece token, code fewer.
    def __init__(self, initial: float = 0.27) -> None:
        self.per_character = initial

    def observe(self, characters: int, tokens: int) -> None:
        """Take in what a text turned out to have. Races between threads lose an observation, no more."""
        if characters > 0:
            weight = min(0.05, characters / 200_000)
            self.per_character += weight * (tokens / characters - self.per_character)
