"""What is asked of a contender, and how one fails."""

from dataclasses import dataclass
from typing import Protocol

# Scores of each call's documents, in the calls' order.
Scores = tuple[tuple[float, ...], ...]


class ContenderFailed(RuntimeError):
    """A contender could not be started, or stopped answering; the message says why."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What one pass over the calls took and gave; no scores where speed alone was asked for."""

    seconds: float
    documents: int
    scores: Scores = ()

    @property
    def documents_per_s(self) -> float:
        """Documents per second."""
        return self.documents / self.seconds


class Contender(Protocol):
    """A loaded model that scores the same calls again and again."""

    def score(self) -> Scored:
        """Score all calls once, as fast as the contender can.

        Raises: ContenderFailed.
        """
        ...
