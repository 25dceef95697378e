"""A small real server that scores by counting words, for tests of commands."""

from __future__ import annotations

from typing import Any

import grpc

from farrank.v1 import rerank_pb2, rerank_pb2_grpc

# Of a query that begins with a word of four letters: one token of a document, and a special token.
MATCHES = [
    rerank_pb2.TokenMatch(query_end=4, start=7, end=11, similarity=0.75),
    rerank_pb2.TokenMatch(query_end=4, similarity=0.25),
]
STORED = {"d1": "nothing here\nat all", "d2": "the \x1b[31mKäse is\there"}


def _sentence(at: int, request: Any) -> list[rerank_pb2.Sentence]:
    if request.options.evidence != rerank_pb2.EVIDENCE_UNIT_SENTENCES:
        return []
    return [rerank_pb2.Sentence(start=at, end=at + len(request.query), score=0.5, text=request.query)]


class WordCounter(rerank_pb2_grpc.RerankServiceServicer):
    """Scores a document by the occurrences of the query in it. A query `!CODE` fails with that code."""

    requests: list[Any]

    def __init__(self) -> None:
        self.requests = []

    def _rank(
        self, request: Any, documents: list[tuple[str, str]], context: grpc.ServicerContext
    ) -> dict[str, Any]:
        self.requests.append(request)
        if request.query.startswith("!"):
            context.abort(grpc.StatusCode[request.query[1:]], "told to\nfail")
        # Any adaptive depth is read in two rounds here, and time ends those with a time budget.
        depth = request.options.depth
        rounds = 2 * (depth.mode == rerank_pb2.DEPTH_MODE_ADAPTIVE)
        results = []
        for place, (doc_id, text) in enumerate(documents):
            count, at = text.count(request.query), text.find(request.query)
            passage = rerank_pb2.Passage(
                start=max(at, 0), end=len(text), score=count, evidence=rerank_pb2.EVIDENCE_CHUNK_SCORE
            )
            results.append(
                rerank_pb2.Result(
                    id=doc_id,
                    index=place,
                    score=count,
                    deciding_passage=passage if text else None,
                    chunks=[passage, passage] if request.options.return_chunk_scores else [],
                    token_matches=MATCHES if request.options.return_token_matches and count else [],
                    sentences=_sentence(at, request) if count else [],
                    text=text if request.options.return_texts else None,
                    characters=len(text),
                    tokens_cut=len(text) // 100,
                    characters_cut=len(text) // 100 * 5,
                    chunks_read=2,
                    chunks_scored=43 if rounds else 0,
                    chunks_cut=len(text) // 200,
                    round=rounds,
                )
            )
        results.sort(key=lambda result: -result.score)
        return {
            "results": results,
            "query_tokens_cut": 4 if len(request.query) > 20 else 0,
            "context": [
                rerank_pb2.ContextPiece(
                    id=each.id, index=each.index, start=4, end=9, score=0.5, text="a\x1bb c"
                )
                for each in results[: 1 if request.options.context_tokens else 0]
            ],
            "usage": rerank_pb2.Usage(
                chunks=len(documents), rounds=rounds or 1, ended_early=depth.HasField("milliseconds")
            ),
            "timings": rerank_pb2.Timings(total_ns=250_000_000),
            "ranker": rerank_pb2.RankerVersion(name="counter", version="v1"),
        }

    def Rerank(self, request: Any, context: grpc.ServicerContext) -> rerank_pb2.RerankResponse:
        documents = [(each.id, each.text) for each in request.documents]
        return rerank_pb2.RerankResponse(**self._rank(request, documents, context))

    def SearchAndRerank(
        self, request: Any, context: grpc.ServicerContext
    ) -> rerank_pb2.SearchAndRerankResponse:
        found = list(STORED.items()) if request.query != "nowhere" else []
        return rerank_pb2.SearchAndRerankResponse(index="stored", **self._rank(request, found, context))

    def ListRankers(self, request: Any, context: grpc.ServicerContext) -> rerank_pb2.ListRankersResponse:
        return rerank_pb2.ListRankersResponse(
            rankers=[
                rerank_pb2.RankerInfo(
                    name="counter",
                    version="v1",
                    window=256,
                    stride=128,
                    depth=rerank_pb2.Depth(mode=rerank_pb2.DEPTH_MODE_ADAPTIVE, chunks=2),
                    runtime_reason="counted by hand",
                    parity=rerank_pb2.Parity(
                        max_difference=0.02, mean_difference=0.003, kendall_tau=0.98765, top10_overlap=0.9
                    ),
                )
            ],
            indexes=[
                rerank_pb2.IndexInfo(
                    name="stored", documents=2, first_stage="bm25(k1=0.9,b=0.4)", default_k=20, kind="bm25"
                ),
                rerank_pb2.IndexInfo(
                    name="joined",
                    documents=2,
                    first_stage="rrf(k=60)",
                    kind="fusion",
                    members=["stored", "x"],
                ),
            ],
            limits=rerank_pb2.Limits(max_documents=1000),
        )
