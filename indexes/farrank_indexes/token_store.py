"""The tokens of an index's documents, stored with it: the same as tokenizing their texts gives.

    INDEX/tokens/<key>/tokens.json       the manifest
    INDEX/tokens/<key>/part-<place>/     the documents from this place on; an index that grows gets more parts
        ends.i64          the end of each document's tokens, counted in tokens from the part's start
        characters.u32    the length of each text
        tokens.u32        the number of tokens of each text
        ids.u16 or .u32   the tokens; the size of the vocabulary decides the type
        spans.u8          for each token: characters since the end of the previous one, and its own length
        long_at.i64, long.i32   places in `spans` whose value is not within 0 to 254, and these values

Each text is tokenized as a whole and alone: a ranker's chunks are slices of the result. Engines that rerank
from a forward index keep such flat files (FlexNeuART; PLAID, Santhanam et al., CIKM 2022), without the spans.
"""

import bisect
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farrank_indexes.parts import (
    FlatFile,
    PartWriter,
    damaged,
    open_parts,
    read_store_manifest,
    why_too_short,
)
from farrank_rankers.tokenizer import TextTokenizer
from farrank_rankers.tokens import TokenizedText
from farrank_settings.errors import ConfigError

FOLDER = "tokens"
_MANIFEST = "tokens.json"
_FORMAT = 2
_LONG = 255  # in `spans`: the value is in `long`
_ALL_TOKENS = 2**32 - 1


def key_of(tokenizer: TextTokenizer) -> str:
    """Return the folder name of a tokenizer's store within the index."""
    return f"{FOLDER}/{tokenizer.digest[:16]}"


class TokenStoreWriter:
    """Tokenizes documents on all cores and writes their tokens in the order of their places."""

    vectors_version = None

    def __init__(
        self,
        tokenizer: TextTokenizer,
        index: Path,
        place: int,
        state: Mapping[str, Any] | None,
        max_document_tokens: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._most = max_document_tokens or _ALL_TOKENS
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="farrank-tokenizer")
        # Use the largest id instead of the number of ids, because ids may have gaps.
        vocabulary = 1 + max(tokenizer.tokenizer.get_vocab().values())
        self._ids = np.dtype("<u2") if vocabulary <= 2**16 else np.dtype("<u4")
        first = place if state is None else state["first"]
        facts = {
            "format": _FORMAT,
            "tokenizer": tokenizer.digest,
            "tokenizers": version("tokenizers"),
            "vocabulary": vocabulary,
            "ids": self._ids.name,
            "max_document_tokens": self._most,
        }
        names = [*_FILES, _ids_file(self._ids)]
        self._part = PartWriter(index / key_of(tokenizer), _MANIFEST, facts, first, names, state)
        self._tokens = 0 if state is None else state["tokens"]
        self._cut = 0 if state is None else state["cut"]

    def add(self, texts: Sequence[str]) -> None:
        """Tokenize and write the next documents. Raises: ValueError if a text has a lone surrogate."""
        for text, read in zip(texts, self._threads.map(self._read, texts), strict=True):
            self._write(text, read)

    def flush(self) -> dict[str, Any]:
        """Write everything to disk. Returns the state that is needed to resume from here."""
        return {**self._part.flush(), "tokens": self._tokens, "cut": self._cut}

    def finish(self, index_id: str) -> None:
        """Complete the part and write the manifest, for the index of this id."""
        self._part.finish(index_id, tokens=self._tokens, cut=self._cut)

    def close(self) -> None:
        """Close its files and threads."""
        self._threads.shutdown()
        self._part.close()

    def _read(self, text: str) -> TokenizedText:
        return self._tokenizer.read(text, _ALL_TOKENS)

    def _write(self, text: str, read: TokenizedText) -> None:
        # Keep one token beyond the limit: the cut text begins with it.
        kept = slice(min(len(read), self._most + 1))
        ids, starts, ends = read.ids[kept], read.starts[kept], read.ends[kept]
        spans = np.empty(2 * len(ids), dtype=np.int32)
        spans[0::2] = starts
        spans[0::2][1:] -= ends[:-1]
        spans[1::2] = ends - starts
        long = np.flatnonzero((spans < 0) | (spans >= _LONG))
        values = spans[long]
        spans[long] = _LONG
        self._part.write("spans.u8", spans.astype(np.uint8))
        self._part.write("long_at.i64", (long + 2 * self._tokens).astype("<i8"))
        self._part.write("long.i32", values.astype("<i4"))
        self._part.write(_ids_file(self._ids), ids.astype(self._ids))
        self._tokens += len(ids)
        self._cut += len(read) > self._most
        self._part.write("ends.i64", np.array([self._tokens], dtype="<i8"))
        self._part.write("characters.u32", np.array([len(text)], dtype="<u4"))
        self._part.write("tokens.u32", np.array([len(read)], dtype="<u4"))
        self._part.documents += 1


_FILES = ("ends.i64", "characters.u32", "tokens.u32", "spans.u8", "long_at.i64", "long.i32")


def _ids_file(dtype: np.dtype[Any]) -> str:
    return "ids.u16" if dtype.itemsize == 2 else "ids.u32"


