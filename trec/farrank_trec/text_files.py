"""Files of texts by id: queries (TSV or JSON lines) and collections (JSON lines).

Collections come in several forms, so a document's id and text have several names: `id`, `docid`, `doc_id`,
`pid` or `_id`, and `text`, `contents` or `body`. A data set of ir_datasets may take a file's place.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farrank_trec.data_sets import document_lines, is_data_set, query_texts
from farrank_trec.errors import InputError
from farrank_trec.lines import (
    check_id,
    decoded,
    is_blank,
    json_object,
    named_string,
    numbered_lines,
    raw_lines,
)
from farrank_trec.ranking_fields import MAX_ID_BYTES, NO_FIELDS, RankingFields, RankingFieldsReader

DOC_IDS = ("id", "docid", "doc_id", "pid", "_id")
DOC_TEXTS = ("text", "contents", "body")
QUERY_IDS = ("qid", "query_id", "id", "_id")
QUERY_TEXTS = ("text", "query", "title")


def read_queries(path: Path, field: str = "") -> dict[str, str]:
    """Read queries by id, in the order of the file; a file name with `.jsonl` means JSON lines.

    `field` names the key of a JSON line that holds the query (TREC topics have a title and a description).
    The default is the first of text, query and title.
    Raises: InputError naming file and line if a line is malformed, or a query_id appears twice.
    """
    queries: dict[str, str] = {}
    found = query_texts(path, field) if is_data_set(path) else _queries_of_file(path, field)
    for where, query_id, text in found:
        check_id(where, "query_id", query_id)
        if query_id in queries:
            raise InputError(f"{where}: query_id {query_id!r} appears twice")
        # Topics are wrapped at the width of a page; line ends have no meaning.
        text = " ".join(text.split())
        if is_blank(text):
            raise InputError(f"{where}: the text of query {query_id!r} is empty")
        queries[query_id] = text
    if not queries:
        raise InputError(f"{path}: there are no queries; expected query_id<TAB>text or JSON lines")
    return queries


def _queries_of_file(path: Path, field: str) -> Iterator[tuple[str, str, str]]:
    as_json = ".jsonl" in path.suffixes
    if field and not as_json:
        raise InputError(f"{path}: field {field!r} needs a .jsonl file")
    for where, line in numbered_lines(path):
        if as_json:
            values = json_object(where, line)
            query_id = named_string(where, values, QUERY_IDS)
            yield where, query_id, named_string(where, values, (field,) if field else QUERY_TEXTS)
        elif line.count("\t") == 1:
            query_id, text = line.split("\t")
            yield where, query_id, text
        else:
            columns = line.count("\t") + 1
            raise InputError(f"{where}: {columns} columns; queries have 2, separated by a tab: query_id text")


def write_queries(path: Path, queries: Mapping[str, str]) -> None:
    """Write queries as `query_id<TAB>text` that `read_queries` reads back; white space becomes one space.

    Raises: InputError if an id does not fit in its column, or the file cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8", newline="\n") as out:
            for query_id, text in queries.items():
                out.write(f"{check_id(str(path), 'query_id', query_id)}\t{' '.join(text.split())}\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class CollectionDocument:
    """A document of a collection; its text begins with its title. `where` is its `FILE:LINE`.

    `line`, without the line end, is at byte `offset` of the unpacked `source`. `ranking` holds the fields for
    first stages if they were read.
    """

    where: str
    doc_id: str
    text: str
    source: Path | str = field(default="", compare=False)
    offset: int = field(default=0, compare=False)
    line: bytes = field(default=b"", compare=False, repr=False)
    ranking: RankingFields = NO_FIELDS


class DocumentKeys:
    """The keys of a document's id, text and title in a JSON line; `fields` renames them."""

    def __init__(self, fields: Mapping[str, str] | None = None) -> None:
        named = fields or {}
        self._ids = (named["id"],) if "id" in named else DOC_IDS
        self._texts = (named["text"],) if "text" in named else DOC_TEXTS
        self._title = named.get("title", "title")

    def doc_id(self, where: str, values: dict[str, Any]) -> str:
        """Read only the id of a line's object. Raises: InputError naming the place if it has none."""
        return named_string(where, values, self._ids)

    def read(self, where: str, line: bytes, wanted: Collection[str] | None = None) -> tuple[str, str] | None:
        """Read a line's id, and its text with the title first; None if the id is not wanted.

        Raises: InputError naming the place if the line is malformed; an unwanted line's other values are not
            checked.
        """
        return self.read_values(where, json_object(where, decoded(where, line)), wanted)

    def read_values(
        self, where: str, values: dict[str, Any], wanted: Collection[str] | None = None
    ) -> tuple[str, str] | None:
        """Read like `read`, from a line's object."""
        doc_id = self.doc_id(where, values)
        if wanted is not None and doc_id not in wanted:
            return None
        check_id(where, "the id", doc_id)
        text = named_string(where, values, self._texts)
        if values.get(self._title) is not None and (title := named_string(where, values, (self._title,))):
            text = f"{title}\n\n{text}"
        return doc_id, text


def read_documents(
    sources: Sequence[Path | str],
    *,
    wanted: Collection[str] | None = None,
    fields: Mapping[str, str] | None = None,
    on_bad: Callable[[InputError], None] | None = None,
    with_ranking: bool = False,
) -> Iterator[CollectionDocument]:
    """Read collections one after the other, a line at a time; `-` is standard input.

    With `wanted`, documents with other ids are skipped without a check of their other values: a collection
    may exceed the memory. `fields` renames the keys: `{"id": "docid", "text": "contents", "title":
    "headline"}`. `on_bad` gets the error of each bad line, which is then skipped. `with_ranking` also reads
    the fields for first stages, which are otherwise ignored.
    Raises: InputError naming file and line if a line is malformed or an id appears twice, unless `on_bad` is
        given; InputError if a file cannot be opened or is damaged.
    """
    keys = DocumentKeys(fields)
    chosen = wanted if wanted is None or isinstance(wanted, Set) else frozenset(wanted)
    ranking = RankingFieldsReader() if with_ranking else None
    seen: dict[str, str] = {}
    for source in sources:
        for where, offset, line in document_lines(source) if is_data_set(source) else raw_lines(source):
            try:
                values = json_object(where, decoded(where, line))
                found = keys.read_values(where, values, chosen)
                if found is None:
                    continue
                doc_id, text = found
                if doc_id in seen:
                    raise InputError(f"{where}: the id {doc_id!r} is already used at {seen[doc_id]}")
                if with_ranking and (size := len(doc_id.encode())) > MAX_ID_BYTES:
                    raise InputError(
                        f"{where}: the id has {size:,} bytes; an index takes at most {MAX_ID_BYTES:,}"
                    )
                ranks_by = ranking.read(where, values) if ranking else NO_FIELDS
            except InputError as error:
                if on_bad is None:
                    raise
                on_bad(error)
                continue
            seen[doc_id] = where
            yield CollectionDocument(where, doc_id, text, source, offset, line, ranks_by)


def read_collection(paths: Sequence[Path], doc_ids: Collection[str]) -> dict[str, str]:
    """Read the texts of these documents, by id.

    Documents that no file holds are left out; see `missing_documents`.
    Raises: InputError as `read_documents`.
    """
    return {each.doc_id: each.text for each in read_documents(paths, wanted=doc_ids)}


def missing_documents(
    found: Collection[str], doc_ids: Collection[str], what: str = "candidate documents"
) -> str:
    """Report the number of documents not found, and the first few ids; empty if all were found."""
    missing = sorted(set(doc_ids).difference(found))
    if not missing:
        return ""
    named = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
    return f"{len(missing):,} of {len(doc_ids):,} {what} are not in the collection: {named}"
