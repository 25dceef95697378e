"""Calls over real sockets whose request does not come: so many of one address, each for so long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from farrank.v1 import rerank_pb2 as pb
from farrank_server.access.callers import Caller
from farrank_server.config.schema import LimitsConfig, ListenConfig
from farrank_server.errors import ResourceExhausted
from farrank_server.listen import GrpcListener
from farrank_server.metrics import Door, Metrics
from farrank_server.service.guard import Guard
from farrank_server.service.methods import RerankService
from farrank_server.service.unread import UnreadAnswers
from farrank_server.wire import standard_services
from farrank_server.wire.handlers import RETRY_KEY, Begun, handlers

RERANK = "/farrank.v1.RerankService/Rerank"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"


class Answering(RerankService):
    def __init__(self) -> None:
        pass

    async def Rerank(
        self, request: pb.RerankRequest, deadline_s: float | None, caller: Caller
    ) -> pb.RerankResponse:
        return pb.RerankResponse(query_tokens_cut=7)


@asynccontextmanager
async def opened(limits: LimitsConfig) -> AsyncIterator[Any]:
    metrics = Metrics()
    door = GrpcListener(ListenConfig(port=0), limits)
    guard = Guard(Door.GRPC, metrics, {"maxp"}, "maxp")
    await door.open(handlers(Answering(), guard, limits, UnreadAnswers(limits, metrics)))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
        yield channel
    await door.close(0)


async def begin(channel: Any, path: str) -> Any:
    """Begin a call and send no request."""
    call = channel.stream_stream(path)()
    # Headers alone are on their way once the connection is there.
    await call.wait_for_connection()
    return call


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call.read(), 30)
    return caught.value


async def until_refused(channel: Any, path: str, begun: list[Any]) -> grpc.aio.AioRpcError:
    """Begin calls until one is refused for those that were begun before."""
    while True:
        call = await begin(channel, path)
        try:
            await asyncio.wait_for(asyncio.shield(reading := asyncio.ensure_future(call.read())), 0.2)
        except TimeoutError:
            begun.append((call, reading))
        except grpc.aio.AioRpcError as error:
            return error


@pytest.mark.parametrize("path", [RERANK, CHECK, WATCH])
async def test_so_many_of_one_address(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(standard_services, "ROOM_FOR_CHECKS", 3)
    async with opened(LimitsConfig(max_concurrent_calls=3)) as channel:
        begun: list[Any] = []
        error = await until_refused(channel, path, begun)
        assert len(begun) == 3
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.details() == "3 calls of this address have sent no request yet, the most"
        assert (RETRY_KEY, "1000") in tuple(error.trailing_metadata() or ())
        begun[0][0].cancel()
        # One place is free again; what comes with its request needs none of the others.
        if path == RERANK:
            data = await channel.unary_unary(RERANK)(
                pb.RerankRequest(query="q").SerializeToString(), timeout=30
            )
            assert pb.RerankResponse.FromString(data).query_tokens_cut == 7
        else:
            await HealthStub(channel).Check(HealthCheckRequest(), timeout=30)
        for call, _ in begun[1:]:
            call.cancel()


@pytest.mark.parametrize("path", [RERANK, CHECK, WATCH])
async def test_each_for_so_long(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(standard_services, "ARRIVAL_S", 0.2)
    async with opened(LimitsConfig(default_timeout_s=0.2)) as channel:
        error = await error_of(await begin(channel, path))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert error.details() == "request: has not arrived within 0.2 s"


@pytest.mark.parametrize("path", [RERANK, CHECK, WATCH])
async def test_none_at_all(path: str) -> None:
    async with opened(LimitsConfig()) as channel:
        call = await begin(channel, path)
        await call.done_writing()
        error = await error_of(call)
        assert (error.code(), error.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "request: none was sent",
        )


class Peer:
    """A call's context as far as it is looked at: gRPC cannot be told which address to call from."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sent = asyncio.Event()

    def peer(self) -> str:
        return self.address

    async def read(self) -> bytes:
        await self.sent.wait()
        return b"request"


async def test_other_addresses_have_room_of_their_own() -> None:
    begun = Begun(1, 30)
    first, second = (Peer(f"ipv4:127.0.0.1:{port}") for port in (5000, 5001))
    other = Peer("ipv4:127.0.0.2:5000")
    other.sent.set()
    waiting = asyncio.ensure_future(begun.arrived(first))  # type: ignore[arg-type]  # what is looked at
    await asyncio.sleep(0)
    assert isinstance(await begun.arrived(second), ResourceExhausted)  # type: ignore[arg-type]
    assert await begun.arrived(other) == b"request"  # type: ignore[arg-type]
    first.sent.set()
    second.sent.set()
    assert await waiting == b"request"
    assert await begun.arrived(second) == b"request"  # type: ignore[arg-type]
