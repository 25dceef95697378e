"""Transports to replicas: one channel per replica, and a choice among them before each call (`balancing`)."""

import asyncio
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import grpc
from google.protobuf.message import Message

from farrank_client.balancing import (
    PROBE_TIMEOUT_S,
    Backend,
    Probe,
    Replicas,
    Round,
    none_healthy,
    read_backlog_s,
)
from farrank_client.calls import Response, check_health
from farrank_client.errors import DeadlineExceeded, FarrankError, Unavailable, from_grpc
from farrank_client.lookup import Addresses, GivenAddresses, NamedAddresses
from farrank_client.transport import AsyncGrpcTransport, AsyncTransport, GrpcTransport, Setup, Transport


def open_transport(setup: Setup, max_replicas: int | None) -> Transport:
    """Open the transport to a destination, for threads."""
    return BalancedTransport(setup, max_replicas) if setup.is_chosen_from else GrpcTransport(setup)


def open_async_transport(setup: Setup, max_replicas: int | None) -> AsyncTransport:
    """Open the transport to a destination, for asyncio."""
    return AsyncBalancedTransport(setup, max_replicas) if setup.is_chosen_from else AsyncGrpcTransport(setup)


def _addresses(setup: Setup) -> Addresses:
    name = setup.place.name
    return NamedAddresses(*name) if name is not None else GivenAddresses(setup.place.addresses)


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("no replica has answered a health check before the deadline")


class BalancedTransport:
    """The transport to replicas for threads."""

    def __init__(self, setup: Setup, max_replicas: int | None = None) -> None:
        self._addresses = _addresses(setup)
        self._check = check_health(setup.health_service)
        # Reentrant: the callback of a probe that fails at once runs in the thread that sends it.
        self._asking = threading.RLock()
        self._replicas: Replicas[GrpcTransport] = Replicas(
            lambda address: GrpcTransport(setup, address), max_replicas
        )

    def call(
        self, method: str, request: Message, response_type: type[Response], *, timeout_s: float
    ) -> Response:
        """Choose a replica, send it the request and wait for the response."""
        until_s = time.monotonic() + timeout_s
        replica = self._choose(until_s)
        try:
            left_s = max(0.0, until_s - time.monotonic())
            return replica.wire.call(method, request, response_type, timeout_s=left_s)
        finally:
            if (unused := self._replicas.end(replica)) is not None:
                unused.close()

    def close(self) -> None:
        """Cancel calls in flight and close the connections."""
        for each in self._replicas.all():
            each.wire.close()

    def _choose(self, until_s: float) -> Backend[GrpcTransport]:
        found = self._addresses.current()
        if isinstance(found, Future):
            try:
                found = found.result(max(0.0, until_s - time.monotonic()))
            except TimeoutError:
                raise _too_late() from None
        for unused in self._replicas.update(found):
            unused.close()
        if (only := self._replicas.only()) is not None:
            return self._replicas.begin([only])
        tried: list[Backend[GrpcTransport]] = []
        last = None
        while drawn := self._replicas.draw(tried):
            asked = self._ask(drawn, until_s)
            if asked.healthy:
                return self._replicas.begin(asked.healthy)
            if time.monotonic() >= until_s:
                raise _too_late()
            tried += drawn
            last = asked.error
        raise none_healthy(len(tried), last)

    def _ask(self, drawn: Sequence[Backend[GrpcTransport]], until_s: float) -> Round[GrpcTransport]:
        asked = Round(self._replicas, drawn, until_s, time.monotonic())
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        waiting: dict[Any, tuple[Backend[GrpcTransport], Probe]] = {}
        for replica in asked.to_ask:
            probe = self._probe(replica)
            waiting[probe.future] = (replica, probe)
            probe.future.add_done_callback(ended.put)
        while waiting:
            try:
                future = ended.get(timeout=max(0.0, asked.until_s - time.monotonic()))
            except queue.Empty:
                break
            asked.answered(*waiting.pop(future), time.monotonic())
        asked.left(waiting.values())
        return asked

    def _probe(self, replica: Backend[GrpcTransport]) -> Probe:
        """Send a health check to a replica, or share the one in flight."""
        with self._asking:
            if replica.probe is not None:
                return replica.probe
            probe = self._replicas.asks(replica)
            probe.future = replica.wire.start(self._check, timeout_s=PROBE_TIMEOUT_S)
            replica.probe = probe
            # Callbacks run in the order of their addition: this one runs before those of waiting calls.
            probe.future.add_done_callback(lambda future: self._take(replica, probe, future))
            return probe

    def _take(self, replica: Backend[GrpcTransport], probe: Probe, future: Any) -> None:
        replica.probe = None
        try:
            self._check.read(future.result())
            self._replicas.heard(replica, probe, read_backlog_s(future.trailing_metadata()))
        except grpc.RpcError as error:
            self._replicas.refused(replica, probe, from_grpc(error))
        except grpc.FutureCancelledError:
            self._replicas.refused(replica, probe, Unavailable("the client was closed"))
        except FarrankError as error:
            self._replicas.refused(replica, probe, error)


