"""The answers of the methods, and the order of their calls to the engine and the first stage."""

import math
from typing import Any

import grpc
import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.fairness.fair_order import Account, CallPriority
from farrank_rankers.calibration import Calibration
from farrank_rankers.spec import COSINE_CALIBRATION
from support.server_deadline import server_deadline

DOCUMENTS = [
    pb.Document(id=str(n), text=f"the river rises in the mountains {'and goes on ' * n}") for n in range(8)
]


def request(**options: Any) -> pb.RerankRequest:
    return pb.RerankRequest(query="river", documents=DOCUMENTS, options=pb.RerankOptions(**options))


@pytest.mark.parametrize("ranker", ["maxp", "biencoder", "both"])
async def test_an_answer_names_the_ranker_and_what_ran_it(stub: Any, ranker: str) -> None:
    answer = await stub.Rerank(request(ranker=ranker))
    assert (answer.ranker.name, answer.ranker.runtime, answer.ranker.precision) == (ranker, "torch", "fp32")
    assert answer.ranker.version
    assert answer.score_scale == pb.SCORE_SCALE_RAW
    assert {result.id for result in answer.results} == {document.id for document in DOCUMENTS}
    assert answer.timings.total_ns > answer.timings.tokenization_ns > 0


@pytest.mark.parametrize(
    ("ranker", "calibration", "of_chunks"),
    [
        ("maxp", Calibration(), Calibration()),
        ("biencoder", COSINE_CALIBRATION, COSINE_CALIBRATION),
        # The mean of its members' scales, and the evidence of the first.
        ("both", Calibration((1 + 12) / 2, -5 / 2), Calibration()),
    ],
)
async def test_sigmoid_scores_keep_the_order_and_lie_between_0_and_1(
    stub: Any, ranker: str, calibration: Calibration, of_chunks: Calibration
) -> None:
    raw = await stub.Rerank(request(ranker=ranker, return_chunk_scores=True))
    answer = await stub.Rerank(
        request(ranker=ranker, return_chunk_scores=True, score_scale=pb.SCORE_SCALE_SIGMOID)
    )
    assert answer.score_scale == pb.SCORE_SCALE_SIGMOID
    assert [result.id for result in answer.results] == [result.id for result in raw.results]
    for found, plain in zip(answer.results, raw.results, strict=True):
        logit = calibration.scale * plain.score + calibration.offset
        assert found.score == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5)
        # The evidence of both members is a chunk's own score.
        wanted = [of_chunks.apply(chunk.score) for chunk in plain.chunks]
        assert [chunk.score for chunk in found.chunks] == pytest.approx(wanted, abs=1e-5)


async def test_the_default_ranker_is_listed_first(stub: Any) -> None:
    answer = await stub.ListRankers(pb.ListRankersRequest())
    rankers = {ranker.name: ranker for ranker in answer.rankers}
    assert next(iter(rankers)) == "maxp"
    assert set(rankers) == {"maxp", "biencoder", "both"}
    assert (rankers["maxp"].family, rankers["maxp"].precision) == ("maxp", "fp32")
    described = [(index.name, index.default_k, index.kind, [*index.members]) for index in answer.indexes]
    assert described == [("things", 20, "bm25", [])]
    assert answer.limits == pb.Limits(
        max_documents=1000,
        max_document_bytes=16 * 2**20,
        max_query_bytes=256 * 2**10,
        max_request_bytes=24 * 2**20,
        max_queued_tokens=4_000_000,
        max_query_terms=1024,
        max_document_tokens=2**24,
    )
    assert {field.name for field, _ in answer.limits.ListFields()} == set(pb.Limits.DESCRIPTOR.fields_by_name)


async def test_without_k_a_cpu_reranks_20(stub: Any, first_stage: Any) -> None:
    await stub.SearchAndRerank(pb.SearchAndRerankRequest(query="river"))
    await stub.SearchAndRerank(pb.SearchAndRerankRequest(query="river", index="things", k=1))
    assert first_stage.asked == [("river", 20), ("river", 1)]


async def test_candidates_bring_their_ids_places_and_first_scores(stub: Any) -> None:
    answer = await stub.SearchAndRerank(
        pb.SearchAndRerankRequest(query="river", options=pb.RerankOptions(return_texts=True))
    )
    assert answer.index == "things"
    found = {(each.id, each.index, each.first_stage_score, each.text) for each in answer.results}
    assert found == {("rhine", 0, 3.0, "the river Rhine"), ("sea", 1, 2.0, "a river reaches the sea")}
    for each in answer.results:
        assert [*each.first_stage_scores] == [
            pb.FirstStageScore(index="things", score=each.first_stage_score)
        ]
    assert answer.timings.total_ns > answer.timings.first_stage_ns > 0
    direct = await stub.Rerank(
        pb.RerankRequest(
            query="river",
            documents=[
                pb.Document(id="rhine", text="the river Rhine"),
                pb.Document(id="sea", text="a river reaches the sea"),
            ],
        )
    )
    assert [each.id for each in direct.results] == [each.id for each in answer.results]
    assert [each.score for each in direct.results] == [each.score for each in answer.results]
    assert (direct.ranker, direct.score_scale) == (answer.ranker, answer.score_scale)


async def test_nothing_found_is_an_empty_answer_of_the_same_form(stub: Any) -> None:
    answer = await stub.SearchAndRerank(pb.SearchAndRerankRequest(query="zzz"))
    assert not answer.results
    assert (answer.ranker.name, answer.index, answer.score_scale) == ("maxp", "things", pb.SCORE_SCALE_RAW)
    assert answer.timings.first_stage_ns > 0


@pytest.mark.parametrize("priority", [pb.PRIORITY_INTERACTIVE, pb.PRIORITY_BATCH])
async def test_the_first_stage_is_asked_for_the_account_of_the_caller(
    stub: Any, first_stage: Any, priority: Any
) -> None:
    options = pb.RerankOptions(priority=priority)
    await stub.SearchAndRerank(pb.SearchAndRerankRequest(query="river", options=options))
    named = [pb.Document(id="rhine", index="things")]
    await stub.Rerank(pb.RerankRequest(query="river", documents=named, options=options))
    expected = CallPriority.BATCH if priority == pb.PRIORITY_BATCH else CallPriority.INTERACTIVE
    assert first_stage.accounts == [Account("ipv4:127.0.0.1", priority=expected)] * 2


async def test_what_cannot_be_reranked_in_time_is_not_searched_for(stub: Any, first_stage: Any) -> None:
    # This is seconds of work on any machine.
    first_stage.mean_characters = 20_000
    asked = pb.SearchAndRerankRequest(query="river", k=1000)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.SearchAndRerank(asked, metadata=(server_deadline(2),))
    assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "lower k (or send fewer documents) or max_chunks" in (refused.value.details() or "")
    assert first_stage.asked == []


@pytest.mark.parametrize("name", ["none", "", "things "])
async def test_an_unknown_ranker_or_index_is_not_searched_for(stub: Any, first_stage: Any, name: str) -> None:
    wrong = [pb.SearchAndRerankRequest(query="river", options=pb.RerankOptions(ranker="nobody"))]
    wrong += [pb.SearchAndRerankRequest(query="river", index=name)] if name else []
    for each in wrong:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.SearchAndRerank(each)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert first_stage.asked == []
