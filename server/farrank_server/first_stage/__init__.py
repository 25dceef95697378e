"""What the service asks of a first stage, whatever finds the candidates; `lucene` is the one there is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from farrank_server.errors import NotFound


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document that the first stage found, with its text; a higher score is a better match."""

    doc_id: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """What an index holds and how it ranks, e.g. `bm25(k1=0.9,b=0.4)` with or without `+rm3(...)`.

    `mean_characters` is about how long its documents are: what admission knows before the search.
    """

    name: str
    documents: int
    ranking: str
    mean_characters: int


class FirstStage(Protocol):
    """Finds the candidates of a query in a named index."""

    async def search(self, index: str, query: str, k: int, timeout_s: float) -> list[Candidate]:
        """Return at most `k` candidates, best first; none if no term of the query is in the index.

        `k` is at least 1.

        Raises: NotFound for an unknown index, DeadlineExceeded after `timeout_s`, InvalidArgument for a query
        with too many terms, ResourceExhausted if too many searches wait or texts are too large, Unavailable
        if the first stage is down for the moment.
        """
        ...

    def describe(self) -> tuple[IndexDescription, ...]:
        """Say which indexes can be searched, in the order of the configuration."""
        ...


def find_index(indexes: Sequence[IndexDescription], name: str) -> IndexDescription:
    """Find an index by its name; the empty name means the only one.

    Raises: NotFound that lists the known ones.
    """
    for index in indexes:
        if index.name == name or (not name and len(indexes) == 1):
            return index
    if not indexes:
        raise NotFound("index: this server holds no index; start it with one, or send documents to Rerank")
    known = ", ".join(index.name for index in indexes)
    if not name:
        raise NotFound(f"index: is empty, and this server holds several: {known}")
    raise NotFound(f"index: no index {name[:100]!r} here; known are: {known}")
