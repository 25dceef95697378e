"""The vectors of documents' chunks, stored with an index: the same as a bi-encoder makes of their texts.

    INDEX/encodings/<key>/encodings.json   the manifest
    INDEX/encodings/<key>/part-<place>/    the documents from this place on
        ends.i64         the end of each document's chunks, counted in chunks from the part's start
        texts.u32        for each document: characters, characters cut, tokens cut, tokens read
        spans.u32        for each chunk: first character, one past the last
        vectors.f16      one vector for each chunk

Rounding to 16 bits changes a number by at most 2⁻¹¹ of itself, and so a dot product by at most 2⁻¹¹ times the
lengths of both vectors: a cosine by less than 0.0005.
"""

import bisect
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from farrank_indexes.parts import (
    FlatFile,
    PartWriter,
    damaged,
    open_parts,
    read_store_manifest,
    why_too_short,
)
from farrank_indexes.stored_documents import Cut, EncodedDocument
from farrank_rankers.chunking import Chunking, readable_tokens
from farrank_rankers.features import Features

FOLDER = "encodings"
# The largest error of a cosine. For a dot product, multiply by the lengths of both vectors.
SCORE_WITHIN = 2.0**-11
_MANIFEST = "encodings.json"
_FORMAT = 2
_FILES = ("ends.i64", "texts.u32", "spans.u32", "vectors.f16")
_LARGEST = float(np.finfo(np.float16).max)


def key_of(version: str) -> str:
    """Return the folder name of an `encodings_version`, which covers weights, tokenizer and windows."""
    return f"{FOLDER}/{hashlib.sha256(version.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, eq=False)
class EncodedText:
    """A document's chunks. Shapes: vectors (C, H), spans (C, 2) in characters.

    `characters` is the text's length. `tokens` is the number of tokens in the chunks. `cut` is the number of
    characters and of tokens beyond the ranker's limit.
    """

    vectors: NDArray[np.float32]
    spans: NDArray[np.uint32]
    characters: int
    tokens: int
    cut: tuple[int, int]


class DocumentEncoder(Protocol):
    """A bi-encoder for documents."""

    @property
    def version(self) -> str:
        """The `encodings_version` of its ranker."""
        ...

    @property
    def max_document_tokens(self) -> int:
        """The number of tokens that it reads of a document."""
        ...

    @property
    def precision(self) -> str:
        """The precision in which it computes."""
        ...

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """Encode documents as the served ranker would. Raises: ValueError for a lone surrogate."""
        ...

    def close(self) -> None:
        """Release its threads and weights."""
        ...


