"""What is sent to be reranked: a query of a first-stage run, and the texts of its candidates."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farrank_loadtest.errors import InputError
from farrank_loadtest.targets import Document
from farrank_loadtest.trec import Run, missing_documents, read_collection


@dataclass(frozen=True, slots=True)
class Candidates:
    """One query and its documents, in the first stage's order."""

    query_id: str
    query: str
    documents: tuple[Document, ...]


def load_candidates(
    run: Run, queries: Mapping[str, str], collection: Sequence[Path], *, skip_missing: bool
) -> tuple[list[Candidates], str]:
    """Bring a run's queries and documents together with their texts.

    The second value says which documents are missing, and is empty if none is.
    Raises: InputError if a query has no text, or a document has none and `skip_missing` is off.
    """
    if unknown := [query_id for query_id in run if query_id not in queries]:
        raise InputError(
            f"{len(unknown):,} of {len(run):,} queries of the run have no text in the queries: "
            + ", ".join(unknown[:5])
        )
    doc_ids = {each.doc_id for documents in run.values() for each in documents}
    texts = read_collection(collection, doc_ids)
    missing = missing_documents(texts, doc_ids)
    if missing and not skip_missing:
        files = ", ".join(map(str, collection))
        raise InputError(f"{files}: {missing} (--skip-missing reranks without them)")
    return list(_join(run, queries, texts)), missing


def _join(run: Run, queries: Mapping[str, str], texts: Mapping[str, str]) -> Iterator[Candidates]:
    for query_id, ranked in run.items():
        documents = [Document(each.doc_id, texts[each.doc_id]) for each in ranked if each.doc_id in texts]
        if documents:
            yield Candidates(query_id, queries[query_id], tuple(documents))
