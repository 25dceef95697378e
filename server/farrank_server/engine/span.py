"""A chunk's place in its document."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Characters of a document, in Unicode code points: start inclusive, end exclusive."""

    start: int
    end: int
