"""A Lucene index in the search process: opens it, searches it with any query, and reads documents.

pyjnius binds a method when it is looked up, for all objects and threads at once: until the call is made, no
other thread may look up the same method. Until the call returns, only a variable keeps its object alive. So
where several threads run, arguments are computed before a call, and its object has a name: `a.b().c(d())`
becomes three lines.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from farrank_calls.errors import Gone
from farrank_first_stage.lucene_hits import Hit, make_ready, read_hits
from farrank_indexes.index_manifest import MANIFEST, read_manifest
from farrank_lucene.lucene_fields import CONTENTS, ID, PLACE, bytes_of, java
from farrank_settings.errors import ConfigError

# For English prose, with the space after a word. It is rather low, because stop words are characters but not
# terms.
_CHARACTERS_PER_TERM = 7


class Hits(NamedTuple):
    """Hits, best first.

    `texts` is empty if none were requested, `places` if the index has none.
    """

    doc_ids: list[str]
    scores: list[float]
    texts: list[str]
    places: list[int]


class OpenIndex:
    """One index, used by every way to rank in it. Safe to call from several threads.

    Raises: ConfigError if the index cannot be opened, or holds no documents or no texts.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        # The folder may be replaced between reading the manifest and opening the index.
        opened = False
        while not opened:
            self.manifest = read_manifest(Path(path))
            self.reader = open_reader(path)
            opened = read_manifest(Path(path)) == self.manifest
        self.documents = int(self.reader.numDocs())
        if not self.documents:
            raise ConfigError(f"{path}: the Lucene index holds no documents")
        check_count(path, "documents", self.documents, self.manifest.documents if self.manifest else None)
        if _text_of(self._stored(0)) is None:
            raise ConfigError(f"{path}: the Lucene index holds no texts; store them when it is built")
        fields = java("search.SortField")
        kinds = java("search.SortField$Type")
        self._has_places = self.has(PLACE)
        by_place = [fields(PLACE, kinds.LONG)] if self._has_places else []
        # A hit includes its sort values: its id, and its place.
        by_id = [fields(ID, kinds.STRING_VAL), *by_place]
        self._by_id = java("search.Sort")(*by_id)
        self._by_score = java("search.Sort")(fields.FIELD_SCORE, *by_id)
        self._reading = searcher_of(self.reader)
        make_ready()

    def describe(self) -> dict[str, Any]:
        """Return the number of documents, their mean length in characters, and the build of the index."""
        terms = int(self.reader.getSumTotalTermFreq(CONTENTS))
        characters = max(0, terms) * _CHARACTERS_PER_TERM // self.documents
        index_id, generation = (self.manifest.id, self.manifest.generation) if self.manifest else ("", 0)
        held = {"documents": self.documents, "mean_characters": characters}
        return {**held, "id": index_id, "generation": generation}

    def has(self, field: str) -> bool:
        """Whether a document has this field."""
        return java("index.FieldInfos").getMergedFieldInfos(self.reader).fieldInfo(field) is not None

    def search(self, searcher: Any, query: Any, k: int, *, texts: bool) -> Hits:
        """Return at most `k` hits, best first, equals by doc_id."""
        # True adds the scores to the hits.
        hits = list(read_hits(searcher.search(query, k, self._by_score, True)))
        return Hits(
            [hit.doc_id for hit in hits],
            [hit.score for hit in hits],
            [self._text(hit.number) for hit in hits] if texts else [],
            [hit.place for hit in hits] if self._has_places else [],
        )

    def found(self, scores: Mapping[str, float], *, texts: bool) -> Hits:
        """Make hits of documents that were found otherwise, in the order given."""
        held = self.find(list(scores))
        hits = {doc_id: score for doc_id, score in scores.items() if doc_id in held}
        return Hits(
            list(hits),
            list(hits.values()),
            [self._text(held[doc_id].number) for doc_id in hits] if texts else [],
            [held[doc_id].place for doc_id in hits] if self._has_places else [],
        )

    def find(self, doc_ids: Sequence[str]) -> dict[str, Hit]:
        """Look documents up by their ids; documents that the index does not have are left out."""
        wanted = {written(doc_id): doc_id for doc_id in doc_ids}
        if not wanted:
            return {}
        query, count = with_ids(doc_ids), len(wanted)
        found = self._reading.search(query, count, self._by_id)
        return {wanted[hit.doc_id]: hit for hit in read_hits(found)}

    def texts(self, doc_ids: Sequence[str]) -> list[str]:
        """Read the texts of documents by their ids, in the order given. Raises: Gone."""
        held = self.find(doc_ids)
        if unknown := [doc_id for doc_id in doc_ids if doc_id not in held]:
            raise Gone(unknown)
        return [self._text(held[doc_id].number) for doc_id in doc_ids]

    def locate(self, doc_ids: Sequence[str]) -> list[int]:
        """Return each document's place; -1 if the index does not have the document, or has no places."""
        held = self.find(doc_ids)
        return [held[doc_id].place if doc_id in held else -1 for doc_id in doc_ids]

    def _text(self, number: int) -> str:
        return _text_of(self._stored(number)) or ""

    def _stored(self, number: int) -> Any:
        stored = self.reader.storedFields()
        return stored.document(number)


