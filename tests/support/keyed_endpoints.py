"""Both endpoints of one service that requires API keys, over real sockets, with tiny rankers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc

from farrank.v1 import rerank_pb2_grpc
from farrank_calls.key_file import add_key
from farrank_first_stage import IndexDescription
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.stages import FirstStages
from farrank_server.access.keys import Keys
from farrank_server.config.schema import HttpConfig, ListenConfig, ServerConfig
from farrank_server.http.application import HttpApplication
from farrank_server.http.listen import HttpListener
from farrank_server.listen import GrpcListener
from farrank_server.metrics import Endpoint, Metrics
from farrank_server.service.guard import Guard
from farrank_server.service.indexes import Indexes, OpenIndexes
from farrank_server.service.methods import RerankService
from farrank_server.service.receiving import ReceivingBudget
from farrank_server.service.unread import UnreadAnswers
from farrank_server.wire.handlers import handlers
from support.engine_bench import Bench, Wrapped, opened_bench, until
from support.memory_first_stage import MemoryFirstStage


class Named(MemoryFirstStage):
    """A first stage under one of several names."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def describe(self) -> IndexDescription:
        return replace(super().describe(), name=self.name)


@dataclass
class Clock:
    """A clock that a test advances."""

    unix_s: float = 1_800_000_000.0
    s: float = 0.0


@dataclass
class Endpoints:
    """The endpoints, with the service and figures behind them."""

    bench: Bench[Wrapped]
    file: Path
    keys: Keys
    stub: Any
    channel: grpc.aio.Channel
    http: aiohttp.ClientSession
    clock: Clock
    guards: list[Guard]
    metrics: Metrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = self.bench.metrics

    def sample(self, share: float) -> None:
        """Log a share of the successful calls."""
        for each in self.guards:
            each.ok_sample = share

    async def key(self, name: str, **rights: object) -> str:
        """Make an API key that the service accepts from now on."""
        key = add_key(self.file, name, rights)
        await self.keys.reload()
        return key

    def count(self, name: str, **labels: str) -> float:
        return self.bench.count(f"farrank_{name}", **labels)

    async def counted(self, value: float, name: str, **labels: str) -> None:
        """Wait until a count is reached: the server counts a moment after the answer."""
        await until(lambda: self.count(name, **labels) == value)

    async def grpc(self, method: str, request: Any, key: str | None = None) -> Any:
        """Return the answer or the error."""
        metadata = () if key is None else (("authorization", f"Bearer {key}"),)
        try:
            return await getattr(self.stub, method)(request, metadata=metadata, timeout=30)
        except grpc.aio.AioRpcError as error:
            return error

    async def post(self, path: str, body: Any, key: str | None = None) -> tuple[int, Any, Any]:
        """Send JSON. Returns the status, the JSON of the answer, and its headers."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with self.http.post(path, json=body, headers=headers) as answer:
            return answer.status, await answer.json(), answer.headers


@asynccontextmanager
async def opened_endpoints(
    tiny_rankers: dict[str, Path], folder: Path, ok_sample: float = 0.0
) -> AsyncIterator[Endpoints]:
    """Open both endpoints. The file of API keys is in `folder`."""
    config = ServerConfig(listen=ListenConfig(port=0, metrics_port=None, http=HttpConfig(port=0)))
    async with opened_bench(tiny_rankers, Wrapped) as bench:

        def opening() -> FirstStages:
            stages = {name: Named(name) for name in ("things", "hidden")}
            return FirstStages(stages, FirstStageConfig())

        first_stages = opening()
        await first_stages.start()
        indexes = Indexes(OpenIndexes(first_stages, bench.engine), opening, bench.engine, bench.metrics)
        service = RerankService(config, bench.engine, indexes, bench.metrics)
        file, clock = folder / "keys.toml", Clock()
        add_key(file, "first", {})
        keys = Keys(file, bench.metrics, now_s=lambda: clock.unix_s, clock_s=lambda: clock.s)
        names, unread = service.rankers.keys(), UnreadAnswers(config.limits, bench.metrics)
        receiving = ReceivingBudget(config.limits, bench.metrics)
        through_grpc = GrpcListener(config.listen, config.limits, rankers=service.rankers)
        through_grpc.protect(keys)
        guards = [Guard(endpoint, bench.metrics, names, "maxp", keys, ok_sample) for endpoint in Endpoint]
        await through_grpc.open(handlers(service, guards[0], config.limits, unread, receiving))
        through_http = HttpListener(config.listen, config.limits)
        through_http.show_open(bench.metrics)
        await through_http.open(HttpApplication(config, service, guards[1], unread, receiving))
        async with (
            grpc.aio.insecure_channel(f"127.0.0.1:{through_grpc.port}") as channel,
            aiohttp.ClientSession(through_http.url) as session,
        ):
            stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            yield Endpoints(bench, file, keys, stub, channel, session, clock, guards)
        await through_http.close(1)
        await through_grpc.close(0)
        await indexes.stop()
