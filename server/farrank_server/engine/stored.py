"""What is kept beside an index, as the engine reads it: documents' tokens, and encodings of their chunks."""

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
        """Give what tokenizing the text would: its first `limit` tokens, and how many it has."""
        ...


class StoredEncodings(Protocol):
    """The encodings of all chunks of an index's documents. Thread-safe."""

    def read(self, place: int) -> "EncodedDocument":
        """Give what encoding all chunks of the document would."""
        ...


class DocumentStores(Protocol):
    """All that is kept beside one index. A document is found by its place, which is never given to another.

    `index_id` names the build of the index, `generation` counts the changes since.
    """

    @property
    def index_id(self) -> str:
        """The build."""
        ...

    @property
    def generation(self) -> int:
        """The change."""
        ...

    def length(self, place: int) -> int:
        """Count the characters of a document's text."""
        ...

    def tokens_for(self, reader: "Reader") -> StoredTokens | None:
        """Find the tokens that a ranker would make; None if there are none of its tokenizer."""
        ...

    def why_no_tokens(self, reader: "Reader") -> str:
        """Say why none of the tokens are a ranker's; empty if some are, or there are none at all."""
        ...

    def encodings_for(self, ranker: "LoadedRanker") -> StoredEncodings | None:
        """Find the encodings that a ranker would make; None if there are none."""
        ...

    def why_no_encodings(self, ranker: "LoadedRanker") -> str:
        """Say why none of the encodings are a bi-encoder's; empty if some are, or there are none at all."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """What one ranker reads of an index's documents instead of their texts."""

    tokens: StoredTokens | None = None
    encodings: StoredEncodings | None = None

    def encodings_within(self, max_chunks: int | None) -> StoredEncodings | None:
        """Give the encodings where they answer a call that reads so many chunks of each document.

        What is cut there is known of tokens alone.
        """
        return self.encodings if max_chunks is None or self.tokens is not None else None

    def suffices(self, max_chunks: int | None) -> bool:
        """Whether no text is needed."""
        return self.tokens is not None or self.encodings_within(max_chunks) is not None


NOTHING = Source()


@dataclass(frozen=True, slots=True, eq=False)
class Sources:
    """What is kept beside one index for the rankers that are loaded, by their names."""

    stores: DocumentStores
    of: Mapping[str, Source]

    @classmethod
    def found(cls, stores: DocumentStores, rankers: Iterable["LoadedRanker"]) -> "Sources":
        """Find out what each ranker can read."""
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
        """The rankers that read tokens here."""
        return [name for name, source in self.of.items() if source.tokens is not None]

    @property
    def encodings_for(self) -> list[str]:
        """The rankers that read encodings here."""
        return [name for name, source in self.of.items() if source.encodings is not None]
