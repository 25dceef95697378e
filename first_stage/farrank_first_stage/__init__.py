"""The interface of a first stage, which finds a query's candidates; `kinds` lists the existing ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from farrank_calls.telemetry.call_record import NO_CALL, CallRecord

if TYPE_CHECKING:
    from farrank_indexes.stored_documents import DocumentStores


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document that the first stage found; a higher score is a better match.

    `text` is empty if texts were not requested. For a score that was made from those of other first stages,
    `parts` has these by name. `place` is the document's number in the index, in the order of indexing, or
    None if the index has no such numbers.
    """

    doc_id: str
    text: str
    score: float
    parts: Mapping[str, float] = field(default_factory=dict)
    place: int | None = None


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """The content of an index and how it ranks, e.g. `bm25(k1=0.9,b=0.4)` with or without `+rm3(...)`.

    `mean_characters` is the approximate mean length of its documents, which admission uses before the search.
    `members` are the indexes whose rankings this index fuses; `generation` counts the changes since it was
    built.
    """

    name: str
    documents: int
    ranking: str
    mean_characters: int
    kind: str = "bm25"
    members: tuple[str, ...] = ()
    generation: int = 0


class FirstStage(Protocol):
    """Finds the candidates of a query in one index.

    `FirstStages` limits how many searches run at once and how long each may take: a search longer than
    `timeout_s` is cancelled and answered with DeadlineExceeded. A first stage gets the timeout so that it can
    pass it on. `call` is the call that asks: searches that wait for each other go in the fair order of their
    calls' accounts. Every method may raise Unavailable (temporarily down, with a hint when to retry),
    ResourceExhausted (too busy, or the texts are too large), InvalidArgument (a query that cannot be searched
    for) and DeadlineExceeded. Any other exception is a bug, and the caller gets Internal.
    """

    async def start(self) -> None:
        """Open the index; slow work belongs here.

        Raises: ConfigError, naming the key, if the index cannot be opened as configured.
        """
        ...

    async def stop(self) -> None:
        """Close the index, whether or not its start succeeded; pending searches get Unavailable."""
        ...

    def describe(self) -> IndexDescription:
        """Describe the index. Called only after `start`."""
        ...

    async def search(
        self, query: str, k: int, timeout_s: float, *, texts: bool = True, call: CallRecord = NO_CALL
    ) -> list[Candidate]:
        """Return at most `k` candidates, best first; none if the index has nothing of the query.

        `k` is at least 1. Without `texts`, the candidates' texts are not read.
        """
        ...

    async def texts(
        self, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> list[str]:
        """Return the texts of documents that a search found, in the order given.

        Raises: Gone, naming the documents that the index does not have (any more).
        """
        ...

    async def locate(
        self, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> list[int | None]:
        """Return documents' places, in the order given; None for one that is unknown or has no place."""
        return [None] * len(doc_ids)

    @property
    def stores(self) -> "DocumentStores | None":
        """The data stored with the index for its documents' places; None if there is none."""
        return None

    async def scores(
        self, query: str, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> Mapping[str, float]:
        """Score these documents as `search` would; documents that it would not find are left out."""
        ...
