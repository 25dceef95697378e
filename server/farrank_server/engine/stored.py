"""What the engine asks of the stores beside an index: documents' tokens, and encodings of their chunks."""

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

    def read(self, place: int, max_chunks: int | None) -> "EncodedDocument | None":
        """Give what encoding the document's chunks would, the first `max_chunks` of them.

        None if it cannot be given: what is cut by `max_chunks` is not known.
        """
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

    def encodings_for(self, ranker: "LoadedRanker") -> StoredEncodings | None:
        """Find the encodings that a ranker would make; None if there are none of its version and chunking."""
        ...
