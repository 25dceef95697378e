"""gRPC's standard services, health and reflection, with room of their own beside calls.

Streams stay open for as long as a client likes. So many at once are let in, of one connection and of all, and
the others are refused at once; none of them takes the place of a call. What is sent to them is parsed here:
where gRPC parses, bytes that are no message are a traceback and UNKNOWN.

Sources: grpc/health/v1/health.proto, grpc/reflection/v1alpha/reflection.proto.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha._async import ReflectionServicer
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from farrank_server.errors import FarrankError, InvalidArgument, ResourceExhausted
from farrank_server.service.fields import SMALL_BYTES
from farrank_server.wire.handlers import Begun, Context, refuse

# A client that checks health holds a watch on each of its connections, a proxy some for its clients.
MOST_WATCHES = 4096
MOST_WATCHES_OF_A_CONNECTION = 256

# People with tools, and these ask within a second.
MOST_REFLECTIONS = 64
MOST_REFLECTIONS_OF_A_CONNECTION = 16
REFLECTION_IDLE_S = 60.0

# Checks in flight, which take no time: what is left to them where everything else is full.
ROOM_FOR_CHECKS = 256

# A check's request is a few bytes.
ARRIVAL_S = 10.0

# Calls that all of this may be at once.
ROOM = MOST_WATCHES + MOST_REFLECTIONS + ROOM_FOR_CHECKS

# The answer of a check carries the server's backlog as trailing metadata: a load report in ORCA's text form.
# Source: https://github.com/cncf/xds/blob/main/xds/data/orca/v3/orca_load_report.proto
LOAD_KEY = "endpoint-load-metrics"
_LOAD = "TEXT named_metrics.backlog_s={:.4f}"

# Who checks health does so this often, at least.
LATELY_S = 10.0

# The name under which a process says whether it must be started anew.
LIVENESS = "liveness"

# What tools of today ask first, and what older ones ask.
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"
REFLECTION_V1ALPHA = reflection.SERVICE_NAME

_RETRY_AFTER_MS = 5000

Request = TypeVar("Request", bound=Message)


class Health:
    """Health of some services: of all together, but for those that are down. Belongs to the event loop.

    `LIVENESS` is its own: only `report_part` changes it, so that a drain does not. `unlisted` are services
    whose names are told to nobody who does not know them.

    grpc_health's own servicer writes to a watcher while it holds a lock: one watcher that does not read would
    keep the health of all from changing.
    """

    def __init__(self, services: Sequence[str], unlisted: Sequence[str] = ()) -> None:
        self._listed = (*services, LIVENESS)
        self._services = frozenset(("", *self._listed, *unlisted))
        self._status = HealthCheckResponse.NOT_SERVING
        self._has_ended = False
        self._down: set[str] = set()
        self._changed = asyncio.Event()
        self._asked_s = -math.inf
        self._backlog_s: Callable[[], float] | None = None
        self._room = _Room("health watches", MOST_WATCHES, MOST_WATCHES_OF_A_CONNECTION)
        self._begun = Begun(ROOM_FOR_CHECKS, ARRIVAL_S)

    def report_load(self, backlog_s: Callable[[], float]) -> None:
        """Send with every check for how many seconds the device has work; `backlog_s` is called each time."""
        self._backlog_s = backlog_s

    def report(self, *, serving: bool) -> None:
        """Tell watchers, and whoever asks; nothing is heard any more after `end`."""
        if self._has_ended:
            return
        self._status = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    def report_part(self, service: str, *, serving: bool) -> None:
        """Tell that one service is down while the others are not, or that it is back."""
        (self._down.discard if serving else self._down.add)(service)
        self._changed.set()
        self._changed = asyncio.Event()

    def is_followed(self) -> bool:
        """Whether somebody watches, or has asked lately: who may send calls until told otherwise."""
        return self._room.is_used or time.monotonic() - self._asked_s < LATELY_S

    def is_serving(self, service: str) -> bool:
        """Whether a service is up."""
        return bool(self._status_of(service) == HealthCheckResponse.SERVING)

    def _status_of(self, service: str) -> HealthCheckResponse.ServingStatus:
        if service in self._down:
            return HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse.SERVING if service == LIVENESS else self._status

    def end(self) -> None:
        """Say for good that nothing is served."""
        self.report(serving=False)
        self._has_ended = True

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers of the service."""
        write = HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            health.SERVICE_NAME,
            {
                "Check": grpc.stream_unary_rpc_method_handler(self._check, response_serializer=write),
                "Watch": grpc.stream_stream_rpc_method_handler(self._watch, response_serializer=write),
            },
        )

    async def _check(self, _: object, context: Context) -> HealthCheckResponse:
        self._asked_s = time.monotonic()
        request = await _read(HealthCheckRequest, await self._begun.arrived(context), context)
        if request.service not in self._services:
            known = ", ".join(self._listed)
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"service: no service {request.service[:100]!r} here; known are: {known}",
            )
        if self._backlog_s is not None:
            context.set_trailing_metadata(((LOAD_KEY, _LOAD.format(self._backlog_s())),))
        return HealthCheckResponse(status=self._status_of(request.service))

    async def _watch(self, _: object, context: Context) -> None:
        request = await _read(HealthCheckRequest, await self._begun.arrived(context), context)
        is_known = request.service in self._services
        said = None
        with await self._room.entered(context):
            while True:
                changed = self._changed
                status = HealthCheckResponse.SERVICE_UNKNOWN
                if is_known:
                    status = self._status_of(request.service)
                if status != said:
                    said = status
                    await context.write(HealthCheckResponse(status=status))
                await changed.wait()


