"""Queries: TSV `query_id<TAB>text`, or JSONL with an id and a text."""

from pathlib import Path

from farrank_loadtest.errors import InputError
from farrank_loadtest.trec.lines import check_id, json_object, named_string, numbered_lines

_IDS = ("qid", "query_id", "id", "_id")
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
        query_id, text = _json(where, line, field) if as_json else _tsv(where, line)
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


def _tsv(where: str, line: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:
        raise InputError(
            f"{where}: {len(columns)} columns; queries have 2, divided by one tab: query_id text"
        )
    return columns[0], columns[1]


def _json(where: str, line: str, field: str) -> tuple[str, str]:
    fields = json_object(where, line)
    return named_string(where, fields, _IDS), named_string(where, fields, (field,) if field else TEXT_FIELDS)
