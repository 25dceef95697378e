"""Both endpoints give the same ranking to every request, or refuse it with the same message."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_server.config.schema import LimitsConfig, ListenConfig, ServerConfig
from farrank_server.listen import GrpcListener
from farrank_server.metrics import Endpoint
from farrank_server.service.guard import Guard
from farrank_server.service.methods import RerankService
from farrank_server.service.receiving import ReceivingBudget
from farrank_server.service.unread import UnreadAnswers
from farrank_server.wire.handlers import handlers
from support.http_endpoint import METHODS, Opened, opened_endpoint
from support.memory_first_stage import in_memory

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Small, so that generated requests sometimes exceed them.
LIMITS = LimitsConfig(max_documents=5, max_document_bytes=600, max_query_bytes=60, max_request_bytes=1500)

WORDS = st.sampled_from(
    ("river", "sea", "größe", "\U0001f600", "e\u0301", "mountain", "\n", "\x00", "<b>", '"')
)
TEXTS = st.one_of(st.lists(WORDS, max_size=120).map(" ".join), st.text(max_size=40))
REQUESTS = st.builds(
    pb.RerankRequest,
    query=st.one_of(st.sampled_from(("river", "", " ", "größe sea")), st.text(max_size=20)),
    documents=st.lists(TEXTS.map(lambda text: pb.Document(text=text)), max_size=6),
    options=st.builds(
        pb.RerankOptions,
        ranker=st.sampled_from(("", "maxp", "biencoder", "both", "nobody")),
        top_n=st.sampled_from((0, 1, 3, -1)),
        max_chunks=st.sampled_from((0, 1, 2)),
        return_texts=st.booleans(),
        return_chunk_scores=st.booleans(),
        score_scale=st.sampled_from((0, 1, 2)),
        evidence=st.sampled_from((0, 1, 2)),
        context_tokens=st.sampled_from((0, 0, 5, 100)),
    ),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoints(tiny_rankers: dict[str, Path]) -> AsyncIterator[tuple[Any, Opened]]:
    async with opened_endpoint(tiny_rankers, limits=LIMITS) as http:
        config = ServerConfig(limits=LIMITS)
        service = RerankService(config, http.engine, await in_memory(http.bench), http.bench.metrics)
        guard = Guard(Endpoint.GRPC, http.bench.metrics, service.rankers.keys(), "maxp")
        listener = GrpcListener(ListenConfig(port=0), config.limits)
        await listener.open(
            handlers(
                service,
                guard,
                LIMITS,
                UnreadAnswers(LIMITS, http.bench.metrics),
                ReceivingBudget(LIMITS, http.bench.metrics),
            )
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{listener.port}") as channel:
            yield rerank_pb2_grpc.RerankServiceStub(channel), http  # type: ignore[no-untyped-call]
        await listener.close(0)


async def through_grpc(stub: Any, request: pb.RerankRequest) -> pb.RerankResponse | grpc.aio.AioRpcError:
    try:
        answer: pb.RerankResponse = await stub.Rerank(request)
    except grpc.aio.AioRpcError as error:
        return error
    return answer


@settings(max_examples=60)
@given(request_=REQUESTS)
async def test_connect_and_grpc_say_the_same(
    endpoints: tuple[Any, Opened], request_: pb.RerankRequest
) -> None:
    stub, http = endpoints
    status, said = await http.post(f"{METHODS}Rerank", json_format.MessageToDict(request_))
    wanted = await through_grpc(stub, request_)
    if status == 413:
        # JSON takes more bytes than protobuf.
        return
    if isinstance(wanted, grpc.aio.AioRpcError):
        assert (said["code"].upper(), said["message"]) == (wanted.code().name, wanted.details())
        return
    assert status == 200
    found = json_format.ParseDict(said, pb.RerankResponse())
    # The other inputs of a batch change a score's last digit, and times are not part of the answer.
    for one, other in zip(found.results, wanted.results, strict=True):
        assert one.score == pytest.approx(other.score, abs=2e-6)
        assert one.text == other.text
        assert len(one.chunks) == len(other.chunks)
    if all(
        abs(a.score - b.score) > 1e-5 for a in wanted.results for b in wanted.results if a.index < b.index
    ):
        assert [each.index for each in found.results] == [each.index for each in wanted.results]


@settings(max_examples=30)
@given(request_=REQUESTS)
async def test_a_dialect_and_grpc_rank_the_same(
    endpoints: tuple[Any, Opened], request_: pb.RerankRequest
) -> None:
    stub, http = endpoints
    options = request_.options
    asked = pb.RerankRequest(
        query=request_.query,
        documents=request_.documents,
        options=pb.RerankOptions(
            ranker=options.ranker, max_chunks=options.max_chunks, score_scale=pb.SCORE_SCALE_SIGMOID
        ),
    )
    body = {
        "query": asked.query,
        "documents": [each.text for each in asked.documents],
        "model": options.ranker,
        "max_chunks_per_doc": options.max_chunks or None,
    }
    status, said = await http.post("/v2/rerank", body)
    wanted = await through_grpc(stub, asked)
    if status == 413:
        return
    if isinstance(wanted, grpc.aio.AioRpcError):
        # If there are two mistakes, either may be reported.
        assert status == 400 or (status == 404 and options.ranker == "nobody")
        return
    assert status == 200, said
    scores = {each["index"]: each["relevance_score"] for each in said["results"]}
    assert scores == {each.index: pytest.approx(each.score, abs=2e-6) for each in wanted.results}
    assert all(0 <= score <= 1 for score in scores.values())
