"""Calls from a file of JSON lines, with their documents' texts or with ids to look up in a collection."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from farrank_loadtest.errors import InputError
from farrank_loadtest.targets.interface import Document
from farrank_loadtest.workloads.call import Call, Workload

# Gives the texts of the ids that a file names without text.
LookUp = Callable[[Iterable[str]], Mapping[str, str]]


def read_jsonl(path: Path, look_up: LookUp | None = None) -> Workload:
    """Read a call from each line: `{"query": …, "documents": [{"id": …, "text": …}, …]}`.

    A document may also be a plain string, its text; or an id without text where `look_up` gives that.
    Raises: InputError naming file, line and what is wrong; OSError if the file cannot be read.
    """
    lines: list[tuple[str, str, list[tuple[str, str | None]]]] = []
    # Lines as bytes: what is no UTF-8 is then reported with its line like all else.
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}:{number}"
                lines.append((where, *_parse(where, line)))
    nameless = {doc_id for _, _, documents in lines for doc_id, text in documents if text is None}
    found = look_up(nameless) if look_up is not None and nameless else {}
    calls = [
        Call(query, tuple(_document(where, doc_id, text, found) for doc_id, text in documents))
        for where, query, documents in lines
    ]
    return Workload(str(path), tuple(calls))


def _parse(where: str, line: bytes) -> tuple[str, list[tuple[str, str | None]]]:
    try:
        given = json.loads(line)
    except ValueError as error:
        # UnicodeDecodeError, too.
        raise InputError(f"{where}: not JSON in UTF-8 ({error})") from error
    if not isinstance(given, dict):
        raise InputError(f"{where}: must be an object with query and documents")
    query, documents = given.get("query"), given.get("documents")
    if not isinstance(query, str) or not query.strip():
        raise InputError(f"{where}: query must be a string that is not empty")
    if not isinstance(documents, list) or not documents:
        raise InputError(f"{where}: documents must be a list that is not empty")
    return query, [_id_and_text(f"{where}: documents[{n}]", n, each) for n, each in enumerate(documents)]


def _id_and_text(where: str, place: int, given: Any) -> tuple[str, str | None]:
    if isinstance(given, str):
        return str(place), given
    if not isinstance(given, dict):
        raise InputError(f"{where} must be a string or an object with id and text")
    doc_id, text = given.get("id"), given.get("text")
    if not isinstance(doc_id, str) or not doc_id:
        raise InputError(f"{where}: id must be a string that is not empty")
    if text is not None and not isinstance(text, str):
        raise InputError(f"{where}: text must be a string")
    return doc_id, text


def _document(where: str, doc_id: str, text: str | None, found: Mapping[str, str]) -> Document:
    text = found.get(doc_id) if text is None else text
    if text is None:
        raise InputError(f"{where}: document {doc_id!r} has no text, here or in a --collection")
    return Document(doc_id, text)
