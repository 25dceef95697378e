"""Calls from files: JSON lines of calls, or a first stage's run with queries and collection."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farrank_loadtest.targets import CandidateDocument
from farrank_loadtest.workloads import Call, Workload
from farrank_trec import Run, check_queries, missing_documents, read_collection, read_queries, read_run
from farrank_trec.errors import InputError
from farrank_trec.lines import json_object, named_string, numbered_lines


def read_jsonl(path: Path, collection: Sequence[Path] = ()) -> Workload:
    """Read a call from each line: `{"query": …, "documents": [{"id": …, "text": …}, …]}`.

    A document may also be a plain string, its text; or an id without text if `collection` has the text.
    Raises: InputError naming file, line and problem.
    """
    lines = [(where, *_parse(where, line)) for where, line in numbered_lines(path)]
    without_text = {doc_id for _, _, documents in lines for doc_id, text in documents if text is None}
    found = read_collection(collection, without_text) if without_text else {}
    calls = [
        Call(query, tuple(_with_text(where, doc_id, text, found) for doc_id, text in documents))
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


def _with_text(where: str, doc_id: str, text: str | None, found: Mapping[str, str]) -> CandidateDocument:
    text = found.get(doc_id) if text is None else text
    if text is None:
        raise InputError(f"{where}: document {doc_id!r} has no text, here or in a --collection")
    return CandidateDocument(doc_id, text)


def read_candidates(run: Path, queries: Path, collection: Sequence[Path], depth: int) -> Workload:
    """Take the first `depth` documents of every query of a TREC run.

    Raises: InputError naming the malformed file and line, the queries without text, or the documents missing
    in the collection.
    """
    ranked = {query_id: documents[:depth] for query_id, documents in read_run(run).items()}
    calls, missing = calls_of_run(ranked, read_queries(queries), collection)
    if missing:
        raise InputError(f"{run}: {missing}")
    return Workload(str(run), tuple(calls))


def calls_of_run(run: Run, queries: Mapping[str, str], collection: Sequence[Path]) -> tuple[list[Call], str]:
    """Join a run's queries and documents with their texts, one call for each query.

    The second value names the documents that no collection holds, and is empty if there are none. Calls leave
    them out; a query without any document left has no call.
    Raises: InputError if a query has no text.
    """
    check_queries(run, queries)
    doc_ids = {each.doc_id for ranked in run.values() for each in ranked}
    texts = read_collection(collection, doc_ids)
    calls = []
    for query_id, ranked in run.items():
        documents = [
            CandidateDocument(each.doc_id, texts[each.doc_id]) for each in ranked if each.doc_id in texts
        ]
        if documents:
            calls.append(Call(queries[query_id], tuple(documents), query_id))
    return calls, missing_documents(texts, doc_ids)
