"""A transport of the client that calls a service in this process, without a socket."""

import asyncio
import os
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from farrank_calls.errors import FarrankError as ServiceError
from farrank_calls.telemetry.call_record import begin
from farrank_client.calls import CHECK_HEALTH
from farrank_client.errors import Unavailable, with_code
from farrank_first_stage.stages import open_first_stages
from farrank_server.config.schema import ServerConfig
from farrank_server.engine.device.device_loop import DeviceThread
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.document_cache import DocumentCache
from farrank_server.engine.loaded.loading import load_rankers
from farrank_server.engine.query_encoders import EngineEncoders
from farrank_server.metrics import Endpoint, Metrics
from farrank_server.service.guard import Guard
from farrank_server.service.indexes import Indexes, OpenIndexes
from farrank_server.service.methods import RerankService

Result = TypeVar("Result")

_CLOSED = "the reranker is closed"


class InProcess:
    """Loads the rankers of a configuration and answers the calls of a client.

    Everything runs on an event loop in a thread of its own, so that it works in a notebook, which has a loop,
    and in a program that has none. A forked process has neither the thread nor the device's.
    Raises: ConfigError if the rankers cannot be loaded.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._process, self._is_closed = os.getpid(), False
        # Nobody submits a call to a loop that is closing.
        self._lock = threading.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="farrank", daemon=True)
        self._thread.start()
        self._opened = AsyncExitStack()
        try:
            self._start(self._open()).result()
        except BaseException:
            self.close()
            raise

    def call(self, method: str, request: Message, response_type: type[Result], *, timeout_s: float) -> Result:
        """Answer a call; an interrupt ends it. Raises: the errors of `farrank_client.errors`."""
        answer = self.submit(method, request, response_type, timeout_s=timeout_s)
        try:
            return answer.result()
        finally:
            answer.cancel()

    def submit(
        self, method: str, request: Message, response_type: type[Result], *, timeout_s: float
    ) -> "Future[Result]":
        """Begin a call. Its future has the answer, or raises the errors of `farrank_client.errors`.

        Raises: Unavailable if this is closed, or was opened by the process that this one was forked from.
        """
        if os.getpid() != self._process:
            raise Unavailable("a process was forked; open a Reranker in each process, after the fork")
        with self._lock:
            if self._is_closed:
                raise Unavailable(_CLOSED)
            return self._start(self._answer(method, request, timeout_s))

    def close(self) -> None:
        """Fail the calls in flight with Unavailable, and free the rankers."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._start(self._end()).result()
        self._start(self._loop.shutdown_default_executor()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _start(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self) -> None:
        config, metrics = self._config, Metrics()
        opened, device, cache = self._opened, DeviceThread(), DocumentCache(self._config.cache_bytes)
        # Pushed first, so that a model is freed before the interpreter ends.
        opened.push_async_callback(asyncio.to_thread, device.shutdown)
        scorers = await asyncio.wrap_future(device.submit(load_rankers, config, cache))
        engine = Engine(config, scorers, device, cache, metrics)
        opened.push_async_callback(asyncio.to_thread, engine.close)
        encoders = EngineEncoders()
        encoders.provide(engine)
        opening = partial(open_first_stages, config.first_stage, encoders)
        first_stages = await asyncio.to_thread(opening)
        await first_stages.start()
        indexes = Indexes(OpenIndexes(first_stages, engine), opening, engine, metrics)
        opened.push_async_callback(indexes.stop)
        self._service = RerankService(config, engine, indexes, metrics)
        names = engine.rankers.keys()
        self._guard = Guard(Endpoint.GRPC, metrics, names, next(iter(names)))

    async def _end(self) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._opened.aclose()

    async def _answer(self, method: str, request: Message, timeout_s: float) -> Any:
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        try:
            return await self._answered(method, request, timeout_s)
        except asyncio.CancelledError:
            if self._is_closed:
                raise Unavailable(_CLOSED) from None
            raise
        finally:
            self._calls.discard(call)

    async def _answered(self, method: str, request: Message, timeout_s: float) -> Any:
        if method == CHECK_HEALTH.method:
            return CHECK_HEALTH.response_type(value=health_pb2.HealthCheckResponse.SERVING)
        name = method.rpartition("/")[2]
        entry = self._guard.enter(begin(None), lambda _: None, "")
        deadline_s = time.monotonic() + timeout_s

        async def handle(message: Message) -> Any:
            return await getattr(self._service, name)(message, deadline_s, entry)

        answer = await self._guard.answer(name, entry, request, handle)
        if isinstance(answer, ServiceError):
            raise with_code(answer.code, answer.message)
        return answer
