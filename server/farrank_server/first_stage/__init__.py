"""What a first stage finds, and in what; `lucene` is the one there is."""

from collections.abc import Sequence
from dataclasses import dataclass

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
