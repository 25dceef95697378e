"""Encoded documents of dual rankers, kept by content and bounded in bytes."""

import hashlib
import threading
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cachetools import LRUCache

from farrank_rankers.features import Features
from farrank_server.engine.spans import Cut, Spans

# An entry's cost apart from its arrays: its key, and Python objects.
_OVERHEAD_BYTES = 600


@dataclass(frozen=True, slots=True, eq=False)
class EncodedDocument:
    """A document that needs neither tokenizing nor encoding. Shapes: features (C, …), spans (C, 2).

    `tokens` are those of the encoder inputs that it took; 0 where it was encoded for an index.
    """

    features: Features
    spans: Spans
    cut: Cut
    tokens: int = 0

    @property
    def size_bytes(self) -> int:
        """What the entry takes of the cache's bound."""
        return self.features.nbytes + self.spans.nbytes + _OVERHEAD_BYTES


class KnownDocuments(NamedTuple):
    """What a cache knows of a call: the keys of its documents, and those that it holds, by index.

    Without a cache there is neither. `stored` are the documents whose encodings are kept beside their index.
    """

    keys: Sequence[bytes] | None = None
    held: Mapping[int, EncodedDocument] = {}
    stored: Container[int] = frozenset()


class DocumentCache:
    """The documents used last, over all dual rankers, in host memory. Thread-safe.

    Features stay in host memory so that they survive the loss of a device and cost it nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self._entries: LRUCache[bytes, EncodedDocument] = LRUCache(
            max_bytes, getsizeof=lambda entry: entry.size_bytes
        )
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> float:
        """Bytes held now."""
        return float(self._entries.currsize)

    @staticmethod
    def key(encoder: str, max_chunks: int | None, count_tokens: bool, document: str) -> bytes:
        """Name a document's encoding by all that it depends on; `encoder` is a ranker's `cache_name`.

        What was encoded without counting the tokens beyond the limit cannot answer a call that wants them.
        `document` is the text, or what else tells it from all others.
        """
        digest = hashlib.blake2b(f"{encoder}/{max_chunks}/{count_tokens}/".encode(), digest_size=20)
        # surrogatepass: a lone surrogate cannot come over the wire, but from another door it may.
        digest.update(document.encode("utf-8", "surrogatepass"))
        return digest.digest()

    def find(self, keys: Sequence[bytes]) -> KnownDocuments:
        """Look up many documents."""
        with self._lock:
            found = {index: self._entries[key] for index, key in enumerate(keys) if key in self._entries}
        return KnownDocuments(keys, found)

    def put(self, key: bytes, document: EncodedDocument) -> None:
        """Keep a document, letting go of those unused longest. One larger than the bound is not kept."""
        with self._lock:
            if document.size_bytes <= self._entries.maxsize:
                self._entries[key] = document
