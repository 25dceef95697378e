"""Health and reflection over a real socket: many watchers, watchers that do not read, invalid bytes."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from farrank_calls.errors import DeadlineExceeded
from farrank_client.balancing import read_backlog_s
from farrank_server.config.schema import LimitsConfig, ListenConfig
from farrank_server.listen import SEARCHES, GrpcListener
from farrank_server.wire import standard_services
from farrank_server.wire.handlers import RETRY_KEY
from support.raw_http2 import HEADERS, UnreadAnswers

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
WATCH, CHECK = "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/Check"
V1 = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
V1ALPHA = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


async def _echo(data: bytes, context: object) -> bytes:
    return data


ECHO = grpc.method_handlers_generic_handler("test", {"Echo": grpc.unary_unary_rpc_method_handler(_echo)})


@asynccontextmanager
async def opened(calls: int = 1) -> AsyncIterator[tuple[GrpcListener, Any]]:
    config = ListenConfig(port=0, metrics_port=None)
    listener = GrpcListener(config, LimitsConfig(max_concurrent_calls=calls), rankers=("minilm",))
    await listener.open(ECHO)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{listener.port}") as channel:
        yield listener, channel
    await listener.close(0)


async def watched(channel: Any, service: str = "") -> Any:
    """Begin a watch. Returns the call once the first answer is there."""
    call = HealthStub(channel).Watch(HealthCheckRequest(service=service))
    assert (await call.read()).status == SERVING
    return call


async def refused(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_watchers_take_no_place_of_a_call() -> None:
    async with opened(calls=1) as (listener, channel):
        watches = [await watched(channel) for _ in range(50)]
        assert await channel.unary_unary("/test/Echo")(b"still", timeout=60) == b"still"
        assert (await HealthStub(channel).Check(HealthCheckRequest(), timeout=60)).status == SERVING
        listener.report(serving=False)
        for each in watches:
            assert (await each.read()).status == NOT_SERVING
        listener.report_not_serving()
        listener.report(serving=True)
        assert (await HealthStub(channel).Check(HealthCheckRequest())).status == NOT_SERVING


async def test_a_check_carries_the_backlog() -> None:
    backlogs_s = iter([0.0, 12.34567])
    async with opened() as (listener, channel):
        check = HealthStub(channel).Check
        assert "endpoint-load-metrics" not in dict(await check(HealthCheckRequest()).trailing_metadata())
        listener.report_load(lambda: next(backlogs_s))
        reports = [dict(await check(HealthCheckRequest()).trailing_metadata()) for _ in range(2)]
    values = [each["endpoint-load-metrics"] for each in reports]
    assert values == ["TEXT named_metrics.backlog_s=0.0000", "TEXT named_metrics.backlog_s=12.3457"]
    assert list(map(read_backlog_s, (each.items() for each in reports))) == [0.0, 12.3457]


@pytest.mark.parametrize(
    ("most", "of_one", "words"),
    [
        (9, 2, "this connection has 2 health watches open, the maximum"),
        (4, 9, "2 health watches of this caller are open, its share of 4"),
    ],
)
async def test_too_many_watchers_are_refused(
    monkeypatch: pytest.MonkeyPatch, most: int, of_one: int, words: str
) -> None:
    monkeypatch.setattr(standard_services, "MAX_WATCHES", most)
    monkeypatch.setattr(standard_services, "MAX_WATCHES_PER_CONNECTION", of_one)
    async with opened() as (_, channel):
        first, second = await watched(channel), await watched(channel)
        error = await refused(watched(channel))
        assert (error.code(), error.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        assert (RETRY_KEY, "5000") in tuple(error.trailing_metadata())
        first.cancel()
        # The server learns of it a moment later.
        third: Any = None
        async with asyncio.timeout(60):
            while third is None:
                try:
                    third = await watched(channel)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.02)
        third.cancel()
        second.cancel()


async def test_a_watcher_that_does_not_read_delays_no_other_watcher() -> None:
    async with opened() as (listener, channel):
        deaf = await UnreadAnswers.open(listener.port)
        await deaf.call(WATCH, b"")
        # The headers of its answer need no room.
        while (await deaf.frame())[0] != HEADERS:
            pass
        watch = await watched(channel)
        for serving in (False, True, False):
            listener.report(serving=serving)
            assert (await asyncio.wait_for(watch.read(), 60)).status == (SERVING if serving else NOT_SERVING)
        watch.cancel()
        await deaf.close()


async def test_a_ranker_is_asked_for_by_a_name_that_no_list_has() -> None:
    """Callers need no API key for health checks, and must not learn of rankers that they do not know."""
    async with opened() as (listener, channel):
        watch = await watched(channel, "farrank.v1.RerankService/rankers/minilm")
        listener.report(serving=False)
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()
        other = HealthCheckRequest(service="farrank.v1.RerankService/rankers/other")
        assert "minilm" not in str((await refused(HealthStub(channel).Check(other))).details())


async def test_liveness_is_its_own() -> None:
    async with opened() as (listener, channel):
        watch = await watched(channel, "liveness")
        listener.report_not_serving()
        listener.report_life(alive=False)
        assert (await watch.read()).status == NOT_SERVING
        listener.report_life(alive=True)
        assert (await watch.read()).status == SERVING
        assert (await HealthStub(channel).Check(HealthCheckRequest())).status == NOT_SERVING
        watch.cancel()


async def test_services_by_name() -> None:
    async with opened() as (_, channel):
        name = "farrank.v1.RerankService"
        assert (await HealthStub(channel).Check(HealthCheckRequest(service=name))).status == SERVING
        error = await refused(HealthStub(channel).Check(HealthCheckRequest(service="other")))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        known = f"{name}, {name}/SearchAndRerank, liveness"
        assert error.details() == f"service: no service 'other' here; known are: {known}"
        assert (await HealthStub(channel).Check(HealthCheckRequest(service=SEARCHES))).status == SERVING
        call = HealthStub(channel).Watch(HealthCheckRequest(service="other"))
        assert (await call.read()).status == HealthCheckResponse.SERVICE_UNKNOWN
        call.cancel()


@pytest.mark.parametrize(
    "data", [b"\x0a\x02\xff\xfe", b"\xff", b"\x7a\x00" * 40_000], ids=["text", "tag", "long"]
)
@pytest.mark.parametrize("path", [CHECK, WATCH, V1, V1ALPHA])
async def test_bytes_that_are_no_message_are_the_callers_mistake(
    caplog: pytest.LogCaptureFixture, path: str, data: bytes
) -> None:
    async with opened() as (_, channel):
        with caplog.at_level(logging.DEBUG):
            if path == CHECK:
                error = await refused(channel.unary_unary(path)(data, timeout=60))
            elif path == WATCH:
                error = await refused(channel.unary_stream(path)(data, timeout=60).read())
            else:
                stream = channel.stream_stream(path)(timeout=60)
                await stream.write(data)
                error = await refused(stream.read())
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(error.details()).startswith("request: ")
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("version", [V1, V1ALPHA])
async def test_reflection_lists_and_describes_both_of_its_versions(version: str) -> None:
    async with opened() as (_, channel):
        stream = channel.stream_stream(version)()

        async def answer(**asked: str) -> ServerReflectionResponse:
            await stream.write(ServerReflectionRequest(**asked).SerializeToString())
            return ServerReflectionResponse.FromString(await stream.read())

        listed = [each.name for each in (await answer(list_services="")).list_services_response.service]
        assert listed == [
            "farrank.v1.RerankService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ]
        for name in listed:
            pool = DescriptorPool()
            for file in (
                await answer(file_containing_symbol=name)
            ).file_descriptor_response.file_descriptor_proto:
                pool.AddSerializedFile(file)
            inputs = [each.input_type.full_name for each in pool.FindServiceByName(name).methods]
            assert all(each.startswith(name.rpartition(".")[0]) for each in inputs)
        v1 = await answer(file_by_filename="grpc/reflection/v1/reflection.proto")
        assert b"v1alpha" not in v1.file_descriptor_response.SerializeToString()
        assert (await answer(file_containing_symbol="no.Such")).error_response.error_code == 5
        stream.cancel()


async def test_a_reflection_stream_that_says_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ServerReflectionRequest(list_services="").SerializeToString()
    async with opened() as (_, channel):
        stream = channel.stream_stream(V1)()
        await stream.write(asked)
        assert b"farrank.v1.RerankService" in await stream.read()
        # The wait for the second request has begun and keeps its 60 s. Only the wait for a third is short.
        monkeypatch.setattr(standard_services, "REFLECTION_IDLE_S", 0.05)
        await stream.write(asked)
        assert b"farrank.v1.RerankService" in await stream.read()
        assert await asyncio.wait_for(stream.read(), 60) is grpc.aio.EOF


async def test_too_many_reflection_streams_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_services, "MAX_REFLECTIONS", 1)
    async with opened() as (_, channel):
        first = channel.stream_stream(V1)()
        await first.write(ServerReflectionRequest(list_services="").SerializeToString())
        await first.read()
        error = await refused(channel.stream_stream(V1)().read())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.details() == "1 reflection streams are open, the maximum"
        first.cancel()


class Arriving:
    """A call whose request the event loop has still to read."""

    def __init__(self) -> None:
        self.request: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def read(self) -> bytes:
        return await self.request


async def test_complete_requests_do_not_give_way_after_a_stall_of_the_event_loop() -> None:
    pending: Any = standard_services._PendingRequests()
    calls = [Arriving() for _ in range(standard_services.MAX_PENDING_REQUESTS + 1)]
    *earlier, last = calls
    read = [asyncio.create_task(pending.arrived(each)) for each in earlier]
    await asyncio.sleep(0)
    time.sleep(2 * standard_services.GIVES_WAY_S)  # noqa: ASYNC251  the stall
    read.append(asyncio.create_task(pending.arrived(last)))
    # gRPC passes a message to the event loop in a later turn.
    for _ in range(3):
        await asyncio.sleep(0)
    for each in calls:
        if not each.request.done():
            each.request.set_result(b"request")
    assert await asyncio.gather(*read) == [b"request"] * len(calls)


async def test_a_check_that_waits_for_room_survives_the_end_of_an_older_ones_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standard_services, "MAX_PENDING_REQUESTS", 1)
    monkeypatch.setattr(standard_services, "GIVES_WAY_S", 0.05)
    monkeypatch.setattr(standard_services, "ARRIVAL_S", 0.3)
    pending: Any = standard_services._PendingRequests()
    half_sent, whole = Arriving(), Arriving()
    whole.request.set_result(b"request")
    earlier = asyncio.create_task(pending.arrived(half_sent))
    await asyncio.sleep(0)
    later = asyncio.create_task(pending.arrived(whole))
    await asyncio.sleep(0)
    # The wait for room, which begins later, ends in the same turn of the event loop, and is served first.
    time.sleep(0.5)  # noqa: ASYNC251  the stall
    assert await later == b"request"
    assert isinstance(await earlier, DeadlineExceeded)