class AsyncBalancedTransport:
    """The transport to replicas for asyncio."""

    def __init__(self, setup: Setup, max_replicas: int | None = None) -> None:
        self._addresses = _addresses(setup)
        self._check = check_health(setup.health_service)
        self._replicas: Replicas[AsyncGrpcTransport] = Replicas(
            lambda address: AsyncGrpcTransport(setup, address), max_replicas
        )

    async def call_async(
        self, method: str, request: Message, response_type: type[Response], *, timeout_s: float
    ) -> Response:
        """Choose a replica, send it the request and wait for the response."""
        until_s = time.monotonic() + timeout_s
        replica = await self._choose(until_s)
        try:
            left_s = max(0.0, until_s - time.monotonic())
            return await replica.wire.call_async(method, request, response_type, timeout_s=left_s)
        finally:
            if (unused := self._replicas.end(replica)) is not None:
                await unused.close_async()

    async def close_async(self) -> None:
        """Cancel calls in flight and close the connections."""
        for each in self._replicas.all():
            if each.probe is not None:
                each.probe.future.cancel()
            await each.wire.close_async()

    async def _choose(self, until_s: float) -> Backend[AsyncGrpcTransport]:
        found = self._addresses.current()
        if isinstance(found, Future):
            try:
                async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
                    # All callers share the lookup: it continues when one of them is cancelled.
                    found = await asyncio.shield(asyncio.wrap_future(found))
            except TimeoutError:
                raise _too_late() from None
        for unused in self._replicas.update(found):
            await unused.close_async()
        if (only := self._replicas.only()) is not None:
            return self._replicas.begin([only])
        tried: list[Backend[AsyncGrpcTransport]] = []
        last = None
        while drawn := self._replicas.draw(tried):
            asked = await self._ask(drawn, until_s)
            if asked.healthy:
                return self._replicas.begin(asked.healthy)
            if time.monotonic() >= until_s:
                raise _too_late()
            tried += drawn
            last = asked.error
        raise none_healthy(len(tried), last)

    async def _ask(
        self, drawn: Sequence[Backend[AsyncGrpcTransport]], until_s: float
    ) -> Round[AsyncGrpcTransport]:
        asked = Round(self._replicas, drawn, until_s, time.monotonic())
        waiting: dict[Any, tuple[Backend[AsyncGrpcTransport], Probe]] = {}
        for replica in asked.to_ask:
            if (probe := replica.probe) is None:
                probe = replica.probe = self._replicas.asks(replica)
                probe.future = asyncio.create_task(self._take(replica, probe))
            waiting[probe.future] = (replica, probe)
        while waiting:
            left_s = asked.until_s - time.monotonic()
            ended, _ = await asyncio.wait(
                waiting, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED
            )
            if not ended:
                break
            for future in ended:
                asked.answered(*waiting.pop(future), time.monotonic())
        asked.left(waiting.values())
        return asked

    async def _take(self, replica: Backend[AsyncGrpcTransport], probe: Probe) -> None:
        """Check a replica in a separate task: calls that wait for the answer may end before it comes."""
        try:
            call = replica.wire.start(self._check, timeout_s=PROBE_TIMEOUT_S)
            self._check.read(await call)
            self._replicas.heard(replica, probe, read_backlog_s(await call.trailing_metadata()))
        except grpc.RpcError as error:
            self._replicas.refused(replica, probe, from_grpc(error))
        except asyncio.CancelledError:
            self._replicas.refused(replica, probe, Unavailable("the client was closed"))
            raise
        except FarrankError as error:
            self._replicas.refused(replica, probe, error)
        finally:
            replica.probe = None
