"""A real gRPC server on loopback that fails as scripted, and both clients behind one interface."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from farrank.v1 import rerank_pb2, rerank_pb2_grpc
from farrank_client import AsyncClient, Client

# Called with a client's address, a function of the client, and the client's arguments; returns the function's
# result.
Caller = Callable[..., Any]


@dataclass
class Failure:
    """One refusal: the gRPC code, its message and the pushback to send, if any."""

    code: grpc.StatusCode
    message: str
    pushback: str | None


@dataclass
class ScriptedServer(rerank_pb2_grpc.RerankServiceServicer):
    """Fails once for each of `failures`, then answers. Keeps its requests.

    While `hold` is set, calls wait until their caller has gone, which sets `caller_left`.
    """

    target: str = ""
    failures: deque[Failure] = field(default_factory=deque)
    requests: list[Any] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    timeouts_s: list[float] = field(default_factory=list)
    results: list[rerank_pb2.Result] = field(default_factory=list)
    catalog: rerank_pb2.ListRankersResponse = field(default_factory=rerank_pb2.ListRankersResponse)
    health: health.HealthServicer = field(default_factory=health.HealthServicer)
    # If it is a number, health checks report it as the backlog.
    backlog_s: float | None = None
    # The server refuses further health checks at once, as a real server does with very many of one caller.
    most_checks: int = 100
    checks: int = 0
    checks_open: int = 0
    hold: bool = False
    arrived: threading.Event = field(default_factory=threading.Event)
    caller_left: threading.Event = field(default_factory=threading.Event)
    counting: threading.Lock = field(default_factory=threading.Lock)

    def fail(
        self, code: grpc.StatusCode, message: str = "no room now", pushback: str | None = None, times: int = 1
    ) -> None:
        self.failures.extend([Failure(code, message, pushback)] * times)

    def set_health(self, status: str, service: str = "") -> None:
        self.health.set(service, HealthCheckResponse.ServingStatus.Value(status))

    def _take(self, request: Any, context: grpc.ServicerContext) -> None:
        self.requests.append(request)
        self.arrivals_s.append(time.monotonic())
        self.metadata.append(dict(context.invocation_metadata()))
        self.timeouts_s.append(context.time_remaining() or 0.0)
        self.arrived.set()
        if self.hold:
            held = [request]
            # A call that was released ends later, and must not affect the callers after it.
            if not context.add_callback(lambda: self.caller_left.set() if held else None):
                self.caller_left.set()
            self.caller_left.wait(60)
            held.clear()
        if self.failures:
            failure = self.failures.popleft()
            if failure.pushback is not None:
                context.set_trailing_metadata((("grpc-retry-pushback-ms", failure.pushback),))
            context.abort(failure.code, failure.message)

    def Rerank(self, request: Any, context: grpc.ServicerContext) -> rerank_pb2.RerankResponse:
        self._take(request, context)
        return rerank_pb2.RerankResponse(
            results=self.results,
            query_tokens_cut=3,
            usage=rerank_pb2.Usage(tokens=1, chunks=2, pairs=3, padded_tokens=4, cached_chunks=5),
            timings=rerank_pb2.Timings(
                total_ns=1, first_stage_ns=2, tokenization_ns=3, queue_ns=4, inference_ns=5, aggregation_ns=6
            ),
            ranker=rerank_pb2.RankerVersion(name="minilm", version="v1"),
        )

    def SearchAndRerank(
        self, request: Any, context: grpc.ServicerContext
    ) -> rerank_pb2.SearchAndRerankResponse:
        self._take(request, context)
        return rerank_pb2.SearchAndRerankResponse(results=self.results, index="pydoc")

    def ListRankers(self, request: Any, context: grpc.ServicerContext) -> rerank_pb2.ListRankersResponse:
        self._take(request, context)
        return self.catalog


class _Loaded(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The standard health service, with a load report."""

    def __init__(self, scripted: ScriptedServer) -> None:
        self._scripted = scripted

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:
        scripted = self._scripted
        with scripted.counting:
            scripted.checks += 1
            scripted.checks_open += 1
            is_full = scripted.checks_open > scripted.most_checks
        try:
            if is_full:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many health checks")
            return self._answer(request, context)
        finally:
            with scripted.counting:
                scripted.checks_open -= 1

    def _answer(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self._scripted.backlog_s is not None:
            report = f"TEXT named_metrics.backlog_s={self._scripted.backlog_s}"
            context.set_trailing_metadata((("endpoint-load-metrics", report),))
        return self._scripted.health.Check(request, context)

    def Watch(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._scripted.health.Watch(request, context)


def start_scripted(scripted: ScriptedServer, credentials: grpc.ServerCredentials | None) -> grpc.Server:
    server = grpc.server(
        futures.ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", 16 * 2**20)]
    )
    rerank_pb2_grpc.add_RerankServiceServicer_to_server(scripted, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(_Loaded(scripted), server)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    scripted.target = f"127.0.0.1:{port}"
    server.start()
    return server


def call_sync(target: str, use: Callable[[Client], Any], **arguments: Any) -> Any:
    with Client(target, **arguments) as client:
        return use(client)


def call_async(target: str, use: Callable[[AsyncClient], Any], **arguments: Any) -> Any:
    async def go() -> Any:
        async with AsyncClient(target, **arguments) as client:
            return await use(client)

    return asyncio.run(go())
