"""The vectors of documents' tokens, stored with an index for rankers that compare tokens (MaxSim).

    INDEX/token-vectors/<key>/token-vectors.json   the manifest, with the codec's numbers of each part
    INDEX/token-vectors/<key>/part-<place>/        the documents from this place on
        ends.i64         for each document: the ends of its vectors and of its windows, counted in the part
        texts.u32        for each document: characters, characters cut, tokens cut, tokens read
        windows.u32      for each window: the end of its vectors, counted in the document; its first
                         character, one past its last
        vectors.<codec>  a row for each vector

The rows are used where the kernel maps the file: a server's own memory does not grow with the index.
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

from farrank_indexes.encodings_store import why_other_encodings, windows_within
from farrank_indexes.parts import (
    FlatFile,
    MappedFile,
    PartWriter,
    damaged,
    open_parts,
    read_store_manifest,
)
from farrank_indexes.stored_documents import Cut, EncodedDocument
from farrank_rankers.chunking import Chunking
from farrank_rankers.features import Features, Windows
from farrank_runtimes.runtime import CodecName
from farrank_runtimes.token_codecs import (
    TokenCodec,
    fit,
    restored,
    row_type,
    row_values,
)
from farrank_settings.errors import ConfigError

FOLDER = "token-vectors"
_MANIFEST = "token-vectors.json"
_FORMAT = 2
# The codec is fitted to this number of a part's first vectors, or to all of a smaller part.
SAMPLE = 40_000
# Documents whose ends are checked at once.
_BLOCK = 2**14


def key_of(version: str) -> str:
    """Return the folder name of an `encodings_version`, which covers weights, tokenizer and windows."""
    return f"{FOLDER}/{hashlib.sha256(version.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, eq=False)
class EncodedTokens:
    """The vectors of a document's tokens that are compared, window after window.

    Shapes: vectors (T, K); window_ends (C,) in vectors; spans (C, 2) in characters. `characters` is the
    text's length. `tokens` is the number of tokens in the windows. `cut` is the number of characters and of
    tokens beyond the ranker's limit.
    """

    vectors: NDArray[np.float32]
    window_ends: NDArray[np.int64]
    spans: NDArray[np.uint32]
    characters: int
    tokens: int
    cut: tuple[int, int]


class TokenEncoder(Protocol):
    """A ranker's encoder for documents that keeps a vector for each token."""

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

    @property
    def width(self) -> int:
        """The number of a vector's dimensions."""
        ...

    def encode(self, texts: Sequence[str]) -> list[EncodedTokens]:
        """Encode documents as the served ranker would. Raises: ValueError for a lone surrogate."""
        ...

    def close(self) -> None:
        """Release its threads and weights."""
        ...