def check_count(path: str, what: str, held: int, recorded: int | None) -> None:
    """Compare Lucene's count with the manifest's, if there is one: files of two indexes may have been mixed.

    Raises: ConfigError.
    """
    if recorded is not None and held != recorded:
        raise ConfigError(
            f"{path}: the Lucene index holds {held} {what}, and {MANIFEST} says {recorded}: they are not of "
            "the same index; restore the whole folder, or index the collection again"
        )


def open_reader(path: str) -> Any:
    """Open a folder. Raises: ConfigError if it holds no Lucene index, or a damaged one."""
    from jnius import JavaException

    try:
        directory = java("store.FSDirectory").open(java("java.nio.file.Paths").get(path))
        return java("index.DirectoryReader").open(directory)
    except JavaException as exc:
        what = str(exc).splitlines()[0]  # the rest is Java's stack
        raise ConfigError(f"{path}: the Lucene index cannot be opened: {what}") from exc


def searcher_of(reader: Any, similarity: Any = None) -> Any:
    """Open a searcher, with a similarity if one is given."""
    searcher = java("search.IndexSearcher")(reader, signature="(Lorg/apache/lucene/index/IndexReader;)V")
    if similarity is not None:
        searcher.setSimilarity(similarity)
    return searcher


def with_ids(doc_ids: Sequence[str]) -> Any:
    """Build a query that finds these documents."""
    ids = java("java.util.ArrayList")()
    for doc_id in doc_ids:
        term = bytes_of(doc_id)
        ids.add(term)
    return java("search.TermInSetQuery")(ID, ids)


def among(query: Any, doc_ids: Sequence[str]) -> Any:
    """Restrict a query to these documents; their scores stay the same."""
    occur = java("search.BooleanClause$Occur")
    only, must_filter, must = with_ids(doc_ids), occur.FILTER, occur.MUST
    both = java("search.BooleanQuery$Builder")()
    both.add(only, must_filter)
    both.add(query, must)
    return both.build()


def written(doc_id: str) -> str:
    """The form of a doc_id in an index: half a surrogate pair, which has no encoding, is a question mark."""
    return doc_id.encode(errors="replace").decode()


def _text_of(document: Any) -> str | None:
    """Read a document's text; indexes of other tools often store the source line instead of the text."""
    text: str | None = document.get(CONTENTS)
    if text is not None:
        return text
    raw: str | None = document.get("raw")
    if raw is None:
        return None
    try:
        source = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    contents = source.get(CONTENTS) if isinstance(source, dict) else None
    return contents if isinstance(contents, str) else raw
