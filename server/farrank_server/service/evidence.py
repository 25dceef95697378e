"""Adds the sentences, and the packed context, that a call asks for to its answer."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from farrank.v1 import rerank_pb2 as pb
from farrank_rankers.evidence.choosing import CHUNKS, DocumentText, ReadDocument, ScoredSpan, Span, chosen
from farrank_rankers.evidence.matching import QueryTerms
from farrank_rankers.evidence.packing import (
    COMPETING,
    RankedDocument,
    competing,
    packed,
    standard_scores,
)
from farrank_rankers.family import EvidenceKind
from farrank_server.engine.call import RerankCall, RerankResult, ScoredDocument
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.ranker import Scorer
from farrank_server.engine.tokenization import Steps
from farrank_server.service.answers import Response
from farrank_server.service.documents import reading_texts
from farrank_server.service.indexes import OpenIndexes

T = TypeVar("T")

# Documents whose sentences are returned if the call does not say how many.
DEFAULT_DOCUMENTS = 10

# Below this many characters of chunks, choosing sentences takes about as long as two switches between
# threads: a millisecond.
INLINE_CHARACTERS = 50_000


def expect_evidence(call: RerankCall, options: pb.RerankOptions) -> None:
    """Let the engine read the texts of a call's documents early if sentences of all of them are wanted."""
    wanted = options.evidence == pb.EVIDENCE_UNIT_SENTENCES
    if wanted and len(call.documents) <= (options.evidence_documents or DEFAULT_DOCUMENTS):
        call.texts = {}


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
    Raises: the errors of `reading_texts`; DeadlineExceeded.
    """
    started_s = time.monotonic()
    with call.record.stage("evidence", documents=len(response.results)):
        if options.evidence == pb.EVIDENCE_UNIT_SENTENCES:
            best = response.results[: options.evidence_documents or DEFAULT_DOCUMENTS]
            chunks = [_best_chunks(result.documents[each.index]) for each in best]
            characters = sum(end - start for its in chunks for start, end in its)
            if call.texts and call.terms:
                choosing = _sentences(call.terms, [call.texts[each.index] for each in best], chunks)
                is_short = characters < INLINE_CHARACTERS
                found = _at_once(choosing) if is_short else await engine.beside(call, choosing)
            else:
                reading = await reading_texts(opened, call, best, named)
                found = await engine.beside(call, _sentences_of(call.query, reading, chunks))
            for each, sentences in zip(best, found, strict=True):
                for (start, end, score), text in sentences:
                    each.sentences.add(start=start, end=end, score=score, text=text)
        if options.context_tokens:
            await _add_context(engine, opened, call, result, named, options.context_tokens, response)
    response.timings.evidence_ns = round((time.monotonic() - started_s) * 1e9)


def _sentences_of(
    query: str, reading: Steps[list[DocumentText]], chunks: Sequence[Sequence[Span]]
) -> Steps[list[list[tuple[ScoredSpan, str]]]]:
    """Read documents and choose their sentences."""
    read = yield from reading
    terms = QueryTerms(query, [each.text for each in read])
    return (yield from _sentences(terms, read, chunks))


def _sentences(
    terms: QueryTerms, read: Sequence[DocumentText], chunks: Sequence[Sequence[Span]]
) -> Steps[list[list[tuple[ScoredSpan, str]]]]:
    """Choose the sentences of documents, each with its text."""
    found = yield from chosen(terms, [ReadDocument(*each) for each in zip(read, chunks, strict=True)])
    return [_with_texts(*each) for each in zip(read, found, strict=True)]


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
    scorer = engine.scorer_of(call)
    ranker = scorer.members[0]
    worths = _worths(scorer, [result.documents[each.index] for each in response.results])
    places = competing(worths, COMPETING * budget / ranker.density.per_character)
    having = [number for number, its in enumerate(places) if its]
    results = [response.results[number] for number in having]
    reading = await reading_texts(opened, call, results, named)
    chunks = [[worths[number][place] for place in places[number]] for number in having]
    count = ranker.reader.tokenizer.count
    found = await engine.beside(call, _pieces(call.query, reading, chunks, budget, count))
    for each, its in zip(results, found, strict=True):
        for piece, text in its:
            response.context.add(id=each.id, index=each.index, text=text, **piece._asdict())


def _pieces(
    query: str,
    reading: Steps[list[DocumentText]],
    chunks: Sequence[Sequence[tuple[Span, float]]],
    budget: int,
    count: Callable[[str], int],
) -> Steps[list[list[tuple[ScoredSpan, str]]]]:
    """Read documents and pack their evidence, each piece with its text."""
    read = yield from reading
    documents = [RankedDocument(*each) for each in zip(read, chunks, strict=True)]
    found = yield from packed(query, documents, budget, count)
    return [_with_texts(*each) for each in zip(read, found, strict=True)]


def _at_once(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def _with_texts(document: DocumentText, spans: Sequence[ScoredSpan]) -> list[tuple[ScoredSpan, str]]:
    return [(each, document.text[each.start : each.end]) for each in spans]


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


def _best_chunks(document: ScoredDocument) -> list[Span]:
    """The characters of a document's best chunks, the best first; of equal ones the earlier."""
    scores, best = document.chunk_scores, list[int]()
    for score in sorted(scores, reverse=True)[:CHUNKS]:
        equal = best and scores[best[-1]] == score
        best.append(scores.index(score, best[-1] + 1 if equal else 0))
    return [tuple(document.spans[place].tolist()) for place in best]
