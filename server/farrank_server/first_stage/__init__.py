"""What the server asks of a first stage, whatever finds the candidates; `kinds` lists those there are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from farrank_server.batching.fair_order import NOBODY, Account

if TYPE_CHECKING:
    from farrank_server.engine.stored import DocumentStores


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document that the first stage found; a higher score is a better match.

    `text` is empty where texts were not asked for. `parts` says, by their names, which other first stages
    gave which score, where the score was made of theirs. `place` is its number in the index, in the order of
    indexing, None where the index knows none.
    """

    doc_id: str
    text: str
    score: float
    parts: Mapping[str, float] = field(default_factory=dict)
    place: int | None = None


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """What an index holds and how it ranks, e.g. `bm25(k1=0.9,b=0.4)` with or without `+rm3(...)`.

    `mean_characters` is about how long its documents are: what admission knows before the search. `members`
    are the indexes whose rankings are made one here; `generation` counts the changes since it was built.
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

    `FirstStages` bounds how many searches run at once and how long each may take: what takes longer than
    `timeout_s` is cancelled and answered with DeadlineExceeded. The time is told so that it can be passed on.
    Calls are made for an `account`: where searches wait for each other, they go in the fair order of these.
    Every method may raise Unavailable (down for the moment, with a hint when to come back), ResourceExhausted
    (too busy, or the texts are too large), InvalidArgument (a query that cannot be searched for) and
    DeadlineExceeded. Any other exception is a bug, and the caller gets Internal.
    """

    async def start(self) -> None:
        """Open what is needed; what takes long is done here.

        Raises: ConfigError, naming the key, if it cannot be opened as it is configured.
        """
        ...

    async def stop(self) -> None:
        """Close it, whether or not its start succeeded; searches that still wait get Unavailable."""
        ...

    def describe(self) -> IndexDescription:
        """Say what the index holds. Asked after `start` only."""
        ...

    async def search(
        self, query: str, k: int, timeout_s: float, *, texts: bool = True, account: Account = NOBODY
    ) -> list[Candidate]:
        """Return at most `k` candidates, best first; none if nothing in the query is in the index.

        `k` is at least 1. Without `texts` the candidates' own are not read.
        """
        ...

    async def texts(
        self, doc_ids: Sequence[str], timeout_s: float, *, account: Account = NOBODY
    ) -> list[str]:
        """Return the texts of documents that it found, in the order given.

        Raises: Gone, naming them, if it does not have some of them (any more).
        """
        ...

    async def locate(
        self, doc_ids: Sequence[str], timeout_s: float, *, account: Account = NOBODY
    ) -> list[int | None]:
        """Return the places of documents, in the order given; None for what it has not, or has no place."""
        return [None] * len(doc_ids)

    @property
    def stores(self) -> "DocumentStores | None":
        """What is kept beside the index, for its documents' places; None if nothing is."""
        return None

    async def scores(
        self, query: str, doc_ids: Sequence[str], timeout_s: float, *, account: Account = NOBODY
    ) -> Mapping[str, float]:
        """Score these documents as `search` would; those that it would not find are left out."""
        ...
