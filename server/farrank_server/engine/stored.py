"""The data stored with an index that each loaded ranker reads instead of texts."""

from collections.abc import Iterable
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


@dataclass(slots=True, eq=False)
class Sources:
    """The data stored with one index for each loaded ranker, by the ranker's key.

    `names` are the rankers' names by their keys. A ranker that was loaded later reads nothing until `add`.
    """

    stores: DocumentStores
    of: dict[str, Source]
    names: dict[str, str]

    @classmethod
    def found(cls, stores: DocumentStores, rankers: Iterable["LoadedRanker"]) -> "Sources":
        """Find the data that each ranker can read."""
        sources = cls(stores, {}, {})
        for ranker in rankers:
            sources.add(ranker)
        return sources

    def add(self, ranker: "LoadedRanker") -> None:
        """Find the data that a ranker can read. May wait for files."""
        encodings = None
        if ranker.is_dual:
            encodings = self.stores.encodings_for(ranker.encodings_version, ranker.spec.chunking)
        # Replaced as a whole: calls read these on another thread.
        self.names = {**self.names, ranker.key: ranker.name}
        self.of = {**self.of, ranker.key: Source(self.stores.tokens_for(ranker.reader), encodings)}

    def remove(self, ranker: "LoadedRanker") -> None:
        """Forget a ranker that is no longer loaded."""
        self.of = {key: source for key, source in self.of.items() if key != ranker.key}
        self.names = {key: name for key, name in self.names.items() if key != ranker.key}

    def source(self, ranker: str) -> Source:
        """The data that the ranker of this key reads."""
        return self.of.get(ranker, NOTHING)

    def suffice(self, rankers: Iterable["LoadedRanker"], max_chunks: int | None) -> bool:
        """Whether none of these rankers needs a text."""
        return all(self.source(ranker.key).suffices(max_chunks) for ranker in rankers)

    @property
    def tokens_for(self) -> list[str]:
        """The rankers that read stored tokens of this index."""
        return self._names_of(key for key, source in self.of.items() if source.tokens is not None)

    @property
    def encodings_for(self) -> list[str]:
        """The rankers that read stored encodings of this index."""
        return self._names_of(key for key, source in self.of.items() if source.encodings is not None)

    def _names_of(self, keys: Iterable[str]) -> list[str]:
        # Two versions of one ranker have one name.
        return list(dict.fromkeys(self.names[key] for key in keys))
