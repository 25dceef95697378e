"""The gRPC socket's own bounds: streams of a connection, and compressed messages."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import farrank_cli.spawn
from farrank_server.batching.fair_order import NOBODY
from farrank_server.config.schema import LimitsConfig, ListenConfig
from farrank_server.engine.admission.shared_room import SharedRoom
from farrank_server.listen import MAX_STREAMS, GrpcListener
from farrank_server.service.methods import SERVICE
from support.waiting import until


class Held:
    """A method whose calls wait until they are let go, all together."""

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
async def opened(method: Any) -> AsyncIterator[int]:
    listener = GrpcListener(ListenConfig(port=0, metrics_port=None), LimitsConfig())
    handler: Any = grpc.unary_unary_rpc_method_handler(method)
    await listener.open(grpc.method_handlers_generic_handler("test", {"Call": handler}))
    yield listener.port
    await listener.close(0)


async def test_one_connection_carries_as_many_calls_as_a_caller_may_have() -> None:
    room = SharedRoom(LimitsConfig().max_concurrent_calls)
    while room.shares(NOBODY, 1):
        room.take(1)
    held, count = Held(), room.held
    assert count < MAX_STREAMS
    async with opened(held.call) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/test/Call")
        calls = [asyncio.ensure_future(call(b"%d" % n, timeout=60)) for n in range(count)]
        await until(lambda: held.now == count)
        held.go.set()
        assert await asyncio.gather(*calls) == [b"%d" % n for n in range(count)]


async def _echo(data: bytes, context: object) -> bytes:
    return data


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_messages_are_refused(compression: grpc.Compression) -> None:
    async with opened(_echo) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/test/Call")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"a" * 100_000, compression=compression, timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "ompression" in str(caught.value.details())
        assert await call(b"plain", timeout=30) == b"plain"


def test_a_compressed_message_writes_no_line_of_grpcs_own(
    tiny_rankers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # gRPC reads what it may write when it is imported, which a forked server has behind it.
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