class TokenVectorsWriter:
    """Encodes documents and writes their vectors in the order of their places.

    The first documents are held back until there are enough to fit the codec.
    """

    vectors_version = None

    def __init__(
        self,
        encoder: TokenEncoder,
        codec_name: CodecName,
        index: Path,
        place: int,
        state: Mapping[str, Any] | None,
    ) -> None:
        self._encoder, self._codec_name = encoder, codec_name
        self._vectors, self._windows, self._cut = (
            0 if state is None else int(state[name]) for name in ("vectors", "windows", "cut")
        )
        self._codec: TokenCodec | None = None
        if state is not None and state["codec"] is not None:
            self._codec = _restored(codec_name, state["codec"], encoder.width)
        self._held: list[EncodedTokens] = []
        self._held_vectors = 0
        facts = {
            "format": _FORMAT,
            "version": encoder.version,
            "max_document_tokens": encoder.max_document_tokens,
            "precision": encoder.precision,
            "codec": codec_name,
            "width": encoder.width,
        }
        store = index / key_of(encoder.version)
        first = place if state is None else state["first"]
        names = (*_FILES, _rows_file(codec_name))
        self._part = PartWriter(store, _MANIFEST, facts, first, names, state)

    def add(self, texts: Sequence[str]) -> None:
        """Encode the next documents, and write them once there is a codec.

        Raises: ValueError if a text has a lone surrogate, or a vector is not finite.
        """
        for each in self._encoder.encode(texts):
            if not np.isfinite(each.vectors).all():
                raise ValueError("a token's vector holds a number that is not finite")
            if self._codec is None:
                self._held.append(each)
                self._held_vectors += len(each.vectors)
                if self._held_vectors >= SAMPLE:
                    self._fit()
            else:
                self._write(each, self._codec)

    def flush(self) -> dict[str, Any]:
        """Write everything to disk. Returns the state that is needed to resume from here."""
        self._fit()
        return {
            **self._part.flush(),
            "vectors": self._vectors,
            "windows": self._windows,
            "cut": self._cut,
            "codec": None if self._codec is None else self._codec.parameters.tolist(),
        }

    def finish(self, index_id: str) -> None:
        """Complete the part and write the manifest, for the index of this id."""
        self._fit()
        self._part.finish(
            index_id,
            vectors=self._vectors,
            windows=self._windows,
            cut=self._cut,
            parameters=(self._codec or self._unfitted()).parameters.tolist(),
        )

    def close(self) -> None:
        """Close its files and the encoder."""
        self._part.close()
        self._encoder.close()

    def _fit(self) -> None:
        """Fit the codec to the documents held back, if there are any, and write them."""
        if not self._held:
            return
        sample = np.concatenate([each.vectors for each in self._held])[:SAMPLE]
        if len(sample):
            self._codec = fit(self._codec_name, sample)
        held, self._held, self._held_vectors = self._held, [], 0
        for each in held:
            self._write(each, self._codec or self._unfitted())

    def _unfitted(self) -> TokenCodec:
        """Make a codec for documents without vectors."""
        return fit(self._codec_name, np.zeros((1, self._encoder.width), np.float32))

    def _write(self, text: EncodedTokens, codec: TokenCodec) -> None:
        rows = codec.encode(text.vectors)
        self._vectors += len(rows)
        self._windows += len(text.spans)
        self._cut += any(text.cut)
        windows = np.column_stack([text.window_ends, text.spans])
        self._part.write("ends.i64", np.array([self._vectors, self._windows], dtype="<i8"))
        self._part.write("texts.u32", np.array([text.characters, *text.cut, text.tokens], dtype="<u4"))
        self._part.write("windows.u32", windows.astype("<u4"))
        self._part.write(_rows_file(self._codec_name), rows)
        self._part.documents += 1


_FILES = ("ends.i64", "texts.u32", "windows.u32")


def _rows_file(codec: CodecName) -> str:
    return f"vectors.{codec}"


def _restored(name: CodecName, parameters: Sequence[Sequence[float]], width: int) -> TokenCodec:
    return restored(name, np.array(parameters, dtype=np.float32).reshape(-1, width), width)


@dataclass(frozen=True, slots=True)
class TokenVectorsBuilder:
    """The store of one ranker, for the index builder, which closes the encoder."""

    encoder: TokenEncoder
    codec: CodecName = "int8"
    vectors_version: str | None = None

    @property
    def key(self) -> str:
        """Its folder within the index."""
        return key_of(self.encoder.version)

    def open(self, index: Path, place: int, state: Mapping[str, Any] | None) -> TokenVectorsWriter:
        """Open the store for writing from a place on, or from the state of the last `flush`."""
        return TokenVectorsWriter(self.encoder, self.codec, index, place, state)


@dataclass(frozen=True, slots=True)
class _Part:
    """The documents from a place on.

    Shapes: ends (N, 2), texts (N, 4), windows (C, 3), rows (T, …).
    """

    first: int
    codec: TokenCodec
    ends: FlatFile
    texts: FlatFile
    windows: FlatFile
    rows: MappedFile


