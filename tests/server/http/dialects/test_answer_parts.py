"""Passages whose evidence is not a score of their own, and many warnings."""

from typing import Any

import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank_server.engine.loaded.ranker import LoadedEnsemble
from farrank_server.http.dialects import answer_parts
from farrank_server.http.dialects.answer_parts import MAX_WARNINGS, warnings_of
from farrank_server.http.dialects.dialect_request import DialectRequest, RerankBody, SpansBody

NOBODY = LoadedEnsemble("nobody", ())


def asked(**spans: float) -> DialectRequest:
    body = RerankBody(relevant_spans=SpansBody(**spans))  # type: ignore[arg-type]  # numbers alone
    return DialectRequest(body, NOBODY, "", "", "query", ["text"], ["text"], 0)


def spans_of(request: DialectRequest, result: pb.Result) -> list[dict[str, Any]]:
    return answer_parts.spans_of(request, pb.RerankResponse(results=[result]), result)


def result(score: float, evidence: "pb.Evidence", *chunks: tuple[int, int, float]) -> pb.Result:
    passages = [
        pb.Passage(start=start, end=end, score=each, evidence=evidence) for start, end, each in chunks
    ]
    return pb.Result(score=score, chunks=passages)


@pytest.mark.parametrize("evidence", [pb.EVIDENCE_ATTENTION, pb.EVIDENCE_LEAVE_ONE_OUT])
def test_shares_of_one_score_are_shares_of_the_documents(evidence: "pb.Evidence") -> None:
    told = spans_of(
        asked(threshold=0.0), result(0.8, evidence, (0, 10, 0.125), (10, 20, 0.5), (20, 30, -0.1))
    )
    assert [(each["start"], each["end"]) for each in told] == [(10, 20), (0, 10), (20, 30)]
    assert [each["score"] for each in told] == pytest.approx([0.8, 0.2, 0.0])
    assert len(spans_of(asked(), result(0.8, evidence, (0, 10, 0.125), (10, 20, 0.5), (20, 30, -0.1)))) == 2


def test_a_document_of_which_no_part_is_missed_has_one_passage() -> None:
    told = spans_of(asked(), result(0.8, pb.EVIDENCE_LEAVE_ONE_OUT, (0, 10, -0.3), (10, 20, -0.1)))
    assert [each["start"] for each in told] == [10]
    assert told[0]["score"] == pytest.approx(0.8)


def test_the_better_one_of_overlapping_passages_stays() -> None:
    chunks = ((0, 100, 0.5), (50, 150, 0.9), (100, 200, 0.4), (150, 250, 0.3))
    told = spans_of(asked(), result(0.9, pb.EVIDENCE_CHUNK_SCORE, *chunks))
    assert [(each["start"], each["end"]) for each in told] == [(50, 150), (150, 250)]


def test_a_thousand_cut_documents_are_reported_in_a_few_lines() -> None:
    results = [pb.Result(index=n, tokens_cut=7, characters_cut=30) for n in range(1000)]
    told = warnings_of(pb.RerankResponse(results=results, query_tokens_cut=3))
    assert len(told) == MAX_WARNINGS + 1
    assert told[:2] == ["3 tokens of the query were not read", "7 tokens of document 0 were not read"]
    assert told[-1] == f"tokens of {1001 - MAX_WARNINGS} more documents were not read"


def test_pieces_of_a_context_are_those_of_the_document() -> None:
    request = DialectRequest(RerankBody(context_tokens=9), NOBODY, "", "", "query", ["a", "b"], ["a", "b"], 0)
    pieces = [pb.ContextPiece(index=n, start=n, end=n + 1, score=0.5) for n in (1, 0, 1)]
    answer = pb.RerankResponse(context=pieces)
    assert (
        answer_parts.spans_of(request, answer, pb.Result(index=1))
        == [{"start": 1, "end": 2, "score": 0.5}] * 2
    )
