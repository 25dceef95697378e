import numpy as np
import torch

from farrank_indexes.stored_documents import Cut, EncodedDocument
from farrank_rankers.features import Features
from farrank_server.engine.loaded.document_cache import DocumentCache, KnownDocuments


def encoded(chunks: int = 2, width: int = 8) -> EncodedDocument:
    spans = np.array([(i, i + 1) for i in range(chunks)], dtype=np.uint32)
    return EncodedDocument(Features(torch.ones(chunks, width)), spans, cut=Cut())


def test_the_key_holds_all_that_the_encoding_depends_on() -> None:
    keys = {
        DocumentCache.key(version, limit, counts, text)
        for version in ("v1", "v2")
        for limit in (None, 1, 11)
        for counts in (False, True)
        for text in ("", "a", "1a", "ä")
    }
    assert len(keys) == 2 * 3 * 2 * 4


def test_a_document_is_found_again() -> None:
    cache = DocumentCache(10_000)
    entry = encoded()
    cache.put(b"a", entry)
    assert cache.find([b"a", b"b"]) == KnownDocuments([b"a", b"b"], {0: entry})


def test_the_least_recently_used_leaves_first_and_the_bound_holds() -> None:
    entry = encoded()
    cache = DocumentCache(entry.size_bytes * 2)
    cache.put(b"a", entry)
    cache.put(b"b", entry)
    cache.find([b"a"])
    cache.put(b"c", entry)
    assert cache.find([b"a", b"b", b"c"]).held == {0: entry, 2: entry}
    assert cache.size_bytes <= entry.size_bytes * 2


def test_a_document_larger_than_the_bound_is_not_kept() -> None:
    cache = DocumentCache(100)
    cache.put(b"a", encoded())
    assert not cache.find([b"a"]).held
    assert cache.size_bytes == 0