class EncodingsWriter:
    """Encodes documents and writes their vectors in the order of their places."""

    def __init__(
        self, encoder: DocumentEncoder, index: Path, place: int, state: Mapping[str, Any] | None
    ) -> None:
        self._encoder = encoder
        self._width = 0 if state is None else int(state["width"])
        self._chunks = 0 if state is None else int(state["chunks"])
        self._cut = 0 if state is None else int(state["cut"])
        first = place if state is None else state["first"]
        facts = {
            "format": _FORMAT,
            "version": encoder.version,
            "max_document_tokens": encoder.max_document_tokens,
            "precision": encoder.precision,
        }
        store = index / key_of(encoder.version)
        self._part = PartWriter(store, _MANIFEST, facts, first, _FILES, state)

    def add(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """Encode and write the next documents. Returns the vectors as stored. Shapes: -> D times (C, H).

        Raises: ValueError if a text has a lone surrogate, or if a number does not fit into 16 bits.
        """
        made = []
        for each in self._encoder.encode(texts):
            if not np.abs(each.vectors).max() <= _LARGEST:
                raise ValueError("a vector holds a number that is not finite, or too large for 16 bits")
            kept = each.vectors.astype("<f2")
            self._width = kept.shape[1]
            self._chunks += len(kept)
            self._cut += any(each.cut)
            self._part.write("ends.i64", np.array([self._chunks], dtype="<i8"))
            self._part.write("texts.u32", np.array([each.characters, *each.cut, each.tokens], dtype="<u4"))
            self._part.write("spans.u32", each.spans.astype("<u4"))
            self._part.write("vectors.f16", kept)
            self._part.documents += 1
            made.append(kept.astype(np.float32))
        return made

    def flush(self) -> dict[str, Any]:
        """Write everything to disk. Returns the state that is needed to resume from here."""
        return {**self._part.flush(), "width": self._width, "chunks": self._chunks, "cut": self._cut}

    def finish(self, index_id: str) -> None:
        """Complete the part and write the manifest, for the index of this id."""
        self._part.finish(index_id, chunks=self._chunks, width=self._width, cut=self._cut)

    def close(self) -> None:
        """Close its files and the encoder."""
        self._part.close()
        self._encoder.close()


@dataclass(frozen=True, slots=True)
class EncodingsStoreBuilder:
    """The store of one bi-encoder, for the index builder, which closes the bi-encoder."""

    encoder: DocumentEncoder

    @property
    def key(self) -> str:
        """Its folder within the index."""
        return key_of(self.encoder.version)

    @property
    def vectors_version(self) -> str:
        """The version of the ranker that encodes."""
        return self.encoder.version

    def open(self, index: Path, place: int, state: Mapping[str, Any] | None) -> EncodingsWriter:
        """Open the store for writing from a place on, or from the state of the last `flush`."""
        return EncodingsWriter(self.encoder, index, place, state)


@dataclass(frozen=True, slots=True)
class _Part:
    """The documents from a place on. Shapes: ends (N,), texts (N, 4), spans (C, 2), vectors (C, H)."""

    first: int
    ends: FlatFile
    texts: FlatFile
    spans: FlatFile
    vectors: FlatFile


class EncodingsStore:
    """The encoded chunks of an index's documents by place. Any thread may read.

    Raises: ConfigError naming the file if one is damaged or belongs to another index.
    """

    def __init__(self, folder: Path, index_id: str, *, verify: bool = True) -> None:
        self.manifest = read_store_manifest(folder, _MANIFEST, _FORMAT, index_id)
        self._parts: list[_Part] = []
        for part in open_parts(folder, self.manifest, verify=verify):
            ends = part.array("ends.i64", "<i8")
            chunks, width = part.facts["chunks"], part.facts["width"]
            places = ends[:]
            fit = len(ends) == part.documents and places[-1] == chunks
            if not fit or (np.diff(places, prepend=0) < 1).any():
                raise damaged(part.folder / "ends.i64", "its places do not fit the other files")
            texts = part.array("texts.u32", "<u4", 4 * len(ends), 4)
            spans = part.array("spans.u32", "<u4", 2 * chunks, 2)
            vectors = part.array("vectors.f16", "<f2", chunks * width, width)
            self._parts.append(_Part(part.first, ends, texts, spans, vectors))
        self._firsts = [part.first for part in self._parts]

    def why_not(self, encodings_version: str, chunking: Chunking) -> str:
        """Explain why a ranker of this version cannot read the store. Empty if it can."""
        return why_other_encodings(self.manifest, encodings_version, chunking)

    def characters(self, place: int) -> int:
        """Return the length of a document's text. Raises: KeyError if no document has the place."""
        part, number = self._find(place)
        return int(part.texts.at(number)[0])

    def read(self, place: int, within: Chunking | None = None) -> EncodedDocument:
        """Return a document's encoded chunks; of a long one, those that end `within` a ranker's limit.

        Their vectors are fp16, as stored.
        Raises: KeyError if no document has the place.
        """
        part, number = self._find(place)
        first, end = map(int, part.ends[number - 1 : number + 1] if number else (0, part.ends.at(number)))
        characters, *cut, tokens = part.texts.at(number).tolist()
        if within is not None and tokens > within.max_document_tokens:
            windows, read = windows_within(within, end - first)
            end = first + windows
            cut = [characters - int(part.spans.at(end - 1)[1]), cut[1] + tokens - read]
        chunks = slice(first, end)
        vectors = torch.from_numpy(part.vectors[chunks])
        return EncodedDocument(Features(vectors), part.spans[chunks], Cut(*cut))

    def _find(self, place: int) -> tuple[_Part, int]:
        at = bisect.bisect_right(self._firsts, place) - 1
        if at < 0 or place - self._firsts[at] >= len(self._parts[at].ends):
            raise KeyError(place)
        return self._parts[at], place - self._firsts[at]


def why_other_encodings(manifest: Mapping[str, Any], encodings_version: str, chunking: Chunking) -> str:
    """Explain why a ranker of this version cannot read a store of encodings. Empty if it can."""
    if manifest["version"] != encodings_version:
        return "they were encoded by another ranker or with other windows"
    read = readable_tokens(chunking)
    if read < min(int(manifest["max_document_tokens"]), chunking.window):
        return f"max_document_tokens is {read:,}, less than one of their windows of {chunking.window:,}"
    return why_too_short(manifest, read)


def windows_within(chunking: Chunking, windows: int) -> tuple[int, int]:
    """Count the windows of a longer document that end within a ranker's limit, and their tokens.

    `windows` is the number that the document has.
    """
    whole = (chunking.max_document_tokens - chunking.window) // chunking.stride + 1
    kept = min(windows, whole)
    return kept, (kept - 1) * chunking.stride + chunking.window


class LimitedStore(Protocol):
    """A store of encodings that can be read in part."""

    def read(self, place: int, within: Chunking | None = None) -> EncodedDocument:
        """Return a document's encoded chunks; of a long one, those that end `within` a ranker's limit."""
        ...


@dataclass(frozen=True, slots=True)
class TruncatedEncodings:
    """A store for a ranker that may read less of a document than was encoded."""

    store: LimitedStore
    chunking: Chunking

    def read(self, place: int) -> EncodedDocument:
        """Return the chunks that end within the ranker's limit.

        Raises: KeyError if no document has the place.
        """
        return self.store.read(place, self.chunking)
