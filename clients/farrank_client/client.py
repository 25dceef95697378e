"""The two clients: for threads, and for asyncio."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

import grpc

from farrank_client import calls
from farrank_client.balanced import open_async_transport, open_transport
from farrank_client.calls import Answer, Documents, RerankOptions, Response, UnaryCall
from farrank_client.catalog import Catalog
from farrank_client.errors import DeadlineExceeded, FarrankError, Unavailable
from farrank_client.ranking import Ranking
from farrank_client.retry import DEFAULT_RETRY, NO_RETRY, UNTIL_HEALTHY, Attempts, RetryPolicy
from farrank_client.transport import (
    AsyncTransport,
    ChannelOption,
    Keepalive,
    Metadata,
    Tls,
    Transport,
    key_metadata,
    set_up,
)

# Calls of `rank_all` that are in flight.
CALLS_IN_FLIGHT = 8

AnyTransport = TypeVar("AnyTransport", Transport, AsyncTransport)


class _Client(Generic[AnyTransport]):
    """The arguments that both clients share."""

    _open: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        target: str | Sequence[str] = "localhost:50051",
        *,
        timeout_s: float = 60.0,
        retry: RetryPolicy = DEFAULT_RETRY,
        tls: Tls | None = None,
        api_key: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Metadata = (),
        keepalive_s: Keepalive = "auto",
        health_service: str | None = None,
        max_replicas: int | None = None,
        options: Sequence[ChannelOption] = (),
        transport: AnyTransport | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._retry = retry
        if api_key is not None:
            metadata = (*metadata, key_metadata(api_key))
        if transport is None:
            setup = set_up(target, tls, credentials, metadata, keepalive_s, health_service, options)
            if max_replicas is not None and max_replicas < 1:
                raise ValueError(f"max_replicas: {max_replicas} is not allowed; it must be at least 1")
            transport = self._open(setup, max_replicas)
        self._transport: AnyTransport = transport


class Client(_Client[Transport]):
    """A client of one server or of replicas; threads may share it. Close it, or use it in a `with`.

    `target` is HOST:PORT. Several IP addresses, or a target such as `dns:///NAME:PORT`, are replicas: each
    call goes to a healthy replica with little work, and a call that it cannot answer is retried at
    another (docs/how-to/scaling.md). `health_service` is the service in the replicas' health checks: by
    default RerankService. `max_replicas` bounds the number of replicas that this client connects to (None:
    all).
    `timeout_s` is the deadline of every call without its own, including retries. `api_key` is sent with every
    call; without TLS it is readable on the network. `transport` replaces the network (see
    `farrank_client.testing`). Failed calls raise the exceptions of `errors`. `keepalive_s` is the interval of
    pings while a call waits (None: never; "auto": 2 s with replicas, else 310 s).
    Raises: ValueError for an invalid `target` or `api_key`, `max_replicas` below 1, both `tls` and
    `credentials`, or several addresses with a `tls` that has no `server_name`; OSError if a file of `tls`
    cannot be read.
    """

    _open = staticmethod(open_transport)

    def rerank(
        self,
        query: str,
        documents: Documents,
        *,
        timeout_s: float | None = None,
        **options: Unpack[RerankOptions],
    ) -> Ranking:
        """Order documents by a query, reading each as a whole.

        `documents` are texts, `Document`s, pairs (id, text), mappings with `text` and optionally `id`, or one
        mapping of ids to texts. All are scored. `RerankOptions` describes the options.
        Raises: TypeError for an invalid document or option; FarrankError if the call fails.
        """
        return self._perform(calls.rerank(query, documents, options), timeout_s)

    def search_and_rerank(
        self,
        query: str,
        *,
        index: str | None = None,
        k: int | None = None,
        timeout_s: float | None = None,
        **options: Unpack[RerankOptions],
    ) -> Ranking:
        """Search an index of the server for `k` candidates and order them like `rerank`."""
        return self._perform(calls.search_and_rerank(query, index, k, options), timeout_s)

    def rank_all(
        self, queries: Iterable[tuple[str, Documents]], **options: Unpack[RerankOptions]
    ) -> Iterator[Ranking]:
        """Rank documents for many queries, pairs (query, documents); yields rankings in their order.

        Several calls are in flight, so that the server's batches are full.
        Raises: as `rerank`, at the place of the query that fails.
        """
        pending: deque[Future[Ranking]] = deque()
        with ThreadPoolExecutor(CALLS_IN_FLIGHT, "farrank") as threads:
            try:
                for query, documents in queries:
                    pending.append(threads.submit(self.rerank, query, documents, **options))
                    if len(pending) > CALLS_IN_FLIGHT:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for each in pending:
                    each.cancel()

    def rankers(self, *, timeout_s: float | None = None) -> Catalog:
        """List the server's rankers, indexes and limits."""
        return self._perform(calls.LIST_RANKERS, timeout_s)

    def is_healthy(self, *, timeout_s: float = 5.0) -> bool:
        """Check once whether the server accepts calls; no answer in time counts as no."""
        try:
            self._perform(calls.CHECK_HEALTH, timeout_s, NO_RETRY)
        except (Unavailable, DeadlineExceeded):
            return False
        return True

    def wait_until_healthy(self, timeout_s: float) -> None:
        """Wait until the server accepts calls, for example after its start.

        Raises: Unavailable or DeadlineExceeded, with the last reason, if it does not in time.
        """
        self._perform(calls.CHECK_HEALTH, timeout_s, UNTIL_HEALTHY)

    def close(self) -> None:
        """Cancel calls in flight and close the connection."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _perform(
        self, call: UnaryCall[Response, Answer], timeout_s: float | None, retry: RetryPolicy | None = None
    ) -> Answer:
        attempts = Attempts(retry or self._retry, self._timeout_s if timeout_s is None else timeout_s)
        while True:
            try:
                response = self._transport.call(
                    call.method, call.request, call.response_type, timeout_s=attempts.remaining_s()
                )
                return call.read(response)
            except FarrankError as error:
                pause_s = attempts.pause_s_after(error)
                if pause_s is None:
                    raise
            time.sleep(pause_s)


class AsyncClient(_Client[AsyncTransport]):
    """A client of one server or of replicas for one event loop. Close it, or use it in an `async with`.

    Cancelling a task that waits for a call cancels the call, so that the server drops its work. Arguments and
    exceptions are those of `Client`.
    """

    _open = staticmethod(open_async_transport)

    async def rerank(
        self,
        query: str,
        documents: Documents,
        *,
        timeout_s: float | None = None,
        **options: Unpack[RerankOptions],
    ) -> Ranking:
        """Order documents by a query, reading each as a whole: see `Client.rerank`."""
        return await self._perform(calls.rerank(query, documents, options), timeout_s)

    async def search_and_rerank(
        self,
        query: str,
        *,
        index: str | None = None,
        k: int | None = None,
        timeout_s: float | None = None,
        **options: Unpack[RerankOptions],
    ) -> Ranking:
        """Search an index of the server for `k` candidates and order them like `rerank`."""
        return await self._perform(calls.search_and_rerank(query, index, k, options), timeout_s)

    async def rank_all(
        self, queries: Iterable[tuple[str, Documents]], **options: Unpack[RerankOptions]
    ) -> AsyncIterator[Ranking]:
        """Rank documents for many queries: see `Client.rank_all`."""
        pending: deque[asyncio.Task[Ranking]] = deque()
        try:
            for query, documents in queries:
                pending.append(asyncio.create_task(self.rerank(query, documents, **options)))
                if len(pending) > CALLS_IN_FLIGHT:
                    yield await pending.popleft()
            while pending:
                yield await pending.popleft()
        finally:
            for each in pending:
                each.cancel()

    async def rankers(self, *, timeout_s: float | None = None) -> Catalog:
        """List the server's rankers, indexes and limits."""
        return await self._perform(calls.LIST_RANKERS, timeout_s)

    async def is_healthy(self, *, timeout_s: float = 5.0) -> bool:
        """Check once whether the server accepts calls; no answer in time counts as no."""
        try:
            await self._perform(calls.CHECK_HEALTH, timeout_s, NO_RETRY)
        except (Unavailable, DeadlineExceeded):
            return False
        return True

    async def wait_until_healthy(self, timeout_s: float) -> None:
        """Wait until the server accepts calls, for example after its start.

        Raises: Unavailable or DeadlineExceeded, with the last reason, if it does not in time.
        """
        await self._perform(calls.CHECK_HEALTH, timeout_s, UNTIL_HEALTHY)

    async def close(self) -> None:
        """Cancel calls in flight and close the connection."""
        await self._transport.close_async()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _perform(
        self, call: UnaryCall[Response, Answer], timeout_s: float | None, retry: RetryPolicy | None = None
    ) -> Answer:
        attempts = Attempts(retry or self._retry, self._timeout_s if timeout_s is None else timeout_s)
        while True:
            try:
                response = await self._transport.call_async(
                    call.method, call.request, call.response_type, timeout_s=attempts.remaining_s()
                )
                return call.read(response)
            except FarrankError as error:
                pause_s = attempts.pause_s_after(error)
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)
