"""Calls from a file of JSON lines, with their documents' texts or with ids to look up in a collection."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farrank_loadtest.errors import InputError
from farrank_loadtest.targets.interface import Document
from farrank_loadtest.trec import read_collection
from farrank_loadtest.trec.lines import json_object, named_string, numbered_lines
from farrank_loadtest.workloads.call import Call, Workload


def read_jsonl(path: Path, collection: Sequence[Path] = ()) -> Workload:
    """Read a call from each line: `{"query": …, "documents": [{"id": …, "text": …}, …]}`.

    A document may also be a plain string, its text; or an id without text where `collection` holds it.
    Raises: InputError naming file, line and what is wrong.
    """
    lines = [(where, *_parse(where, line)) for where, line in numbered_lines(path)]
    without_text = {doc_id for _, _, documents in lines for doc_id, text in documents if text is None}
    found = read_collection(collection, without_text) if without_text else {}
    calls = [
        Call(query, tuple(_document(where, doc_id, text, found) for doc_id, text in documents))
        for where, query, documents in lines
    ]
    return Workload(str(path), tuple(calls))


def _parse(where: str, line: str) -> tuple[str, list[tuple[str, str | None]]]:
    fields = json_object(where, line)
    query, documents = named_string(where, fields, ("query",)), fields.get("documents")
    if not query.strip():
        raise InputError(f"{where}: 'query' must not be empty")
    if not isinstance(documents, list) or not documents:
        raise InputError(f"{where}: 'documents' must be a list that is not empty")
    return query, [_id_and_text(f"{where}: documents[{n}]", n, each) for n, each in enumerate(documents)]


def _id_and_text(where: str, place: int, given: Any) -> tuple[str, str | None]:
    if isinstance(given, str):
        return str(place), named_string(where, {"text": given}, ("text",))
    if not isinstance(given, dict):
        raise InputError(f"{where}: must be a string or an object with 'id' and 'text'")
    doc_id = named_string(where, given, ("id",))
    return doc_id, named_string(where, given, ("text",)) if "text" in given else None


def _document(where: str, doc_id: str, text: str | None, found: Mapping[str, str]) -> Document:
    text = found.get(doc_id) if text is None else text
    if text is None:
        raise InputError(f"{where}: document {doc_id!r} has no text, here or in a --collection")
    return Document(doc_id, text)
