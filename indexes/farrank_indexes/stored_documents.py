"""Documents as an index stores them for rankers: their tokens, and the encodings of their chunks."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from farrank_rankers.chunking import Chunking
from farrank_rankers.evidence.choosing import DocumentText
from farrank_rankers.features import Features
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import TokenizedText

# The size of an encoded document apart from its arrays: Python objects, and its key in a cache.
_OVERHEAD_BYTES = 600

# The characters of each chunk, in Unicode code points: start inclusive, end exclusive. Shape: (C, 2).
Spans = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a text that was not read.

    `tokens` is 0 if nothing was cut. It is an estimate unless the call asked for the exact count.
    """

    characters: int = 0
    tokens: int = 0

    def chunks(self, stride: int) -> int:
        """Count the chunks that these tokens would add."""
        return -(-self.tokens // stride)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedDocument:
    """A document that needs neither tokenization nor encoding. Shapes: features (C, …), spans (C, 2).

    `tokens` counts the tokens of its encoder inputs. It is 0 for a document that was encoded for an index.
    """

    features: Features
    spans: Spans
    cut: Cut
    tokens: int = 0

    @property
    def size_bytes(self) -> int:
        """The bytes that count towards the cache's bound."""
        return self.features.nbytes + self.spans.nbytes + _OVERHEAD_BYTES


class StoredTokens(Protocol):
    """The tokens of all documents of an index. Thread-safe."""

    def read(self, place: int, limit: int) -> TokenizedText:
        """Return the same as tokenizing the text: its first `limit` tokens and its number of tokens."""
        ...


class StoredEncodings(Protocol):
    """The encodings of all chunks of an index's documents. Thread-safe."""

    def read(self, place: int) -> EncodedDocument:
        """Return the same as encoding all chunks of the document."""
        ...


class StoredTexts(Protocol):
    """The texts of all documents of an index. Thread-safe."""

    def read(self, place: int) -> DocumentText:
        """Return a document's text with the bounds of its sentences."""
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

    @property
    def texts(self) -> StoredTexts | None:
        """The texts with the bounds of their sentences. None if the index has none."""
        ...

    def tokens_for(self, reader: Reader) -> StoredTokens | None:
        """Find the tokens that this ranker would make. Returns None if none are of its tokenizer."""
        ...

    def why_no_tokens(self, reader: Reader) -> str:
        """Explain why no stored tokens fit the ranker. Empty if some fit or the index stores no tokens."""
        ...

    def encodings_for(self, encodings_version: str, chunking: Chunking) -> StoredEncodings | None:
        """Find the encodings that a ranker of this version would make. Returns None if there are none."""
        ...

    def why_no_encodings(self, encodings_version: str, chunking: Chunking) -> str:
        """Explain why no stored encodings fit the ranker. Empty if some fit or the index stores none."""
        ...
