"""Carries calls to replicas: a channel for each, and a choice among them before every call (`balancing`)."""

import asyncio
import queue
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import grpc
from google.protobuf.message import Message

from farrank_client.balancing import Replica, Replicas, Round, none_healthy, read_backlog_s
from farrank_client.calls import Response, check_health
from farrank_client.errors import DeadlineExceeded, FarrankError, from_grpc
from farrank_client.lookup import Addresses, GivenAddresses, NamedAddresses
from farrank_client.transport import AsyncGrpcTransport, AsyncTransport, GrpcTransport, Setup, Transport


def open_transport(setup: Setup, max_replicas: int | None) -> Transport:
    """Open what carries calls to a destination, from threads."""
    return BalancedTransport(setup, max_replicas) if setup.is_chosen_from else GrpcTransport(setup)


def open_async_transport(setup: Setup, max_replicas: int | None) -> AsyncTransport:
    """Open what carries calls to a destination, from asyncio."""
    return AsyncBalancedTransport(setup, max_replicas) if setup.is_chosen_from else AsyncGrpcTransport(setup)


def _addresses(setup: Setup) -> Addresses:
    name = setup.place.name
    return NamedAddresses(*name) if name is not None else GivenAddresses(setup.place.addresses)


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("no replica has answered a health check before the deadline")


class BalancedTransport:
    """Carries calls to replicas, from threads."""

    def __init__(self, setup: Setup, max_replicas: int | None = None) -> None:
        self._addresses = _addresses(setup)
        self._check = check_health(setup.health_service)
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
        """End what is in flight and let go of the connections."""
        for each in self._replicas.all():
            each.wire.close()

    def _choose(self, until_s: float) -> Replica[GrpcTransport]:
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
        tried: list[Replica[GrpcTransport]] = []
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

    def _ask(self, drawn: Sequence[Replica[GrpcTransport]], until_s: float) -> Round[GrpcTransport]:
        now_s = time.monotonic()
        asked = Round(self._replicas, drawn, until_s, now_s)
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        waiting: dict[Any, Replica[GrpcTransport]] = {}
        for replica in asked.to_ask:
            probe = replica.wire.start(self._check, timeout_s=max(0.0, until_s - now_s))
            waiting[probe] = replica
            probe.add_done_callback(ended.put)
        try:
            while waiting:
                try:
                    probe = ended.get(timeout=max(0.0, asked.until_s - time.monotonic()))
                except queue.Empty:
                    break
                replica = waiting.pop(probe)
                try:
                    self._check.read(probe.result())
                    backlog_s = read_backlog_s(probe.trailing_metadata())
                    asked.answered(replica, backlog_s, time.monotonic())
                except grpc.RpcError as error:
                    asked.failed(replica, from_grpc(error))
                except FarrankError as error:
                    asked.failed(replica, error)
        finally:
            for probe in waiting:
                probe.cancel()
        asked.left(waiting.values())
        return asked


class AsyncBalancedTransport:
    """Carries calls to replicas, from asyncio."""

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
        """End what is in flight and let go of the connections."""
        for each in self._replicas.all():
            await each.wire.close_async()

    async def _choose(self, until_s: float) -> Replica[AsyncGrpcTransport]:
        found = self._addresses.current()
        if isinstance(found, Future):
            try:
                async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
                    # The lookup is all callers' and goes on when one of them leaves.
                    found = await asyncio.shield(asyncio.wrap_future(found))
            except TimeoutError:
                raise _too_late() from None
        for unused in self._replicas.update(found):
            await unused.close_async()
        if (only := self._replicas.only()) is not None:
            return self._replicas.begin([only])
        tried: list[Replica[AsyncGrpcTransport]] = []
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
        self, drawn: Sequence[Replica[AsyncGrpcTransport]], until_s: float
    ) -> Round[AsyncGrpcTransport]:
        now_s = time.monotonic()
        asked = Round(self._replicas, drawn, until_s, now_s)

        async def probe(replica: Replica[AsyncGrpcTransport]) -> float:
            call = replica.wire.start(self._check, timeout_s=max(0.0, until_s - now_s))
            try:
                self._check.read(await call)
                return read_backlog_s(await call.trailing_metadata())
            except grpc.RpcError as error:
                raise from_grpc(error) from error

        waiting = {asyncio.create_task(probe(each)): each for each in asked.to_ask}
        try:
            while waiting:
                left_s = asked.until_s - time.monotonic()
                ended, _ = await asyncio.wait(
                    waiting, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED
                )
                if not ended:
                    break
                for task in ended:
                    replica, error = waiting.pop(task), task.exception()
                    if isinstance(error, FarrankError):
                        asked.failed(replica, error)
                    else:
                        asked.answered(replica, task.result(), time.monotonic())
        finally:
            for task in waiting:
                task.cancel()
        asked.left(waiting.values())
        return asked
