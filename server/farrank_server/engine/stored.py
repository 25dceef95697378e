"""Data stored with an index as the engine reads it: documents' tokens and encodings of their chunks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from farrank_rankers.tokens import TokenizedText

if TYPE_CHECKING:
    from farrank_rankers.reader import Reader
    from farrank_server.engine.rankers.document_cache import EncodedDocument
    from farrank_server.engine.rankers.loaded import LoadedRanker


class StoredTokens(Protocol):
    """The tokens of all documents of an index. Thread-safe."""

    def read(self, place: int, limit: int) -> TokenizedText:
        """Return the same as tokenizing the text: its first `limit` tokens and its number of tokens."""
        ...


class StoredEncodings(Protocol):
    """The encodings of all chunks of an index's documents. Thread-safe."""

    def read(self, place: int) -> "EncodedDocument":
        """Return the same as encoding all chunks of the document."""
        ...


class DocumentStores(Protocol):
    """All data stored with one index. A document is found by its place; places are never reused.

    `index_id` names the build of the index. `generation` counts the changes since that build.
    """

    @property
    def index_id(self) -> str:
        """The name of the build."""
        ...

    @property
    def generation(self) -> int:
        """The number of changes since the build."""
        ...

    def length(self, place: int) -> int:
        """The length of a document's text in characters."""
        ...

    def tokens_for(self, reader: "Reader") -> StoredTokens | None:
        """Find the tokens that this ranker would make. Returns None if none are of its tokenizer."""
        ...

    def why_no_tokens(self, reader: "Reader") -> str:
        """Explain why no stored tokens fit the ranker. Empty if some fit or the index stores no tokens."""
        ...

    def encodings_for(self, ranker: "LoadedRanker") -> StoredEncodings | None:
        """Find the encodings that this ranker would make. Returns None if there are none."""
        ...

    def why_no_encodings(self, ranker: "LoadedRanker") -> str:
        """Explain why no stored encodings fit the ranker. Empty if some fit or the index stores none."""
        ...


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
            encodings = stores.encodings_for(ranker) if ranker.is_dual else None
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
