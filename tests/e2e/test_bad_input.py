"""Every input gets a complete ranking or a clear refusal: never INTERNAL, never a hang."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank_cli.spawn import SpawnedServer
from farrank_client import (
    Client,
    DeadlineExceeded,
    Document,
    FarrankError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)

TEXTS = ["a river", "the sea"]


def many(count: int) -> list[str]:
    return [f"document {n}" for n in range(count)]


@pytest.mark.parametrize(
    ("query", "documents", "options", "message"),
    [
        ("", TEXTS, {}, "query: is empty"),
        (" \t\n ", TEXTS, {}, "query: is blank"),
        ("\x01\x02", TEXTS, {}, "query: holds no token"),
        ("x " * 30_000, TEXTS, {}, "query: has 60000 bytes; max_query_bytes is 50000"),
        ("q", [], {}, "documents: is empty"),
        ("q", many(41), {}, "documents: has 41 entries; max_documents is 40"),
        (
            "q",
            ["a", "x" * 11_000_001],
            {},
            r"documents\[1\].text: has 11000001 bytes; max_document_bytes is 1100",
        ),
        ("q", ["x" * 6_500_000] * 2, {}, r"request: has 130\d+ bytes; max_request_bytes is 12000000"),
        ("q", TEXTS, {"top_n": -1}, "options.top_n: is -1"),
        ("q", TEXTS, {"max_chunks": -3}, "options.max_chunks: is -3"),
        (
            "q",
            [Document("a", "x"), Document("b", "y"), Document("a", "z")],
            {},
            r"documents\[2\].id: 'a' stands",
        ),
        (
            "q",
            [Document("", "x"), Document("", "y"), Document("a", "z")],
            {},
            r"documents\[1\].id: '' stands",
        ),
    ],
)
def test_a_wrong_request_names_the_field_the_problem_and_the_limit(
    client: Client, query: str, documents: list[str | Document], options: dict[str, int], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        client.rerank(query, documents, **options)  # type: ignore[arg-type]


def test_more_tokens_than_the_queue_holds_is_the_callers_mistake(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="max_queued_tokens 200000"):
        client.rerank("q", ["the sea " * 20_000] * 40, ranker="biencoder")


def test_a_message_beyond_all_measure_is_refused_by_grpc_itself(client: Client) -> None:
    with pytest.raises(ResourceExhausted):
        client.rerank("q", ["x" * 30_000_000])


def test_an_unknown_ranker_lists_the_known(client: Client) -> None:
    known = ", ".join(sorted(ranker.name for ranker in client.rankers().rankers))
    with pytest.raises(NotFound, match=f"options.ranker: no ranker 'none' here; known are: {known}"):
        client.rerank("q", TEXTS, ranker="none")
    with pytest.raises(NotFound, match="known are: avgp"):
        client.search_and_rerank("sea", index="things", ranker="none")


@pytest.mark.parametrize(("name", "message"), [("none", "no index 'none'"), (None, "is empty, and")])
def test_an_unknown_index_lists_the_known(client: Client, name: str | None, message: str) -> None:
    with pytest.raises(NotFound, match=f"index: {message}.*things, same"):
        client.search_and_rerank("sea", index=name)


@pytest.mark.parametrize("k", [-1, 41])
def test_k_is_within_limits(client: Client, k: int) -> None:
    with pytest.raises(InvalidArgument, match=f"k: is {k}"):
        client.search_and_rerank("sea", index="things", k=k)


def test_a_search_that_finds_nothing_is_an_empty_ranking(client: Client) -> None:
    ranking = client.search_and_rerank("zzzz", index="things")
    assert ranking.results == ()
    assert ranking.timings.first_stage_ns > 0


def test_a_search_for_no_token_is_refused_though_it_finds_nothing_to_rank(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="query: holds no token that ranker maxp can read"):
        client.search_and_rerank("\u200b", index="things", ranker="maxp")


def test_a_past_deadline(client: Client) -> None:
    with pytest.raises(DeadlineExceeded):
        client.rerank("q", TEXTS, timeout_s=1e-6)


@pytest.mark.parametrize("family", ["avgp", "biencoder", "firstp", "maxp", "sump"])
@pytest.mark.parametrize(
    "text",
    ["", "   \n", "\U0001f600" * 300, "\x00\x01\x1b" * 50, "é" * 100, "中文" * 400, "a" * 5000],
    ids=["empty", "blank", "emoji", "control", "accents", "chinese", "one-word"],
)
def test_an_odd_document_is_scored_like_any_other(client: Client, family: str, text: str) -> None:
    ranking = client.rerank("what is it", ["plain words", text], ranker=family, return_chunk_scores=True)
    assert {result.index for result in ranking.results} == {0, 1}
    odd = next(result for result in ranking.results if result.index == 1)
    assert odd.score == odd.score  # not NaN
    assert odd.chunks
    if odd.deciding_passage is None:
        assert not text.strip("\x00\x01\x1b \n")
    else:
        assert odd.deciding_passage.text_in(text)


@pytest.mark.parametrize("query", ["\U0001f600\U0001f680", "\x01what\x02", "中文 é"])
def test_an_odd_query_ranks(client: Client, query: str) -> None:
    assert len(client.rerank(query, TEXTS).results) == 2


def test_a_query_of_5000_words_is_cut_and_says_so(client: Client) -> None:
    ranking = client.rerank("word " * 5000, TEXTS, ranker="maxp")
    assert ranking.query_tokens_cut == 5000 - 32


# Windows of 150 tokens, 100 apart: 14 of them hold 1,450 tokens.
LIMITED: dict[str, Any] = {"ranker": "maxp", "depth": "all", "max_chunks": 14}


def test_a_document_of_10_mb_is_read_to_the_callers_limit_and_says_what_was_cut(client: Client) -> None:
    text = "river sea boat " * 666_000
    for counted in (False, True):
        ranking = client.rerank("boat", [text, "boat"], count_tokens_cut=counted, timeout_s=120, **LIMITED)
        short, long = sorted(ranking.results, key=lambda result: -result.index)
        assert (short.tokens_cut, short.characters_cut) == (0, 0)
        assert long.characters_cut == len(text) - len("river sea boat " * 483 + "river ")
        exact = 3 * 666_000 - 1450
        assert long.tokens_cut == (exact if counted else pytest.approx(exact, rel=0.01))


def test_a_single_character_that_was_cut_is_not_silent(client: Client) -> None:
    ranking = client.rerank("sea", ["sea " * 1450 + "x", "sea " * 1450], **LIMITED)
    cuts = {result.index: (result.characters_cut, result.tokens_cut) for result in ranking.results}
    assert cuts == {0: (1, 1), 1: (0, 0)}


def test_ids_may_all_be_absent(client: Client) -> None:
    ranking = client.rerank("q", ["b", "a"])
    assert sorted(result.index for result in ranking.results) == [0, 1]
    assert {result.id for result in ranking.results} == {""} or all(result.id for result in ranking.results)


def test_bytes_that_are_no_request_are_the_callers_mistake(server: SpawnedServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary(
            "/farrank.v1.RerankService/Rerank",
            request_serializer=lambda data: data,
            response_deserializer=pb.RerankResponse.FromString,
        )
        # Field 1 with two bytes that are not UTF-8.
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\x0a\x02\xff\xfe", timeout=60)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_caller_that_disappears_leaves_nothing_behind(
    server: SpawnedServer,
    client: Client,
    metric: Callable[..., float],
    until: Callable[[Callable[[], bool]], None],
) -> None:
    documents = ["the river meets the sea " * 280] * 20
    pairs = client.rerank("sea", documents, ranker="maxp").usage.pairs
    encoded = metric("farrank_encoded_chunks_total", ranker="maxp")
    gone = 12
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary(
            "/farrank.v1.RerankService/Rerank",
            request_serializer=pb.RerankRequest.SerializeToString,
            response_deserializer=pb.RerankResponse.FromString,
        )
        request = pb.RerankRequest(query="sea", options=pb.RerankOptions(ranker="maxp"))
        request.documents.extend(pb.Document(id=str(n), text=text) for n, text in enumerate(documents))
        cancelled = metric("farrank_cancellations_total", ranker="maxp")
        calls = [call.future(request) for _ in range(gone)]
        until(lambda: metric("farrank_encoded_chunks_total", ranker="maxp") > encoded)
        for each in calls:
            each.cancel()
        until(lambda: metric("farrank_requests_in_flight", method="Rerank") == 0)
    assert metric("farrank_cancellations_total", ranker="maxp") > cancelled
    until(lambda: metric("farrank_queue_tokens", ranker="maxp") == 0)
    assert metric("farrank_admitted_tokens", ranker="maxp") == 0
    assert metric("farrank_encoded_chunks_total", ranker="maxp") - encoded < gone * pairs
    assert len(client.rerank("sea", TEXTS, ranker="maxp").results) == 2


def test_nothing_of_all_this_was_internal(metric: Callable[..., float], client: Client) -> None:
    assert metric("farrank_requests_total") > 0
    assert metric("farrank_requests_total", code="INTERNAL") == 0
    with pytest.raises(FarrankError):
        client.rerank("", TEXTS)
