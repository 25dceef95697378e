"""An HTTP endpoint that a test calls over a real socket."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from farrank_server.config.schema import HttpConfig, LimitsConfig, ListenConfig, ServerConfig, TlsConfig
from farrank_server.engine.engine import Engine
from farrank_server.http.application import HttpApplication
from farrank_server.http.judgements import JudgedSets
from farrank_server.http.listen import HttpListener
from farrank_server.metrics import Endpoint
from farrank_server.service.guard import Guard
from farrank_server.service.methods import RerankService
from farrank_server.service.receiving import ReceivingBudget
from farrank_server.service.unread import UnreadAnswers
from support.engine_bench import Before, Bench, Faulty, opened_bench
from support.memory_first_stage import MemoryFirstStage, in_memory

NO_SETS: JudgedSets = {}

METHODS = "/farrank.v1.RerankService/"


@dataclass
class Opened:
    """An open HTTP endpoint, a session to call it, and the engine behind it."""

    bench: Bench[Faulty]
    listener: HttpListener
    session: aiohttp.ClientSession

    @property
    def engine(self) -> Engine:
        return self.bench.engine

    def count(self, name: str, **labels: str) -> float:
        return self.bench.count(f"farrank_{name}", door="http", **labels)

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Send JSON. Returns the status and the JSON of the answer."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(path, json=body, headers=sent) as answer:
            return answer.status, await answer.json()


OpenEndpoint = Callable[..., AbstractAsyncContextManager[Opened]]


@asynccontextmanager
async def opened_endpoint(
    tiny_rankers: dict[str, Path],
    before: Before = lambda inputs: None,
    limits: LimitsConfig | None = None,
    first_stage: MemoryFirstStage | None = None,
    tls: TlsConfig | None = None,
    max_connection_age_s: float | None = 300.0,
    judged: JudgedSets = NO_SETS,
    **http: Any,
) -> AsyncIterator[Opened]:
    """Open an HTTP endpoint for a real engine with tiny rankers. `http` are keys of its configuration."""
    config = ServerConfig(
        limits=limits or LimitsConfig(),
        listen=ListenConfig(
            port=0,
            metrics_port=None,
            max_connection_age_s=max_connection_age_s,
            tls=tls,
            http=HttpConfig(port=0, **http),
        ),
    )
    async with opened_bench(tiny_rankers, lambda runtime: Faulty(runtime, before)) as bench:
        service = RerankService(config, bench.engine, await in_memory(bench, first_stage), bench.metrics)
        guard = Guard(Endpoint.HTTP, bench.metrics, service.rankers.keys(), "maxp")
        listener = HttpListener(config.listen, config.limits)
        unread = UnreadAnswers(config.limits, bench.metrics)
        receiving = ReceivingBudget(config.limits, bench.metrics)
        listener.show_open(bench.metrics)
        await listener.open(HttpApplication(config, service, guard, unread, receiving, judged))
        try:
            async with aiohttp.ClientSession(listener.url) as session:
                yield Opened(bench, listener, session)
        finally:
            await listener.close(1)