@dataclass(frozen=True, slots=True)
class TokenStoreBuilder:
    """The store of one tokenizer, for the index builder, with whole documents or only their beginnings."""

    tokenizer: TextTokenizer
    max_document_tokens: int | None = None
    vectors_version: str | None = None

    @property
    def key(self) -> str:
        """Its folder within the index."""
        return key_of(self.tokenizer)

    def open(self, index: Path, place: int, state: Mapping[str, Any] | None) -> TokenStoreWriter:
        """Open the store for writing from a place on, or from the state of the last `flush`."""
        return TokenStoreWriter(self.tokenizer, index, place, state, self.max_document_tokens)


@dataclass(frozen=True, slots=True)
class _Part:
    """The documents from a place on.

    Shapes: ends, characters, tokens (N,); ids (T,); spans (2T,); long_* (M,).
    """

    first: int
    ends: FlatFile
    characters: FlatFile
    tokens: FlatFile
    ids: FlatFile
    spans: FlatFile
    long_at: NDArray[np.int64]
    long: NDArray[np.int32]


class TokenStore:
    """The tokens of an index's documents by place. Any thread may read.

    Raises: ConfigError naming the file if one is damaged or belongs to another index.
    """

    def __init__(self, folder: Path, index_id: str, *, verify: bool = True) -> None:
        self.manifest = read_store_manifest(folder, _MANIFEST, _FORMAT, index_id)
        ids = np.dtype(self.manifest["ids"])
        self._vocabulary, self._most = (
            int(self.manifest[name]) for name in ("vocabulary", "max_document_tokens")
        )
        self._parts: list[_Part] = []
        for part in open_parts(folder, self.manifest, verify=verify):
            ends = part.array("ends.i64", "<i8")
            opened = _Part(
                part.first,
                ends,
                part.array("characters.u32", "<u4", len(ends)),
                part.array("tokens.u32", "<u4", len(ends)),
                part.array(_ids_file(ids), ids.newbyteorder("<").str, part.facts["tokens"]),
                part.array("spans.u8", "u1", 2 * part.facts["tokens"]),
                # There are few of these, and they are searched: read them completely.
                part.array("long_at.i64", "<i8")[:],
                part.array("long.i32", "<i4")[:],
            )
            places = ends[:]
            whole = len(ends) == part.documents and (not len(ends) or places[-1] == part.facts["tokens"])
            if not whole or (np.diff(places, prepend=0) < 0).any() or len(opened.long) != len(opened.long_at):
                raise damaged(part.folder / "ends.i64", "its places do not fit the other files")
            self._parts.append(opened)
        self._firsts = [part.first for part in self._parts]

    def why_not(self, tokenizer: TextTokenizer, max_document_tokens: int, spaces: str = "") -> str:
        """Explain why the tokens do not fit a tokenizer whose texts follow `spaces`. Empty if they fit.

        The store must hold as many tokens of each document as a ranker with this limit reads.
        """
        if spaces:
            return "they are of bare texts, and the ranker's prompt has a space before a document"
        if self.manifest["tokenizer"] != tokenizer.digest:
            return "the stored tokens are from another tokenizer"
        if self.manifest["tokenizers"] != (here := version("tokenizers")):
            return f"they were stored by tokenizers {self.manifest['tokenizers']}, and {here} is installed"
        return why_too_short(self.manifest, max_document_tokens)

    def characters(self, place: int) -> int:
        """Return the length of a document's text. Raises: KeyError if no document has the place."""
        part, number = self._find(place)
        return int(part.characters.at(number))

    def read(self, place: int, limit: int) -> TokenizedText:
        """Return a document's first `limit` tokens, as tokenizing its text would, and its number of tokens.

        A document that the store has cut has no more tokens than the store's limit.
        Raises: KeyError if no document has the place; ConfigError if the tokens are damaged.
        """
        part, number = self._find(place)
        first, end = map(int, part.ends[number - 1 : number + 1] if number else (0, part.ends.at(number)))
        total = int(part.tokens.at(number))
        kept = min(limit, end - first, self._most)
        # Read one token more if there is one: the cut text begins with it.
        seen = min(kept + 1, end - first)
        spans = part.spans[2 * first : 2 * (first + seen)].astype(np.int32)
        long = slice(*np.searchsorted(part.long_at, (2 * first, 2 * (first + seen))))
        if long.start < long.stop:
            spans[part.long_at[long] - 2 * first] = part.long[long]
        bounds = np.cumsum(spans, dtype=np.int32)
        ids = part.ids[first : first + kept].astype(np.int32)
        if kept and int(ids.max()) >= self._vocabulary:
            raise ConfigError(f"the stored tokens of the document at place {place} are damaged")
        cut = 0 if seen == kept else int(part.characters.at(number)) - int(bounds[2 * kept])
        starts, ends = bounds[0 : 2 * kept : 2], bounds[1 : 2 * kept : 2]
        return TokenizedText(ids, np.ascontiguousarray(starts), np.ascontiguousarray(ends), cut, total)

    def _find(self, place: int) -> tuple[_Part, int]:
        at = bisect.bisect_right(self._firsts, place) - 1
        if at < 0 or place - self._firsts[at] >= len(self._parts[at].ends):
            raise KeyError(place)
        return self._parts[at], place - self._firsts[at]
