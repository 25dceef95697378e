"""Writes a Lucene index: texts, expansions, impacts and chunk vectors of documents.

Runs in the indexing process. Documents and chunks have separate indexes; the chunks' index is in a subfolder
of the documents' index. So a search in texts never sees a chunk. Each document and chunk carries its place,
which does not depend on Lucene's numbers.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farrank_lucene.lucene_fields import (
    CONTENTS,
    EXPANDED,
    ID,
    IMPACTS,
    PLACE,
    VECTOR,
    VECTORS,
    WEIGHT_MARK,
    bytes_of,
    java,
)

_BUFFER_MIB = 256.0  # of postings before a segment is written; more would outgrow the heap
_FIELD_OF_READER = "(Ljava/lang/String;Ljava/io/Reader;Lorg/apache/lucene/index/IndexableFieldType;)V"


@dataclass(frozen=True, slots=True)
class WrittenDocument:
    """A document to write. `place` is its place, `first_chunk` the place of its first chunk.

    `expansions` and `impacts` are None if the collection has none. Shapes: vectors (C, H).
    """

    place: int
    doc_id: str
    text: str
    expansions: Sequence[str] | None
    impacts: Mapping[str, int] | None
    first_chunk: int
    vectors: NDArray[np.float32]


class LuceneWriter:
    """Writes one index on several threads, from the place `places` and the chunk `chunks` on.

    Documents in the folder before these places stay; later ones are deleted. Nothing is kept without `commit`
    or `finish`. `before` is the folder of the index that is changed, if any.
    """

    def __init__(self, folder: Path, threads: int, places: int, chunks: int, before: Path | None) -> None:
        self._folder = folder
        self._threads = ThreadPoolExecutor(threads)
        self._most_waiting = 2 * threads
        self._waiting: deque[Future[None]] = deque()
        self.places, self.chunks = places, chunks
        self._fields = _Fields()
        self._text_writer = _open(folder, places)
        self._chunk_writer = _open(folder / VECTORS, chunks) if chunks else None
        # Search the old index and not the written one: a commit before an interruption may hold more
        # documents than the resumed state.
        self._before = _searcher(before) if before is not None else None

    def present(self, doc_ids: Iterable[str]) -> list[str]:
        """Return those of the documents that the index held before the change."""
        if self._before is None:
            return []
        return [each for each in doc_ids if self._before.count(_found_by(each))]

    def delete(self, doc_ids: Iterable[str]) -> None:
        """Delete documents and their chunks, but none that are added afterwards. Raises: JavaException."""
        for doc_id in doc_ids:
            for writer in self._writers():
                writer.deleteDocuments(_found_by(doc_id))

    def add(self, documents: Sequence[WrittenDocument]) -> None:
        """Pass documents to a thread. Raises: JavaException, also for an earlier failure."""
        self.places += len(documents)
        self.chunks += sum(len(each.vectors) for each in documents)
        if self.chunks and self._chunk_writer is None:
            self._chunk_writer = _open(self._folder / VECTORS, 0)
        # Make the documents on this thread: pyjnius mixes up constructors called from several threads.
        self._submit(self._text_writer, map(self._fields.of_document, documents))
        if self._chunk_writer is not None:
            self._submit(
                self._chunk_writer, (made for each in documents for made in self._fields.of_chunks(each))
            )
        while len(self._waiting) > self._most_waiting:
            self._waiting.popleft().result()

    def commit(self) -> None:
        """Wait until all documents are added, and commit them. Raises: JavaException."""
        self._wait()
        for writer in self._writers():
            writer.commit()

    def finish(self, *, merge: bool) -> tuple[int, int]:
        """Complete the index. Returns the numbers of documents and chunks that it holds.

        With `merge` it becomes one segment, because every search pays for each segment. Raises:
        JavaException.
        """
        self._wait()
        held = []
        for folder, writer in (
            (self._folder, self._text_writer),
            (self._folder / VECTORS, self._chunk_writer),
        ):
            if writer is None:
                held.append(0)
                continue
            if merge:
                writer.forceMerge(1)
            writer.commit()
            writer.close()
            reader = java("index.DirectoryReader").open(_directory(folder))
            held.append(int(reader.numDocs()))
            reader.close()
        return held[0], held[1]

    def _writers(self) -> list[Any]:
        return [each for each in (self._chunk_writer, self._text_writer) if each is not None]

    def _wait(self) -> None:
        while self._waiting:
            self._waiting.popleft().result()

    def _submit(self, writer: Any, documents: Iterable[Any]) -> None:
        made = java("java.util.ArrayList")()
        for each in documents:
            made.add(each)
        self._waiting.append(self._threads.submit(_add, writer, made))


def _add(writer: Any, documents: Any) -> None:
    # Look the method up here: pyjnius binds a method for all objects of its class at once, so that an earlier
    # lookup could be bound to another writer's `addDocuments`.
    writer.addDocuments(documents)


class _Fields:
    """Makes Lucene documents."""

    def __init__(self) -> None:
        options = java("index.IndexOptions").DOCS_AND_FREQS
        # RM3 expands queries from the term vectors of this field.
        self._text = _field_type(options, term_vectors=True)
        self._expanded = _field_type(options)
        self._impacts = _field_type(options, norms=False)

    def of_document(self, each: WrittenDocument) -> Any:
        """Store the text, and index the fields that rank: the text, the text with expansions, the weights."""
        made = self._placed(each.doc_id, each.place)
        made.add(java("document.StoredField")(CONTENTS, each.text))
        made.add(_indexed(CONTENTS, each.text, self._text))
        if each.expansions is not None:
            made.add(_indexed(EXPANDED, "\n".join([each.text, *each.expansions]), self._expanded))
        if each.impacts:
            weighted = " ".join(f"{token}{WEIGHT_MARK}{weight}" for token, weight in each.impacts.items())
            made.add(_indexed(IMPACTS, weighted, self._impacts))
        return made

    def of_chunks(self, document: WrittenDocument) -> Iterator[Any]:
        """Yield a Lucene document with the vector of each chunk, under its document's id."""
        # For unit vectors the order is that of the cosine, so one kind of index serves all vectors.
        similarity = java("index.VectorSimilarityFunction").MAXIMUM_INNER_PRODUCT
        for place, vector in enumerate(document.vectors, start=document.first_chunk):
            made = self._placed(document.doc_id, place)
            made.add(java("document.KnnFloatVectorField")(VECTOR, vector.tolist(), similarity))
            yield made

    def _placed(self, doc_id: str, place: int) -> Any:
        made = java("document.Document")()
        made.add(java("document.StringField")(ID, doc_id, java("document.Field$Store").YES))
        # Equal scores are ordered by this field.
        made.add(java("document.BinaryDocValuesField")(ID, bytes_of(doc_id)))
        made.add(java("document.NumericDocValuesField")(PLACE, place))
        return made


