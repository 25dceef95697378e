"""The part of a document that was read, and the part that was not."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# The characters of each chunk, in Unicode code points: start inclusive, end exclusive. Shape: (C, 2).
Spans = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a text that was not read.

    `tokens` is 0 if nothing was cut. It is an estimate unless the call asked for the exact count.
    """

    characters: int = 0
    tokens: int = 0
