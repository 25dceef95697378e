"""The main path over real sockets: every answer equals the ranker's offline scores."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from farrank_cli.spawn import SpawnedServer
from farrank_client import AdaptiveDepth, Client, Document, InvalidArgument, Ranking
from farrank_rankers.family import FAMILIES
from farrank_rankers.files.open import open_ranker

SENTENCES = (
    "the river rises in the mountains",
    "a ship sails to the harbour",
    "bread is baked from flour",
    "nobody reads the manual",
)
QUERY = "where does the river rise"
# KNRM: see tests/rankers/test_zoo.py.
BOUND = {name: family.rounding for name, family in FAMILIES.items()}


def documents(count: int = 12) -> list[Document]:
    """Documents of 0 to some 2,000 tokens."""
    return [
        Document(f"d{n}", " ".join(SENTENCES[(n + i) % 4] for i in range(n * n * 3))) for n in range(count)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_passages_and_cuts_are_those_of_the_ranker_offline(
    client: Client, tiny_rankers: dict[str, Path], family: str
) -> None:
    ranker = open_ranker(tiny_rankers[family])
    wanted = ranker.score(QUERY, [document.text for document in documents()], count_tokens=True)
    ranking = client.rerank(
        QUERY,
        documents(),
        ranker=family,
        depth="all",
        return_chunk_scores=True,
        return_texts=True,
        count_tokens_cut=True,
    )
    assert [r.score for r in ranking.results] == sorted((r.score for r in ranking.results), reverse=True)
    assert ranking.ranker.name == family
    assert ranking.ranker.version == ranker.version
    for result in ranking.results:
        offline = wanted[result.index]
        assert result.id == f"d{result.index}"
        assert result.text == documents()[result.index].text
        assert result.score == pytest.approx(offline.score, abs=BOUND[family])
        assert result.tokens_cut == offline.tokens_cut
        assert [p.score for p in result.chunks] == pytest.approx(offline.chunk_scores, abs=BOUND[family])
        assert [(p.start, p.end) for p in result.chunks] == [(c.start, c.end) for c in offline.chunks]
        if result.index > 0:
            assert result.deciding_passage in result.chunks
            assert result.deciding_passage is not None
            assert result.deciding_passage.score == max(p.score for p in result.chunks)
        assert {p.evidence.name for p in result.chunks} == {ranker.aggregator.evidence.name}


def test_adaptive_depth_finds_a_passage_anywhere(client: Client) -> None:
    needle = "the mouth of the xylophone river"
    texts = [" ".join(SENTENCES[(n + i) % 4] for i in range(900)) for n in range(10)]
    texts[7] += f" {needle}"
    query = "xylophone"
    limited = client.rerank(query, texts, ranker="maxp", depth="all", max_chunks=14)
    assert all(each.chunks_cut > 0 and each.tokens_cut > 0 for each in limited.results)
    assert (limited.usage.rounds, limited.usage.ended_early) == (1, False)
    ranking = client.rerank(
        query, texts, ranker="maxp", depth=AdaptiveDepth(chunks=3), return_chunk_scores=True
    )
    assert (ranking.usage.rounds, ranking.usage.ended_early) == (1, False)
    assert ranking.usage.chunks == 30
    assert {each.round for each in ranking.results} == {1}
    for result in ranking.results:
        assert result.chunks_read == len(result.chunks) < result.chunks_scored
        assert result.chunks_cut == result.tokens_cut == result.characters_cut == 0
        assert result.deciding_passage in result.chunks
        found = [needle in chunk.text_in(texts[result.index]) for chunk in result.chunks]
        assert any(found) == (result.index == 7)


@pytest.mark.parametrize(
    "ranker", ["maxp", "cross-encoder", "parade-attn", "cedr-knrm", "biencoder", "firstp"]
)
def test_a_passage_after_20000_tokens_is_read_by_default(client: Client, ranker: str) -> None:
    needle = "the mouth of the xylophone river"
    text = " ".join(SENTENCES[i % 4] for i in range(5000)) + f" {needle} {SENTENCES[0]}"
    for depth in (None, "all"):
        (result,) = client.rerank(
            "xylophone", [text], ranker=ranker, depth=depth, return_chunk_scores=True, timeout_s=120
        ).results
        if ranker == "firstp":  # its only chunk is the first one, which it says
            assert result.chunks_read == 1
            assert result.chunks_cut > 20_000 / 477
            assert result.tokens_cut > 20_000
        else:
            assert result.chunks_cut == result.tokens_cut == result.characters_cut == 0
            assert any(needle in chunk.text_in(text) for chunk in result.chunks)


@pytest.mark.parametrize("ranker", ["firstp", "longp", "biencoder", "parade-transf-pretr-lateir"])
def test_rankers_that_cannot_be_adaptive_say_so(client: Client, ranker: str) -> None:
    with pytest.raises(InvalidArgument, match=f"options.depth: ranker {ranker} cannot be adaptive: family "):
        client.rerank(QUERY, documents(3), ranker=ranker, depth="adaptive")
    assert client.rerank(QUERY, documents(3), ranker=ranker, depth="all").usage.rounds == 1


def test_a_score_does_not_depend_on_other_callers(client: Client) -> None:
    families = list(FAMILIES)
    alone = {family: scores(client.rerank(QUERY, documents(8), ranker=family)) for family in FAMILIES}

    def ask(number: int) -> tuple[str, dict[int, float]]:
        family = families[number % len(families)]
        return family, scores(client.rerank(QUERY, documents(8), ranker=family, timeout_s=120))

    with ThreadPoolExecutor(10) as callers:
        for family, together in callers.map(ask, range(30)):
            assert together == pytest.approx(alone[family], abs=BOUND[family])


def scores(ranking: Ranking) -> dict[int, float]:
    return {result.index: result.score for result in ranking.results}


def spans(ranking: Ranking) -> dict[int, list[tuple[int, int]]]:
    return {result.index: [(p.start, p.end) for p in result.chunks] for result in ranking.results}


def test_top_n_and_plain_answers(client: Client) -> None:
    whole = client.rerank(QUERY, documents(), ranker="maxp")
    best = client.rerank(QUERY, documents(), ranker="maxp", top_n=3)
    assert [r.id for r in best.results] == [r.id for r in whole.results[:3]]
    assert all(r.text is None and r.chunks == () for r in best.results)
    assert len(client.rerank(QUERY, documents(), top_n=1000).results) == 12


def test_equal_documents_keep_the_order_of_the_request(client: Client) -> None:
    ranking = client.rerank(QUERY, ["the same words"] * 9, ranker="maxp")
    assert [result.index for result in ranking.results] == list(range(9))


def test_max_chunks_limits_what_is_read_and_says_what_was_cut(client: Client) -> None:
    document = documents()[-1]
    options: dict[str, Any] = {"ranker": "maxp", "depth": "all", "return_chunk_scores": True}
    whole = client.rerank(QUERY, [document], **options)
    short = client.rerank(QUERY, [document], **options, max_chunks=2)
    read, all_of_it = short.results[0].chunks, whole.results[0].chunks
    assert [p.score for p in read] == pytest.approx([p.score for p in all_of_it[:2]], abs=1e-5)
    assert short.results[0].tokens_cut > whole.results[0].tokens_cut == 0
    assert short.results[0].chunks_cut > 0
    assert short.usage.chunks == 2


def test_usage_and_timings_add_up(client: Client) -> None:
    ranking = client.rerank(QUERY, documents(), ranker="avgp")
    usage, timings = ranking.usage, ranking.timings
    assert usage.pairs == usage.chunks >= 12
    assert usage.padded_tokens >= usage.tokens > 0
    assert usage.cached_chunks == 0
    assert 0 < timings.tokenization_ns <= timings.total_ns
    assert 0 < timings.inference_ns <= timings.total_ns
    assert 0 < timings.aggregation_ns <= timings.total_ns


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.plan == "dual"])
def test_a_dual_ranker_encodes_the_same_documents_once(
    client: Client,
    metric: Callable[..., float],
    until: Callable[[Callable[[], bool]], None],
    family: str,
) -> None:
    fresh = [Document(d.id, "seen for the first time " + d.text) for d in documents()]

    def encoded_chunks() -> float:
        return metric("farrank_encoded_chunks_total", ranker=family)

    before = encoded_chunks()
    first = client.rerank(QUERY, fresh, ranker=family, return_chunk_scores=True)
    # The device's thread counts its work when the answer is already on its way.
    until(lambda: encoded_chunks() >= before + first.usage.chunks)
    encoded = encoded_chunks()
    again = client.rerank(QUERY, fresh, ranker=family, return_chunk_scores=True)
    other = client.rerank("who bakes bread", fresh, ranker=family)
    assert encoded_chunks() == encoded
    assert metric("farrank_cache_hits_total", ranker=family) >= 2 * first.usage.chunks
    assert again.usage.cached_chunks == again.usage.chunks == first.usage.chunks
    assert again.usage.pairs == other.usage.pairs == 1  # the query
    assert scores(again) == pytest.approx(scores(first), abs=1e-5)
    assert spans(again) == spans(first)
    assert [r.tokens_cut for r in again.results] == [r.tokens_cut for r in first.results]


def test_search_and_rerank_finds_in_the_index_and_keeps_both_orders(client: Client) -> None:
    ranking = client.search_and_rerank("sea", index="things", ranker="maxp", return_texts=True)
    assert {result.id for result in ranking.results} == {"rivers", "ships"}
    assert sorted(result.index for result in ranking.results) == [0, 1]
    first_stage = sorted(ranking.results, key=lambda result: result.index)
    assert first_stage[0].first_stage_score is not None
    assert first_stage[0].first_stage_score >= (first_stage[1].first_stage_score or 0)
    assert all(result.text and "sea" in result.text for result in ranking.results)
    assert ranking.timings.first_stage_ns > 0
    direct = client.rerank("sea", [Document(r.id, r.text or "") for r in first_stage], ranker="maxp")
    assert [r.id for r in direct.results] == [r.id for r in ranking.results]


def test_list_rankers_says_what_is_served(client: Client, tiny_rankers: dict[str, Path]) -> None:
    catalog = client.rankers()
    assert [ranker.name for ranker in catalog.rankers] == list(tiny_rankers)
    maxp = next(ranker for ranker in catalog.rankers if ranker.name == "maxp")
    assert (maxp.family, maxp.window, maxp.stride, maxp.max_document_tokens) == ("maxp", 150, 100, 2**24)
    assert (maxp.runtime, maxp.device, maxp.precision) == ("torch", "cpu", "fp32")
    assert [(index.name, index.documents) for index in catalog.indexes] == [("things", 3), ("same", 3)]
    assert catalog.indexes[0].first_stage == "bm25(k1=0.9,b=0.4)"
    assert catalog.limits.max_documents == 40


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_answers_in_both_versions(server: SpawnedServer, version: str) -> None:
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="farrank.v1.RerankService"),
    ]
    with grpc.insecure_channel(server.address) as channel:
        ask = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        services, found = ask(iter(requests), timeout=60)
    assert "farrank.v1.RerankService" in {each.name for each in services.list_services_response.service}
    file = descriptor_pb2.FileDescriptorProto.FromString(
        found.file_descriptor_response.file_descriptor_proto[0]
    )
    assert file.package == "farrank.v1"


def test_health_and_reflection_work_without_our_files(server: SpawnedServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "farrank.v1.RerankService"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "farrank.v1.RerankService" in database.get_services()
        described = database.FindFileContainingSymbol("farrank.v1.RerankService")
        assert [method.name for method in described.service[0].method] == [
            "Rerank",
            "SearchAndRerank",
            "ListRankers",
        ]
