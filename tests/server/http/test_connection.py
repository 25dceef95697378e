"""The end of connections, which answers announce to callers; a drain loses no call."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from farrank_client import AsyncClient, Unavailable
from farrank_rankers.tokens import EncoderInput
from farrank_server import replica
from farrank_server.config.schema import HttpConfig, LimitsConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.http import connection
from farrank_server.replica import Replica
from support.engine_bench import Faulty
from support.http_connection import ClosedError, Connections, HttpConnection, request
from support.http_endpoint import OpenEndpoint
from support.waiting import until

RERANK = "/v2/rerank"

# Callers, endpoints and engines share one event loop here, and need longer than usual to notice.
NOTICE_S = 4.0

BODY = json.dumps({"query": "river", "documents": ["the river rises", "flour and salt"]}).encode()


async def test_an_old_connection_ends_with_an_answer_that_says_so(
    open_endpoint: OpenEndpoint, connect: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_endpoint() as endpoint:
        young = await connect(endpoint.listener.port)
        assert not (await young.ask(RERANK, BODY)).closes
        assert not (await young.ask(RERANK, BODY)).closes
    monkeypatch.setattr(connection, "AGE_JITTER", 0.0)
    async with open_endpoint(max_connection_age_s=1.0) as endpoint:
        old = await connect(endpoint.listener.port)
        answers = [await old.ask("/health")]
        while not answers[-1].closes:
            answers.append(await old.ask("/health"))
        assert {each.status for each in answers} == {200}
        assert await old.ended() == b""


async def test_a_caller_that_is_refused_early_sees_the_answer_and_goes_on(
    open_endpoint: OpenEndpoint, connect: Connections
) -> None:
    limit = 200_000
    async with open_endpoint(limits=LimitsConfig(max_request_bytes=limit)) as endpoint:
        caller = await connect(endpoint.listener.port)
        # Twice the size of the sockets' buffers, so that the server has to read it.
        refused = await caller.ask(RERANK, b"[" * (connection.REFUSED_BODIES * limit))
        assert (refused.status, refused.closes) == (413, False)
        assert (await caller.ask(RERANK, BODY)).status == 200
        # A larger body ends the connection after the answer.
        await caller.send(request(RERANK, b"[" * 100_000_000)[:1000])
        assert (await caller.answer()).status == 413
        with pytest.raises(ClosedError):  # noqa: PT012  # sooner or later, by the sockets' buffers
            while True:
                await caller.send(b"[" * 65_536)


async def test_a_caller_that_waits_to_be_asked_for_its_body_is_refused_at_once(
    open_endpoint: OpenEndpoint, connect: Connections
) -> None:
    async with open_endpoint(limits=LimitsConfig(max_request_bytes=1000)) as endpoint:
        caller = await connect(endpoint.listener.port)
        head = request(RERANK, b"a" * 1001, "Expect: 100-continue\r\n")[:-1001]
        await caller.send(head)
        answer = await caller.answer()
        assert (answer.status, answer.closes) == (413, True)
        assert await caller.ended() == b""


Begin = Callable[[], Awaitable[Replica]]


@pytest_asyncio.fixture
async def begin(tiny_rankers: dict[str, Path]) -> AsyncIterator[Begin]:
    begun: list[Replica] = []

    async def begin_one() -> Replica:
        config = ServerConfig(
            rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
            listen=ListenConfig(port=0, metrics_port=None, http=HttpConfig(port=0)),
        )
        begun.append(await Replica(config).__aenter__())
        return begun[-1]

    yield begin_one
    # Nothing is open for calls that the test has ended already.
    for each in begun:
        await each.__aexit__()


def http_port(of: Replica) -> int:
    assert of.http_url is not None
    return int(of.http_url.rpartition(":")[2])


async def test_a_drain_tells_callers_answers_them_and_ends_idle_connections(
    begin: Begin, connect: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "NOTICE_S", NOTICE_S)
    held, go_on = threading.Event(), threading.Event()

    def hold(inputs: Sequence[EncoderInput]) -> None:
        held.set()
        assert go_on.wait(120)

    draining = await begin()
    port = http_port(draining)
    idle, busy, late, new = [await connect(port) for _ in range(4)]
    for each in (idle, busy, late):
        assert not (await each.ask(RERANK, BODY)).closes
    ranker = draining.engine.loaded["maxp"]
    ranker.runtime = Faulty(ranker.runtime, hold)
    admitted = asyncio.create_task(busy.ask(RERANK, BODY))
    await until(held.is_set)
    ending = asyncio.create_task(draining.__aexit__())
    # During the notice, calls are admitted, and health and answers tell callers to leave.
    health = await late.ask("/health")
    assert (health.status, health.closes) == (503, True)
    served = asyncio.create_task(new.ask(RERANK, BODY))
    # Afterwards no call is admitted, and an idle connection ends.
    assert await idle.ended() == b""
    refused = await (await connect(port)).ask(RERANK, BODY)
    assert (refused.status, refused.closes) == (503, True)
    assert b"draining" in refused.body
    go_on.set()
    for answer in (await admitted, await served):
        assert (answer.status, answer.closes) == (200, True)
    await ending


async def test_a_drain_under_load_loses_no_call_of_either_endpoint(
    begin: Begin, connect: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP callers retry only on a kept connection that ended while it was idle."""
    monkeypatch.setattr(replica, "NOTICE_S", NOTICE_S)
    staying, leaving = await begin(), await begin()
    replicas = {http_port(each): each for each in (staying, leaving)}
    healthy = list(replicas)
    done = asyncio.Event()
    statuses: list[int] = []

    async def balance() -> None:
        """Ask for the health of all endpoints, as a load balancer does."""
        while not done.is_set():
            for port in replicas:
                try:
                    probe = await connect(port)
                    status = (await probe.ask("/health", headers="Connection: close\r\n")).status
                    await probe.close()
                except OSError:
                    status = 0
                if status != 200 and port in healthy:
                    healthy.remove(port)
            await asyncio.sleep(0.1)

    async def call(number: int) -> None:
        kept: HttpConnection | None = None
        turn = number
        while not done.is_set():
            if kept is None:
                kept = await connect(healthy[turn % len(healthy)])
                turn += 1
            try:
                answer = await kept.ask(RERANK, BODY)
            except ClosedError:
                assert kept.answers, "a new connection was ended without an answer"
                kept = None
                continue
            statuses.append(answer.status)
            if answer.closes:
                kept = None
            # Some callers call often, others rarely enough to be idle in between.
            await asyncio.sleep(0.01 if number % 2 else 0.3)

    lost: list[Unavailable] = []

    async def call_by_grpc(client: AsyncClient) -> None:
        while not done.is_set():
            try:
                await client.rerank("river", ["the river"], timeout_s=120)
            except Unavailable as error:
                lost.append(error)

    async with AsyncClient([staying.address, leaving.address]) as client, asyncio.TaskGroup() as tasks:
        await client.wait_until_healthy(60)
        balancing = tasks.create_task(balance())
        for number in range(8):
            tasks.create_task(call(number))
        tasks.create_task(call_by_grpc(client))
        await until(lambda: len(statuses) >= 50)
        ending = tasks.create_task(leaving.__aexit__())
        await ending
        after = len(statuses)
        await until(lambda: len(statuses) >= after + 50)
        done.set()
        await balancing
    answered_by_leaving = (
        leaving.metrics.registry.get_sample_value(
            "farrank_requests_total",
            {"door": "http", "method": "Rerank", "ranker": "maxp", "code": "OK"},
        )
        or 0
    )
    assert answered_by_leaving > 10
    assert set(statuses) == {200}
    assert not lost