def reflection_handlers(services: Sequence[str]) -> tuple[grpc.GenericRpcHandler, ...]:
    """Describe services to tools, in both versions of reflection.

    Their messages are the same on the wire, and gRPC's package for Python has v1alpha alone. v1 is not
    listed: nothing here could describe it.
    """
    servicer = ReflectionServicer((*services, health.SERVICE_NAME, REFLECTION_V1ALPHA))
    room = _Room("reflection streams", MOST_REFLECTIONS, MOST_REFLECTIONS_OF_A_CONNECTION)

    async def reflect(_: object, context: Context) -> None:
        with await room.entered(context):
            while (data := await _next(context)) is not None:
                request = await _read(ServerReflectionRequest, data, context)
                async for answer in servicer.ServerReflectionInfo(_alone(request), context):
                    await context.write(answer)

    method: grpc.RpcMethodHandler[bytes, ServerReflectionResponse] = grpc.stream_stream_rpc_method_handler(
        reflect, response_serializer=ServerReflectionResponse.SerializeToString
    )
    return tuple(
        grpc.method_handlers_generic_handler(version, {"ServerReflectionInfo": method})
        for version in (REFLECTION_V1, REFLECTION_V1ALPHA)
    )


async def _next(context: Context) -> bytes | None:
    """The next message of a stream; None where it has ended, or nothing comes for a while."""
    try:
        async with asyncio.timeout(REFLECTION_IDLE_S):
            data = await context.read()
    except TimeoutError:
        return None
    return None if data is grpc.aio.EOF else data


async def _alone(request: Message) -> AsyncIterator[Message]:
    yield request


async def _read(kind: type[Request], data: bytes | FarrankError, context: Context) -> Request:
    """Parse a request of a standard service, or end its call."""
    if isinstance(data, FarrankError):
        await refuse(context, data)
    try:
        if len(data) > SMALL_BYTES:
            raise InvalidArgument(f"request: has {len(data)} bytes; {SMALL_BYTES} is the most here")
        return kind.FromString(data)
    except DecodeError as error:
        await refuse(context, InvalidArgument(f"request: is not a message of this method: {error}"))
    except InvalidArgument as error:
        await refuse(context, error)


class _Room:
    """Lets so many streams in at once, of one connection and of all."""

    def __init__(self, name: str, most: int, most_of_one: int) -> None:
        self._name, self._most, self._most_of_one = name, most, most_of_one
        self._of = Counter[str]()
        self._all = 0

    @property
    def is_used(self) -> bool:
        """Whether any stream is open."""
        return self._all > 0

    async def entered(self, context: Context) -> AbstractContextManager[None]:
        """Let a call in for as long as the context that is returned is held, or end the call."""
        peer = context.peer()
        if self._of[peer] >= self._most_of_one:
            await self._full(context, f"this connection has {self._most_of_one} {self._name}, the most")
        if self._all >= self._most:
            await self._full(context, f"{self._most} {self._name} are open, the most")
        return self._held(peer)

    async def _full(self, context: Context, what: str) -> None:
        await refuse(context, ResourceExhausted(what, retry_after_ms=_RETRY_AFTER_MS))

    @contextmanager
    def _held(self, peer: str) -> Iterator[None]:
        self._all += 1
        self._of[peer] += 1
        try:
            yield
        finally:
            self._all -= 1
            self._of[peer] -= 1
            if not self._of[peer]:
                del self._of[peer]
