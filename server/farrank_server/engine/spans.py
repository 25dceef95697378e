"""Which part of a document was read, and which was not."""

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Characters of a document, in Unicode code points: start inclusive, end exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Cut:
    """What of a text was not read. `tokens` is an estimate unless the call asked for the count; 0 if none."""

    characters: int = 0
    tokens: int = 0
