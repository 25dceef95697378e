"""Adds the sentences that a call asks for to its answer."""

import time
from collections.abc import Mapping, Sequence

from farrank.v1 import rerank_pb2 as pb
from farrank_rankers.evidence.choosing import ReadDocument, chosen
from farrank_server.engine.call import InputDocument, RerankCall, RerankResult, ScoredDocument
from farrank_server.engine.engine import Engine
from farrank_server.service.answers import Response
from farrank_server.service.documents import texts_of_results
from farrank_server.service.indexes import OpenIndexes

# Documents whose sentences are returned if the call does not say how many.
DEFAULT_DOCUMENTS = 10


async def add_evidence(
    engine: Engine,
    opened: OpenIndexes,
    call: RerankCall,
    result: RerankResult,
    named: Mapping[int, tuple[str, str]],
    options: pb.RerankOptions,
    response: Response,
) -> None:
    """Add the sentences of the best documents.

    `named` has the index and id of each document that may lack its text, by its number.
    Raises: the errors of `texts_of_results`; DeadlineExceeded.
    """
    started_s = time.monotonic()
    with call.record.stage("evidence", documents=len(response.results)):
        best = response.results[: options.evidence_documents or DEFAULT_DOCUMENTS]
        texts = await _texts(opened, call, best, call.documents, named)
        read = [
            ReadDocument(text, _best_chunks(result.documents[each.index]))
            for each, text in zip(best, texts, strict=True)
        ]
        found = await engine.beside(call, chosen(call.query, read))
    for each, sentences in zip(best, found, strict=True):
        each.sentences.extend(pb.Sentence(**sentence._asdict()) for sentence in sentences)
    response.timings.evidence_ns = round((time.monotonic() - started_s) * 1e9)


async def _texts(
    opened: OpenIndexes,
    call: RerankCall,
    results: Sequence[pb.Result],
    documents: Sequence[InputDocument],
    named: Mapping[int, tuple[str, str]],
) -> list[str]:
    """The texts of results, read from their index where the call has none and the answer has none."""
    known = {each.index: each.text for each in results if each.HasField("text")}
    for each in results:
        text = documents[each.index].text
        if text is not None:
            known[each.index] = text
    missing = [each.index for each in results if each.index not in known]
    if missing:
        known |= await texts_of_results(opened, named, missing, call)
    return [known[each.index] for each in results]


def _best_chunks(document: ScoredDocument) -> list[tuple[int, int]]:
    """The characters of a document's chunks, the best chunk first; of equal ones the earlier."""
    order = sorted(range(len(document.chunk_scores)), key=lambda chunk: -document.chunk_scores[chunk])
    spans = document.spans[order].tolist()
    return [(start, end) for start, end in spans]
