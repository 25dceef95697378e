"""A cache of documents encoded by dual rankers, keyed by content and bounded in bytes."""

import hashlib
import threading
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from cachetools import LRUCache

from farrank_indexes.stored_documents import EncodedDocument


class KnownDocuments(NamedTuple):
    """The documents of a call that need no encoding.

    `keys` are the cache keys of all documents, None without a cache. `held` maps indices to cached documents.
    `stored` holds the indices of documents whose encodings are stored with their index.
    """

    keys: Sequence[bytes] | None = None
    held: Mapping[int, EncodedDocument] = {}
    stored: Container[int] = frozenset()


class DocumentCache:
    """The most recently used documents of all dual rankers, in host memory. Thread-safe.

    Features stay in host memory: they survive the loss of the device and take none of its memory.
    """

    def __init__(self, max_bytes: int) -> None:
        self._entries: LRUCache[bytes, EncodedDocument] = LRUCache(
            max_bytes, getsizeof=lambda entry: entry.size_bytes
        )
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> float:
        """The size of all entries in bytes."""
        return float(self._entries.currsize)

    @staticmethod
    def key(encoder: str, max_chunks: int | None, count_tokens: bool, document: str) -> bytes:
        """Make the cache key from everything that the encoding depends on.

        `encoder` is a ranker's `cache_name`; `document` is a `Document.key`. `count_tokens` is part of the
        key because an entry made without the exact count cannot answer a call that asks for it.
        """
        digest = hashlib.blake2b(f"{encoder}/{max_chunks}/{count_tokens}/".encode(), digest_size=20)
        # The wire carries no lone surrogates, but other sources of texts may.
        digest.update(document.encode("utf-8", "surrogatepass"))
        return digest.digest()

    def find(self, keys: Sequence[bytes]) -> KnownDocuments:
        """Look up the documents of a call."""
        with self._lock:
            found = {index: self._entries[key] for index, key in enumerate(keys) if key in self._entries}
        return KnownDocuments(keys, found)

    def put(self, key: bytes, document: EncodedDocument) -> None:
        """Store a document and evict the least recently used ones.

        A document larger than the bound is not stored.
        """
        with self._lock:
            if document.size_bytes <= self._entries.maxsize:
                self._entries[key] = document
