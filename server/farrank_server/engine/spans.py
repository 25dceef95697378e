"""Which part of a document was read, and which was not."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# The characters of each chunk, in Unicode code points: start inclusive, end exclusive. Shape: (C, 2).
Spans = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Cut:
    """What of a text was not read. `tokens` is an estimate unless the call asked for the count; 0 if none."""

    characters: int = 0
    tokens: int = 0