class TokenVectorStore:
    """The token vectors of an index's documents by place. Any thread may read.

    Raises: ConfigError naming the file if one is damaged or belongs to another index.
    """

    def __init__(self, folder: Path, index_id: str, *, verify: bool = True) -> None:
        self.manifest = read_store_manifest(folder, _MANIFEST, _FORMAT, index_id)
        name: CodecName = self.manifest["codec"]
        width = self.manifest["width"]
        self._parts: list[_Part] = []
        for part in open_parts(folder, self.manifest, verify=verify):
            vectors, windows = part.facts["vectors"], part.facts["windows"]
            ends = part.array("ends.i64", "<i8", 2 * part.documents, 2)
            if not _rise_to(ends, [vectors, windows]):
                raise damaged(part.folder / "ends.i64", "its places do not fit the other files")
            values = row_values(name, width)
            self._parts.append(
                _Part(
                    part.first,
                    _restored(name, part.facts["parameters"], width),
                    ends,
                    part.array("texts.u32", "<u4", 4 * part.documents, 4),
                    part.array("windows.u32", "<u4", 3 * windows, 3),
                    part.mapped(_rows_file(name), row_type(name), vectors * values, values),
                )
            )
        self._firsts = [part.first for part in self._parts]

    def why_not(self, encodings_version: str, chunking: Chunking) -> str:
        """Explain why a ranker of this version cannot read the store. Empty if it can."""
        return why_other_encodings(self.manifest, encodings_version, chunking)

    def characters(self, place: int) -> int:
        """Return the length of a document's text. Raises: KeyError if no document has the place."""
        part, number = self._find(place)
        return int(part.texts.at(number)[0])

    def read(self, place: int, within: Chunking | None = None) -> EncodedDocument:
        """Return a document's windows; of a long one, those that end `within` a ranker's limit.

        Their vectors are rows of the mapped file.
        Raises: KeyError if no document has the place; Unavailable if the file was truncated.
        """
        part, number = self._find(place)
        (first, first_window), (end, end_window) = _bounds(part, number)
        characters, *cut, tokens = part.texts.at(number).tolist()
        if within is not None and tokens > within.max_document_tokens:
            kept, read = windows_within(within, end_window - first_window)
            end_window = first_window + kept
            windows = part.windows[first_window:end_window]
            cut = [characters - int(windows[-1, 2]), cut[1] + tokens - read]
        else:
            windows = part.windows[first_window:end_window]
        window_ends = windows[:, 0].astype(np.int64)
        if (np.diff(window_ends, prepend=0) < 0).any() or window_ends[-1] > end - first:
            raise ConfigError(f"the stored windows of the document at place {place} are damaged")
        rows = torch.from_numpy(part.rows[first : first + int(window_ends[-1])])
        features = Features(rows, windows=Windows(window_ends, part.codec))
        return EncodedDocument(features, windows[:, 1:3], Cut(*cut))

    def _find(self, place: int) -> tuple[_Part, int]:
        at = bisect.bisect_right(self._firsts, place) - 1
        if at < 0 or place - self._firsts[at] >= len(self._parts[at].ends):
            raise KeyError(place)
        return self._parts[at], place - self._firsts[at]


def _rise_to(ends: FlatFile, last: list[int]) -> bool:
    """Whether each document has a window and no fewer than 0 vectors, and the last ends here.

    Reads blocks: arrays of a million documents would leave the heap large.
    """
    before: NDArray[np.int64] = np.zeros((1, 2), dtype=np.int64)
    for first in range(0, len(ends), _BLOCK):
        block = ends[first : first + _BLOCK]
        if (np.diff(block, axis=0, prepend=before) < (0, 1)).any():
            return False
        before = block[-1:]
    return bool(before[0].tolist() == last)


def _bounds(part: _Part, number: int) -> tuple[list[int], list[int]]:
    """Find the first vector and window of a document, and one past the last of each."""
    if number:
        first, end = part.ends[number - 1 : number + 1].tolist()
        return first, end
    end = part.ends.at(0).tolist()
    return [0, 0], end
