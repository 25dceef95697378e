"""Requests that arrive slowly, partly or in great numbers: bounded in bytes, in time and by caller."""

import json
from pathlib import Path

import pytest

from farrank_client import AsyncClient, ResourceExhausted, RetryPolicy
from farrank_server.config.schema import (
    HttpConfig,
    LimitsConfig,
    ListenConfig,
    RankerConfig,
    ServerConfig,
)
from farrank_server.replica import Replica
from farrank_server.service import receiving
from support.http_connection import Connections, request
from support.http_endpoint import METHODS, Opened, OpenEndpoint
from support.waiting import until

RERANK = f"{METHODS}Rerank"
BODY = json.dumps({"query": "sea", "documents": [{"text": "the river"}]}).encode()
PATIENT = "Connect-Timeout-Ms: 9999999999\r\n"


def half(size: int) -> bytes:
    """Make a request that claims a body of this size, with half of it."""
    return request(RERANK, b"[" * size, PATIENT)[: -size // 2]


def in_receipt(endpoint: Opened) -> float:
    return endpoint.bench.count("farrank_receiving_bytes")


async def test_callers_share_the_bytes_that_are_in_receipt(
    open_endpoint: OpenEndpoint, connect: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than this test takes on a busy machine.
    for name in ("MAX_WAIT_S", "ARRIVAL_S"):
        monkeypatch.setattr(receiving, name, 600.0)
    async with open_endpoint(limits=LimitsConfig(max_receiving_bytes=1_000_000)) as endpoint:
        port = endpoint.listener.port
        greedy = [await connect(port, "127.0.0.2") for _ in range(3)]
        for each in greedy:
            await each.send(half(400_000))
        # One caller alone may have half of the budget: its other two requests wait, and no byte of them is
        # read.
        await until(lambda: endpoint.bench.count("farrank_receiving_waiting") == 2)
        assert in_receipt(endpoint) == 400_000
        # Another caller finds room. A request of unknown size reserves the largest.
        modest = await connect(port, "127.0.0.3")
        assert (await modest.ask(RERANK, BODY)).status == 200
        await until(lambda: in_receipt(endpoint) == 400_000)
        # The room of a request that has gone is free again, and goes to the caller's next.
        await greedy[0].close()
        await until(lambda: endpoint.bench.count("farrank_receiving_waiting") == 1)
        assert in_receipt(endpoint) == 400_000


async def test_a_body_of_unknown_size_holds_the_most_until_it_is_there(
    open_endpoint: OpenEndpoint, connect: Connections
) -> None:
    limits = LimitsConfig(max_receiving_bytes=1_000_000, max_request_bytes=400_000)
    async with open_endpoint(limits=limits) as endpoint:
        caller = await connect(endpoint.listener.port)
        head = f"POST {RERANK} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        head += "Transfer-Encoding: chunked\r\n\r\n"
        await caller.send(head.encode() + b"1\r\n{\r\n")
        await until(lambda: in_receipt(endpoint) == 400_000)
        rest = BODY[1:]
        await caller.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(rest), rest))
        assert (await caller.answer()).status == 200
        assert in_receipt(endpoint) == 0


async def test_both_endpoints_take_from_one_budget(
    tiny_rankers: dict[str, Path], connect: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "MAX_WAIT_S", 0.1)
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        limits=LimitsConfig(max_receiving_bytes=4_000_000, max_request_bytes=3_000_000),
        listen=ListenConfig(port=0, metrics_port=None, http=HttpConfig(port=0)),
    )
    async with Replica(config) as replica:
        assert replica.http_url is not None
        half_sent = await connect(int(replica.http_url.rpartition(":")[2]))
        async with AsyncClient(replica.address, retry=RetryPolicy(max_attempts=1)) as client:
            assert (await client.rerank("sea", ["the river"], timeout_s=60)).results
            await half_sent.send(half(2_000_000))
            held = replica.metrics.registry.get_sample_value
            await until(lambda: held("farrank_receiving_bytes") == 2_000_000)
            with pytest.raises(ResourceExhausted, match="max_receiving_bytes is 4000000"):
                await client.rerank("sea", ["the river"], timeout_s=60)


async def test_no_deadline_gives_a_body_more_time_to_arrive(
    open_endpoint: OpenEndpoint, connect: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "ARRIVAL_S", 0.05)
    limits = LimitsConfig(min_receiving_bytes_per_s=10**9)
    async with open_endpoint(limits=limits) as endpoint:
        slow = await connect(endpoint.listener.port)
        await slow.send(half(1000))
        answer = await slow.answer()
        assert answer.status == 504
        said = json.loads(answer.body)["message"]
        assert said == "request: did not arrive within 0.050001 s; 500 of at most 1000 bytes arrived"
        assert endpoint.bench.count("farrank_requests_not_received_total", why="late") == 1
        await until(lambda: endpoint.count("deadline_drops_total", ranker="", stage="arrival") == 1)


async def test_half_sent_requests_of_one_caller_refuse_no_other(
    open_endpoint: OpenEndpoint, connect: Connections
) -> None:
    async with open_endpoint(limits=LimitsConfig(max_concurrent_calls=16)) as endpoint:
        port = endpoint.listener.port
        for _ in range(32):
            await (await connect(port, "127.0.0.2")).send(half(1000))
        refused = "farrank_open_calls_refused_total"
        await until(lambda: endpoint.bench.count(refused, kind="HTTP requests") == 2)
        assert endpoint.bench.count("farrank_open_calls", kind="HTTP requests") == 30
        other = await connect(port, "127.0.0.3")
        assert (await other.ask(RERANK, BODY)).status == 200
