"""What the service asks of a first stage, whatever finds the candidates; `lucene` is the one there is."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document that the first stage found, with its text; a higher score is a better match."""

    doc_id: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """What an index holds and how it ranks, e.g. `bm25(k1=0.9,b=0.4)` with or without `+rm3(...)`."""

    name: str
    documents: int
    first_stage: str


class FirstStage(Protocol):
    """Finds the candidates of a query in a named index."""

    async def search(self, index: str, query: str, k: int, timeout_s: float) -> list[Candidate]:
        """Return at most `k` candidates, best first; none if no term of the query is in the index.

        Raises: NotFound for an unknown index, DeadlineExceeded after `timeout_s`, Unavailable if the
        first stage is down for the moment.
        """
        ...

    def describe(self) -> tuple[IndexDescription, ...]:
        """Say which indexes can be searched, in the order of the configuration."""
        ...
