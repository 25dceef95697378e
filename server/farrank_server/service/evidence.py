"""Adds the sentences, and the packed context, that a call asks for to its answer."""

import time
from collections.abc import Mapping, Sequence

from farrank.v1 import rerank_pb2 as pb
from farrank_rankers.evidence.choosing import ReadDocument, Span, chosen
from farrank_rankers.evidence.packing import (
    COMPETING,
    RankedDocument,
    competing,
    packed,
    standard_scores,
)
from farrank_rankers.family import EvidenceKind
from farrank_server.engine.call import InputDocument, RerankCall, RerankResult, ScoredDocument
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.ranker import Scorer
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
    """Add the sentences of the best documents, and the context packed from all results, where asked for.

    `named` has the index and id of each document that may lack its text, by its number.
    Raises: the errors of `texts_of_results`; DeadlineExceeded.
    """
    started_s = time.monotonic()
    with call.record.stage("evidence", documents=len(response.results)):
        if options.evidence == pb.EVIDENCE_UNIT_SENTENCES:
            best = response.results[: options.evidence_documents or DEFAULT_DOCUMENTS]
            texts = await _texts(opened, call, best, call.documents, named)
            read = [
                ReadDocument(text, _best_chunks(result.documents[each.index]))
                for each, text in zip(best, texts, strict=True)
            ]
            found = await engine.beside(call, chosen(call.query, read))
            for each, text, sentences in zip(best, texts, found, strict=True):
                each.sentences.extend(
                    pb.Sentence(text=text[its.start : its.end], **its._asdict()) for its in sentences
                )
        if options.context_tokens:
            await _add_context(engine, opened, call, result, named, options.context_tokens, response)
    response.timings.evidence_ns = round((time.monotonic() - started_s) * 1e9)


async def _add_context(
    engine: Engine,
    opened: OpenIndexes,
    call: RerankCall,
    result: RerankResult,
    named: Mapping[int, tuple[str, str]],
    budget: int,
    response: Response,
) -> None:
    """Pack the evidence of all results into a budget of tokens of the call's (first) ranker."""
    scorer = engine.scorer(call.ranker)
    ranker = scorer.members[0]
    worths = _worths(scorer, [result.documents[each.index] for each in response.results])
    places = competing(worths, COMPETING * budget / ranker.density.per_character)
    having = [number for number, its in enumerate(places) if its]
    results = [response.results[number] for number in having]
    texts = await _texts(opened, call, results, call.documents, named)
    documents = [
        RankedDocument(text, [worths[number][place] for place in places[number]])
        for number, text in zip(having, texts, strict=True)
    ]
    pieces = await engine.beside(call, packed(call.query, documents, budget, ranker.reader.tokenizer.count))
    for each, text, its in zip(results, texts, pieces, strict=True):
        for piece in its:
            own = text[piece.start : piece.end]
            response.context.add(id=each.id, index=each.index, text=own, **piece._asdict())


def _worths(scorer: Scorer, documents: Sequence[ScoredDocument]) -> list[list[tuple[Span, float]]]:
    """The worth of each chunk in the ranking of documents.

    It is the chunk's own score, if it has one. Attention and leave-one-out compare only within a document:
    there it is the standard score of the document among all, plus that of the chunk in the document.
    """
    chunks = [document.chunk_scores for document in documents]
    if scorer.evidence != EvidenceKind.CHUNK_SCORE:
        of_documents = standard_scores([document.score for document in documents])
        chunks = [
            tuple(own + each for each in standard_scores(its))
            for own, its in zip(of_documents, chunks, strict=True)
        ]
    return [
        [((start, end), worth) for (start, end), worth in zip(document.spans.tolist(), its, strict=True)]
        for document, its in zip(documents, chunks, strict=True)
    ]


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
