"""The data stored with an index that each loaded ranker reads instead of texts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farrank_indexes.stored_documents import DocumentStores, StoredEncodings, StoredTokens

if TYPE_CHECKING:
    from farrank_server.engine.loaded.ranker import LoadedRanker


@dataclass(frozen=True, slots=True)
class Source:
    """The stored data of an index that one ranker reads instead of texts."""

    tokens: StoredTokens | None = None
    encodings: StoredEncodings | None = None

    def encodings_within(self, max_chunks: int | None) -> StoredEncodings | None:
        """Return the encodings if they can answer a call that reads at most `max_chunks` chunks per document.

        With such a limit, the stored tokens are needed too: they tell how much of the document was cut.
        """
        return self.encodings if max_chunks is None or self.tokens is not None else None

    def suffices(self, max_chunks: int | None) -> bool:
        """Whether the ranker needs no text."""
        return self.tokens is not None or self.encodings_within(max_chunks) is not None


NOTHING = Source()


@dataclass(frozen=True, slots=True, eq=False)
class Sources:
    """The data stored with one index for each loaded ranker, by the ranker's name."""

    stores: DocumentStores
    of: Mapping[str, Source]

    @classmethod
    def found(cls, stores: DocumentStores, rankers: Iterable["LoadedRanker"]) -> "Sources":
        """Find the data that each ranker can read."""
        of = {}
        for ranker in rankers:
            encodings = None
            if ranker.is_dual:
                encodings = stores.encodings_for(ranker.encodings_version, ranker.spec.chunking)
            of[ranker.name] = Source(stores.tokens_for(ranker.reader), encodings)
        return cls(stores, of)

    def suffice(self, rankers: Iterable["LoadedRanker"], max_chunks: int | None) -> bool:
        """Whether none of these rankers needs a text."""
        return all(self.of[ranker.name].suffices(max_chunks) for ranker in rankers)

    @property
    def tokens_for(self) -> list[str]:
        """The rankers that read stored tokens of this index."""
        return [name for name, source in self.of.items() if source.tokens is not None]

    @property
    def encodings_for(self) -> list[str]:
        """The rankers that read stored encodings of this index."""
        return [name for name, source in self.of.items() if source.encodings is not None]
