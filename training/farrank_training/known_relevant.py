"""The texts that a file's lines call relevant to each query, as hashes.

A query may have several lines, which are read apart. A pair takes 16 bytes however often it occurs.
"""

import hashlib
from array import array

import numpy as np
from numpy.typing import NDArray

# Pairs that are kept unsorted at least, before they are joined to the others.
_UNSORTED = 2**20


def text_key(text: str) -> int:
    """Hash a text to 64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class KnownRelevant:
    """Pairs of a query and a text that is relevant to it."""

    def __init__(self) -> None:
        self._pairs: NDArray[np.uint64] = np.empty((0, 2), dtype=np.uint64)  # distinct, sorted by query
        self._new = array("Q")

    def add(self, query: str, text: str) -> None:
        """Keep a pair."""
        self._new.append(text_key(query))
        self._new.append(text_key(text))
        if len(self._new) >= 2 * max(_UNSORTED, len(self._pairs)):
            self.sort()

    def of(self, query: str) -> frozenset[int]:
        """Give the keys of the texts that are relevant to a query."""
        self.sort()
        queries = self._pairs[:, 0]
        key = np.uint64(text_key(query))
        first, last = (int(np.searchsorted(queries, key, side)) for side in ("left", "right"))
        return frozenset(self._pairs[first:last, 1].tolist())

    def sort(self) -> None:
        """Join new pairs to the others; `of` does so, too, but in each process that reads."""
        if not self._new:
            return
        new = np.array(self._new, dtype=np.uint64).reshape(-1, 2)
        self._pairs, self._new = np.unique(np.concatenate([self._pairs, new]), axis=0), array("Q")
