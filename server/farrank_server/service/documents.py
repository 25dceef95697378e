"""The documents of an index in a call: found or looked up there, with their texts where needed."""

import time
from collections.abc import Mapping, Sequence

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import Gone, InvalidArgument
from farrank_first_stage import Candidate
from farrank_first_stage.fusion import gather_or_cancel
from farrank_rankers.evidence.choosing import DocumentText
from farrank_server.engine.call import InputDocument, RerankCall
from farrank_server.engine.loaded.ranker import Scorer
from farrank_server.engine.tokenization import Steps
from farrank_server.service.indexes import OpenIndexes

# Limit on the unknown ids that an error names.
_NAMED = 10


async def of_candidates(
    opened: OpenIndexes, index: str, candidates: Sequence[Candidate], scorer: Scorer, call: RerankCall
) -> list[InputDocument]:
    """Make documents of a search's candidates, without texts if the data stored with the index suffices.

    Raises: Gone if a document without a place is no longer in the index; the errors of `FirstStages.texts`.
    """
    sources = opened.sources(index)
    suffices = sources is not None and sources.suffice(scorer.members, call.max_chunks)
    texts: Mapping[str, str] = {}
    if suffices and (missing := [each.doc_id for each in candidates if each.place is None]):
        read = await opened.first_stages.texts(
            index, missing, call.deadline_s - time.monotonic(), call=call.record
        )
        texts = dict(zip(missing, read, strict=True))
    documents = []
    for each in candidates:
        if each.place is None or sources is None:
            text = texts.get(each.doc_id, each.text)
            documents.append(InputDocument(len(text), text))
        elif suffices:
            documents.append(InputDocument(sources.stores.length(each.place), None, sources, each.place))
        else:
            documents.append(InputDocument(len(each.text), each.text, sources, each.place))
    return documents


async def of_ids(
    opened: OpenIndexes, asked: Mapping[int, tuple[str, str]], scorer: Scorer, call: RerankCall
) -> dict[int, InputDocument]:
    """Look documents up by index and id. `asked` and the result have their numbers in the request as keys.

    Raises: InvalidArgument naming those that their index does not have; the errors of `FirstStages.texts`.
    """
    by_index: dict[str, dict[int, str]] = {}
    for number, (index, doc_id) in asked.items():
        by_index.setdefault(index, {})[number] = doc_id
    found = await gather_or_cancel(
        _of_index(opened, index, its, scorer, call) for index, its in by_index.items()
    )
    return {number: document for documents in found for number, document in documents.items()}


async def _of_index(
    opened: OpenIndexes, index: str, asked: Mapping[int, str], scorer: Scorer, call: RerankCall
) -> dict[int, InputDocument]:
    stages, sources = opened.first_stages, opened.sources(index)
    doc_ids = list(asked.values())
    places: list[int | None] = [None] * len(doc_ids)
    if sources is not None:
        places = await stages.locate(index, doc_ids, call.deadline_s - time.monotonic(), call=call.record)
    suffices = sources is not None and sources.suffice(scorer.members, call.max_chunks)
    needed = [doc_id for doc_id, place in zip(doc_ids, places, strict=True) if not suffices or place is None]
    texts: Mapping[str, str] = {}
    if needed:
        try:
            read = await stages.texts(index, needed, call.deadline_s - time.monotonic(), call=call.record)
        except Gone as error:
            raise _unknown(index, asked, error) from None
        texts = dict(zip(needed, read, strict=True))
    documents = {}
    for (number, doc_id), place in zip(asked.items(), places, strict=True):
        text = texts.get(doc_id)
        if sources is not None and place is not None:
            length = len(text) if text is not None else sources.stores.length(place)
            documents[number] = InputDocument(length, text, sources, place)
        else:
            assert text is not None, "read, or refused"
            documents[number] = InputDocument(len(text), text)
    return documents


def _unknown(index: str, asked: Mapping[int, str], error: Gone) -> InvalidArgument:
    unknown = set(error.doc_ids)
    named = [f"documents[{number}] {doc_id[:100]!r}" for number, doc_id in asked.items() if doc_id in unknown]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return InvalidArgument(f"documents: index {index} has no {', '.join(named[:_NAMED])}{more}")


async def reading_texts(
    opened: OpenIndexes,
    call: RerankCall,
    results: Sequence[pb.Result],
    named: Mapping[int, tuple[str, str]],
) -> Steps[list[DocumentText]]:
    """Prepare to read the texts of results: those stored with their index, and those that the call has.

    Others are read from Lucene at once. Raises: Gone; the errors of `FirstStages.texts`.
    """
    documents = [call.documents[each.index] for each in results]
    texts = [
        None if document.stored_texts else each.text if each.HasField("text") else document.text
        for each, document in zip(results, documents, strict=True)
    ]
    missing = [
        each.index
        for each, document, text in zip(results, documents, texts, strict=True)
        if text is None and not document.stored_texts
    ]
    found = await _read_by_id(opened, named, missing, call)

    def steps() -> Steps[list[DocumentText]]:
        read = []
        for each, document, text in zip(results, documents, texts, strict=True):
            if document.stored_texts:
                yield
                read.append(document.stored_texts.read(document.place))
            else:
                read.append(DocumentText(found[each.index] if text is None else text))
        return read

    return steps()


async def _read_by_id(
    opened: OpenIndexes, asked: Mapping[int, tuple[str, str]], numbers: Sequence[int], call: RerankCall
) -> dict[int, str]:
    """Read the texts of documents of indexes by their ids. The result has their numbers as keys."""
    by_index: dict[str, dict[int, str]] = {}
    for number in numbers:
        index, doc_id = asked[number]
        by_index.setdefault(index, {})[number] = doc_id
    texts: dict[int, str] = {}
    for index, its in by_index.items():
        read = await opened.first_stages.texts(
            index, list(its.values()), call.deadline_s - time.monotonic(), call=call.record
        )
        texts.update(zip(its, read, strict=True))
    return texts
