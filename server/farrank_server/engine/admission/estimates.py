"""How fast a stage really is, and how much work a text will be."""

import math
import threading

# What happened half a minute ago says little about a machine that others share.
MEMORY_S = 10.0

# One observation may be a stall (a suspended machine, a stopped process): it counts for no more than this
# much time, and for no more than this much faster or slower than what was known.
MOST_OF_ONE_S = 1.0
MOST_CHANGE = 4.0


class Speed:
    """Units per second of busy time, averaged with a memory of some seconds. Thread-safe."""

    def __init__(self, initial_per_s: float) -> None:
        self._per_s = initial_per_s
        self._lock = threading.Lock()

    @property
    def per_s(self) -> float:
        """Units per second of busy time."""
        return self._per_s

    def observe(self, units: float, busy_s: float) -> None:
        """Take in that `units` took `busy_s`. Each observation weighs by its time, not by its rate."""
        if units <= 0 or busy_s <= 0:
            return
        keep = math.exp(-min(busy_s, MOST_OF_ONE_S) / MEMORY_S)
        with self._lock:
            known = self._per_s
            seen = min(max(units / busy_s, known / MOST_CHANGE), known * MOST_CHANGE)
            # Averaged as seconds a unit: a mean of rates would let quick little batches outweigh slow ones.
            self._per_s = 1 / (keep / known + (1 - keep) / seen)


class TokenDensity:
    """Tokens per character of the texts seen lately: what admission knows before it has tokenized."""

    # English prose has about 4.5 characters a WordPiece token, code fewer.
    def __init__(self, initial: float = 0.27) -> None:
        self._density = initial

    def estimate(self, characters: int) -> float:
        """Tokens that a text of this length is likely to have."""
        return characters * self._density

    def observe(self, characters: int, tokens: int) -> None:
        """Take in what a text turned out to have. Races between threads lose an observation, no more."""
        if characters > 0:
            weight = min(0.05, characters / 200_000)
            self._density += weight * (tokens / characters - self._density)
