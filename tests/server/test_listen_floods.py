"""The gRPC socket's own bounds: streams of a connection, calls that have not begun, compressed messages."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from hyperframe.frame import PingFrame

import farrank_cli.spawn
from farrank_calls.fairness.fair_order import NOBODY
from farrank_calls.fairness.shared_room import SharedRoom
from farrank_server.config.schema import LimitsConfig, ListenConfig
from farrank_server.listen import MAX_STREAMS, GrpcListener
from farrank_server.service.methods import SERVICE
from farrank_server.wire.metadata import MAX_METADATA_BYTES
from support.hostile_connection import CHECK, GRPC, Attacker
from support.hostile_steps import Calls, HeaderBombs
from support.waiting import until


class Held:
    """A method whose calls wait until all are released together."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.go = asyncio.Event()

    async def call(self, data: bytes, context: object) -> bytes:
        self.now += 1
        self.most = max(self.most, self.now)
        await self.go.wait()
        self.now -= 1
        return data


@asynccontextmanager
async def opened(method: Any) -> AsyncIterator[GrpcListener]:
    listener = GrpcListener(ListenConfig(port=0, metrics_port=None), LimitsConfig())
    handler: Any = grpc.unary_unary_rpc_method_handler(method)
    await listener.open(grpc.method_handlers_generic_handler("test", {"Call": handler}))
    try:
        yield listener
    finally:
        await listener.close(0)


def channel_to(listener: GrpcListener) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{listener.port}")


def arrive(attacker: Attacker, calls: int, method: str) -> None:
    """Send calls on a new connection, and wait until the server has read them all.

    This needs no turn of the event loop: gRPC's core reads frames and answers pings in its own threads.
    """
    connection = attacker.open(GRPC)
    Calls(calls, method).run(attacker)
    connection.frames(PingFrame(0, b"all sent"))
    answer = PingFrame(0, b"all sent", flags=["ACK"]).serialize()
    connection.socket.settimeout(60)
    got = b""
    while answer not in got:
        got += connection.socket.recv(1 << 16)


async def test_a_health_check_does_not_wait_behind_calls_that_have_not_begun() -> None:
    held, count = Held(), 500
    begun_before: list[int] = []

    def backlog_s() -> float:
        begun_before.append(held.most)
        return 0.0

    async with opened(held.call) as listener:
        # Called for each health check.
        listener.report_load(backlog_s)
        with closing(Attacker({GRPC: listener.port}, "127.0.0.2")) as attacker:
            # The event loop takes no turn until all of them have arrived.
            arrive(attacker, count, "/test/Call")
            arrive(attacker, 1, CHECK)
            await until(lambda: held.now == count and len(begun_before) == 1)
    assert begun_before[0] < count / 10


async def test_many_calls_that_have_not_begun_cost_another_caller_no_call() -> None:
    held, connections, count = Held(), 4, 900
    async with opened(held.call) as listener:
        with (
            closing(Attacker({GRPC: listener.port}, "127.0.0.2")) as attacker,
            closing(Attacker({GRPC: listener.port}, "127.0.0.3")) as other,
        ):
            for _ in range(connections):
                arrive(attacker, count, "/test/Call")
            arrive(other, 1, "/test/Call")
            await until(lambda: held.now == connections * count + 1)


async def test_metadata_is_bounded() -> None:
    async with opened(_echo) as listener, channel_to(listener) as channel:
        call: Any = channel.unary_unary("/test/Call")
        # The largest W3C baggage, and an API key.
        fits = (("baggage", "b" * 8_192), ("authorization", "Bearer " + "k" * 100))
        for _ in range(20):
            assert await call(b"", metadata=fits, timeout=60) == b""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", metadata=(("baggage", "b" * MAX_METADATA_BYTES),), timeout=60)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_caller_that_acknowledges_no_settings_has_bounded_metadata(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # gRPC's core holds to its limit only those callers that have acknowledged it.
    async with opened(_echo) as listener:
        with closing(Attacker({GRPC: listener.port}, "127.0.0.2")) as attacker:
            HeaderBombs(20, method=CHECK).run(attacker)
            connection = attacker.current(GRPC).socket
            connection.settimeout(60)

            def read() -> None:
                with suppress(ConnectionError):
                    while connection.recv(1 << 16):
                        pass

            await asyncio.to_thread(read)
    assert "metadata" in caplog.text


async def test_one_connection_carries_as_many_calls_as_a_caller_may_have() -> None:
    room = SharedRoom(LimitsConfig().max_concurrent_calls)
    while room.shares(NOBODY, 1):
        room.take(1)
    held, count = Held(), room.held
    assert count < MAX_STREAMS
    async with opened(held.call) as listener, channel_to(listener) as channel:
        call: Any = channel.unary_unary("/test/Call")
        calls = [asyncio.ensure_future(call(b"%d" % n, timeout=60)) for n in range(count)]
        await until(lambda: held.now == count)
        held.go.set()
        assert await asyncio.gather(*calls) == [b"%d" % n for n in range(count)]


async def _echo(data: bytes, context: object) -> bytes:
    return data


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_messages_are_refused(compression: grpc.Compression) -> None:
    async with opened(_echo) as listener, channel_to(listener) as channel:
        call: Any = channel.unary_unary("/test/Call")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"a" * 100_000, compression=compression, timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "ompression" in str(caught.value.details())
        assert await call(b"plain", timeout=30) == b"plain"


def test_a_compressed_message_writes_no_line_of_grpcs_own(
    tiny_rankers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # gRPC reads this variable when it is imported, which is already done in a forked server.
    monkeypatch.setattr(farrank_cli.spawn, "Popen", subprocess.Popen)
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    arguments = [f"--ranker=tiny={tiny_rankers['maxp']}", "--log-level=error"]
    log = tmp_path / "log"
    with (
        log.open("wb") as file,
        farrank_cli.spawn.spawned_server(arguments, file) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        call: Any = channel.unary_unary(f"/{SERVICE.full_name}/Rerank")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"a" * 100_000, compression=grpc.Compression.Gzip, timeout=60)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert log.read_text() == ""
