"""Files that hold texts by their ids: queries (TSV or JSON lines) and collections (JSON lines)."""

from collections.abc import Collection, Sequence
from pathlib import Path

from farrank_trec.errors import InputError
from farrank_trec.lines import check_id, json_object, named_string, numbered_lines

_QUERY_IDS = ("qid", "query_id", "id", "_id")
TEXT_FIELDS = ("text", "query", "title")


def read_queries(path: Path, field: str = "") -> dict[str, str]:
    """Read queries by their ids, in the order of the file; what a name with `.jsonl` holds is JSON.

    `field` says which key of a JSON line is the query (TREC topics have a title and a description); without
    it, it is the first of text, query and title.
    Raises: InputError naming file and line if a line is malformed, or a query_id stands twice.
    """
    as_json = ".jsonl" in path.suffixes
    if field and not as_json:
        raise InputError(f"{path}: only a .jsonl file has fields to choose {field!r} from")
    queries: dict[str, str] = {}
    for where, line in numbered_lines(path):
        query_id, text = _json_query(where, line, field) if as_json else _tsv_query(where, line)
        check_id(where, "query_id", query_id)
        if query_id in queries:
            raise InputError(f"{where}: query_id {query_id!r} stands twice")
        # Topics are wrapped at the width of a page; a line end says nothing.
        text = " ".join(text.split())
        if not text:
            raise InputError(f"{where}: the text of query {query_id!r} is empty")
        queries[query_id] = text
    if not queries:
        raise InputError(f"{path}: there are no queries; expected query_id<TAB>text or JSON lines")
    return queries


def _tsv_query(where: str, line: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:
        raise InputError(
            f"{where}: {len(columns)} columns; queries have 2, divided by one tab: query_id text"
        )
    return columns[0], columns[1]


def _json_query(where: str, line: str, field: str) -> tuple[str, str]:
    fields = json_object(where, line)
    return named_string(where, fields, _QUERY_IDS), named_string(
        where, fields, (field,) if field else TEXT_FIELDS
    )


_DOC_IDS = ("id", "docid", "doc_id", "pid", "_id")
_DOC_TEXTS = ("text", "contents", "body")


def read_collection(paths: Sequence[Path], doc_ids: Collection[str]) -> dict[str, str]:
    """Read the texts of these documents, and pass over all others: a collection may outgrow the memory.

    What no file holds is left out of the answer; see `missing_documents`.
    Raises: InputError naming file and line if a line is malformed, or one of the documents stands twice.
    """
    wanted = frozenset(doc_ids)
    texts: dict[str, str] = {}
    for path in paths:
        for where, line in numbered_lines(path):
            fields = json_object(where, line)
            doc_id = named_string(where, fields, _DOC_IDS)
            if doc_id not in wanted:
                continue
            if doc_id in texts:
                raise InputError(f"{where}: document {doc_id!r} stands twice")
            title = named_string(where, fields, ("title",)) if fields.get("title") else ""
            text = named_string(where, fields, _DOC_TEXTS)
            texts[doc_id] = f"{title}\n\n{text}" if title else text
    return texts


def missing_documents(texts: dict[str, str], doc_ids: Collection[str]) -> str:
    """Say how many of the documents have no text, and name the first few; empty if all have one."""
    missing = sorted(set(doc_ids) - texts.keys())
    if not missing:
        return ""
    named = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
    return f"{len(missing):,} of {len(doc_ids):,} candidate documents are not in the collection: {named}"