def _field_type(options: Any, *, term_vectors: bool = False, norms: bool = True) -> Any:
    made = java("document.FieldType")()
    made.setIndexOptions(options)
    made.setStoreTermVectors(term_vectors)
    made.setOmitNorms(not norms)
    made.freeze()
    return made


def _indexed(name: str, text: str, kind: Any) -> Any:
    return java("document.Field")(name, java("java.io.StringReader")(text), kind, signature=_FIELD_OF_READER)


def _open(folder: Path, kept: int) -> Any:
    """Open a writer on the committed index, of which only the first `kept` documents stay."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = java("index.IndexWriterConfig")(_analyzer())
    settings.setRAMBufferSizeMB(_BUFFER_MIB)
    # Otherwise closing after a failure would commit the documents added before it.
    settings.setCommitOnClose(False)
    modes = java("index.IndexWriterConfig$OpenMode")
    settings.setOpenMode(modes.CREATE_OR_APPEND if kept else modes.CREATE)
    writer = java("index.IndexWriter")(_directory(folder), settings)
    if kept:
        beyond = java("document.NumericDocValuesField").newSlowRangeQuery(PLACE, kept, 2**62)
        writer.deleteDocuments(beyond)
    return writer


def _found_by(doc_id: str) -> Any:
    return java("search.TermQuery")(java("index.Term")(ID, bytes_of(doc_id)))


def _searcher(folder: Path) -> Any:
    reader = java("index.DirectoryReader").open(_directory(folder))
    return java("search.IndexSearcher")(reader, signature="(Lorg/apache/lucene/index/IndexReader;)V")


def _directory(folder: Path) -> Any:
    return java("store.FSDirectory").open(java("java.nio.file.Paths").get(str(folder)))


def _analyzer() -> Any:
    """Analyze texts as Anserini does, and weights verbatim."""
    options = java("java.util.HashMap")
    mark = options()
    mark.put("delimiter", WEIGHT_MARK)
    weights = java("analysis.custom.CustomAnalyzer").builder().withTokenizer("whitespace", options())
    fields = options()
    fields.put(IMPACTS, weights.addTokenFilter("delimitedTermFrequency", mark).build())
    english = java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
    return java("analysis.miscellaneous.PerFieldAnalyzerWrapper")(english, fields)
