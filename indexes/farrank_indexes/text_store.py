"""The texts of an index's documents and the bounds of their sentences, stored with it for evidence.

    INDEX/texts/texts.json       the manifest
    INDEX/texts/part-<place>/    the documents from this place on; an index that grows gets more parts
        ends.i64         the ends of each document's bytes and sentences, counted from the part's start
        texts.utf8       the texts
        sentences.u32    for each sentence: first character, one past the last

Lucene holds the texts, too, but its process needs 8 ms to send ten of them, half the time of a call that
ranks by stored vectors. Finding the sentences of their best chunks would take another 4 ms.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farrank_indexes.parts import MappedFile, PartWriter, damaged, open_parts, read_store_manifest
from farrank_rankers.evidence.choosing import DocumentText
from farrank_rankers.evidence.sentences import sentences
from farrank_settings.errors import ConfigError

FOLDER = "texts"
_MANIFEST = "texts.json"
_FORMAT = 1
_FILES = ("ends.i64", "texts.utf8", "sentences.u32")


class TextStoreWriter:
    """Writes documents' texts and sentences in the order of their places."""

    def __init__(self, index: Path, place: int, state: Mapping[str, Any] | None) -> None:
        first = place if state is None else state["first"]
        self._part = PartWriter(index / FOLDER, _MANIFEST, {"format": _FORMAT}, first, _FILES, state)
        self._ends = [0, 0] if state is None else list(state["ends"])

    def add(self, texts: Sequence[str]) -> None:
        """Write the next documents. Half a surrogate pair becomes a question mark, as in Lucene."""
        for text in texts:
            encoded = text.encode(errors="replace")
            bounds = np.array(sentences(encoded.decode()), dtype="<u4").reshape(-1, 2)
            self._ends = [self._ends[0] + len(encoded), self._ends[1] + len(bounds)]
            self._part.write("texts.utf8", np.frombuffer(encoded, dtype=np.uint8))
            self._part.write("sentences.u32", bounds)
            self._part.write("ends.i64", np.array(self._ends, dtype="<i8"))
            self._part.documents += 1

    def flush(self) -> dict[str, Any]:
        """Write everything to disk. Returns the state that is needed to resume from here."""
        return {**self._part.flush(), "ends": self._ends}

    def finish(self, index_id: str) -> None:
        """Complete the part and write the manifest, for the index of this id."""
        self._part.finish(index_id)

    def close(self) -> None:
        """Close its files."""
        self._part.close()


@dataclass(frozen=True, slots=True)
class TextStoreBuilder:
    """The store of texts, for the index builder."""

    key: str = FOLDER
    vectors_version: str | None = None

    def open(self, index: Path, place: int, state: Mapping[str, Any] | None) -> TextStoreWriter:
        """Open the store for writing from a place on, or from the state of the last `flush`."""
        return TextStoreWriter(index, place, state)


@dataclass(frozen=True, slots=True)
class _Part:
    """The documents from a place on. Shapes: ends (N, 2), texts (bytes,), sentences (S, 2)."""

    first: int
    ends: MappedFile
    texts: MappedFile
    sentences: MappedFile


class TextStore:
    """The texts of an index's documents by place. Any thread may read.

    Raises: ConfigError naming the file if one is damaged or belongs to another index.
    """

    def __init__(self, folder: Path, index_id: str, *, verify: bool = True) -> None:
        self._folder = folder
        self.manifest = read_store_manifest(folder, _MANIFEST, _FORMAT, index_id)
        self._parts: list[_Part] = []
        for part in open_parts(folder, self.manifest, verify=verify):
            ends = part.mapped("ends.i64", "<i8", 2 * part.documents, 2)
            texts = part.mapped("texts.utf8", "u1", None, 1)
            bounds = part.mapped("sentences.u32", "<u4", None, 2)
            places = ends[:]
            if (np.diff(places, axis=0, prepend=0) < 0).any() or [*places[-1]] != [len(texts), len(bounds)]:
                raise damaged(part.folder / "ends.i64", "its places do not fit the other files")
            self._parts.append(_Part(part.first, ends, texts, bounds))
        self._firsts = [part.first for part in self._parts]

    def read(self, place: int) -> DocumentText:
        """Return a document's text with the bounds of its sentences.

        Raises: KeyError if no document has the place; ConfigError if the text is damaged.
        """
        at = bisect.bisect_right(self._firsts, place) - 1
        if at < 0 or place - self._firsts[at] >= len(self._parts[at].ends):
            raise KeyError(place)
        part, number = self._parts[at], place - self._firsts[at]
        ends = part.ends[max(0, number - 1) : number + 1].tolist()
        (first, first_sentence), (end, end_sentence) = ends if number else ([0, 0], *ends)
        try:
            text = str(part.texts[first:end].data, "utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self._folder}: the document at place {place} is damaged") from error
        # A copy: the rows of a file that is truncated later must not be used.
        return DocumentText(text, part.sentences[first_sentence:end_sentence].copy())
