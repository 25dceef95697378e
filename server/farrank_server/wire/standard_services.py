"""gRPC's standard services, health and reflection, with limits of their own.

Streams stay open for as long as a client likes. Their number is limited in total, per caller and per
connection; further ones are refused at once, and none takes the place of a call. Requests are parsed here: if
gRPC parsed them, bytes that are not a message would cause a traceback and the status UNKNOWN.

Sources: grpc/health/v1/health.proto, grpc/reflection/v1alpha/reflection.proto.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from farrank_calls.errors import DeadlineExceeded, FarrankError, InvalidArgument, ResourceExhausted
from farrank_server.access.keys import Keys
from farrank_server.service.fields import SMALL_BYTES
from farrank_server.service.open_calls import OpenCalls
from farrank_server.wire.handlers import refuse
from farrank_server.wire.metadata import Context, bounded_metadata, header_in, metadata_of

# A client that checks health holds one watch on each of its connections; a proxy holds several for its
# clients.
MAX_WATCHES = 4096
MAX_WATCHES_PER_CONNECTION = 256

# Reflection is used by people with tools, at about one call a second.
MAX_REFLECTIONS = 64
MAX_REFLECTIONS_PER_CONNECTION = 16
REFLECTION_IDLE_S = 60.0

# Open checks take no time. They have places of their own, which are free when everything else is full.
MAX_CHECKS = 1024
MAX_CHECKS_PER_CONNECTION = 64

# A caller may hold as many places as are free: one caller alone gets half, so that another finds some.
SHARE_OF_FREE = 1.0

# A request of these services has a few bytes and comes with its call. At most MAX_PENDING_REQUESTS are
# awaited at once, since each may become as large as gRPC allows. Beyond that, one that has been awaited for
# GIVES_WAY_S is given up for a new one.
MAX_PENDING_REQUESTS = 32
GIVES_WAY_S = 0.05
ARRIVAL_S = 2.0

# The most calls of all these services at once.
ROOM = MAX_WATCHES + MAX_REFLECTIONS + MAX_CHECKS

# The answer of a check carries the server's backlog as trailing metadata: a load report in ORCA's text form.
# Source: https://github.com/cncf/xds/blob/main/xds/data/orca/v3/orca_load_report.proto
LOAD_KEY = "endpoint-load-metrics"
_LOAD = "TEXT named_metrics.backlog_s={:.4f}"

# Clients that check health do so at least this often.
LATELY_S = 10.0

# The service name under which a process reports whether it must be restarted.
LIVENESS = "liveness"

# The version that current tools ask for first, and the one that older tools ask for.
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"
REFLECTION_V1ALPHA = reflection.SERVICE_NAME

_RETRY_AFTER_MS = 5000

Request = TypeVar("Request", bound=Message)


class Health:
    """Health of services: one status for all, except those reported down. Belongs to the event loop.

    `LIVENESS` has a status of its own: only `report_part` changes it, so a drain does not. `unlisted` are
    services whose names appear in no error; `protect` hides them from callers without a key for them.

    grpc_health's own servicer writes to a watcher while it holds a lock: one watcher that does not read would
    keep the status of all services from changing.
    """

    def __init__(self, services: Sequence[str], unlisted: Sequence[str] = ()) -> None:
        self._listed = (*services, LIVENESS)
        self.list_unlisted(unlisted)
        self._status = HealthCheckResponse.NOT_SERVING
        self._has_ended = False
        self._down: set[str] = set()
        self._changed = asyncio.Event()
        self._asked_s = -math.inf
        self._backlog_s: Callable[[], float] | None = None
        self._keys: Keys | None = None
        self.watches = OpenCalls(
            "health watches",
            MAX_WATCHES,
            of_free=SHARE_OF_FREE,
            of_connection=MAX_WATCHES_PER_CONNECTION,
        )
        self.checks = OpenCalls(
            "health checks",
            MAX_CHECKS,
            of_free=SHARE_OF_FREE,
            of_connection=MAX_CHECKS_PER_CONNECTION,
        )
        self._arriving = _PendingRequests()

    def list_unlisted(self, services: Collection[str]) -> None:
        """Replace the services whose names appear in no error."""
        self._ranker_names = frozenset(services)
        self._services = frozenset(("", *self._listed, *services))

    def protect(self, keys: Keys) -> None:
        """Report a ranker's health only to callers with a key that may use it."""
        self._keys = keys

    def _knows(self, service: str, context: Context) -> bool:
        """Whether a service exists and the caller may know about it."""
        if service not in self._services:
            return False
        if self._keys is None or service not in self._ranker_names:
            return True
        entry = self._keys.identify(header_in(metadata_of(context)))
        return entry.refusal is None and entry.caller.may_rank(service.rpartition("/")[2])

    def report_load(self, backlog_s: Callable[[], float]) -> None:
        """Send the device's backlog in seconds with every check; `backlog_s` is called each time."""
        self._backlog_s = backlog_s

    def report(self, *, serving: bool) -> None:
        """Set the status that watchers and checks get; after `end` this has no effect."""
        if self._has_ended:
            return
        self._status = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    def report_part(self, service: str, *, serving: bool) -> None:
        """Report that one service is down while the others are not, or that it is up again."""
        (self._down.discard if serving else self._down.add)(service)
        self._changed.set()
        self._changed = asyncio.Event()

    def is_followed(self) -> bool:
        """Whether anyone watches or has checked lately. Such clients send calls until they see a drain."""
        return self.watches.is_used or time.monotonic() - self._asked_s < LATELY_S

    def is_serving(self, service: str) -> bool:
        """Whether a service is up."""
        return bool(self._status_of(service) == HealthCheckResponse.SERVING)

    def _status_of(self, service: str) -> HealthCheckResponse.ServingStatus:
        if service in self._down:
            return HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse.SERVING if service == LIVENESS else self._status

    def end(self) -> None:
        """Report finally that nothing is served."""
        self.report(serving=False)
        self._has_ended = True

    def methods(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Return the handlers of the service's methods by name."""
        write = HealthCheckResponse.SerializeToString
        return {
            "Check": grpc.stream_unary_rpc_method_handler(self._check, response_serializer=write),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch, response_serializer=write),
        }

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the methods' handlers as one handler."""
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, self.methods())

    async def _check(self, _: object, context: Context) -> HealthCheckResponse:
        self._asked_s = time.monotonic()
        await _admit(self.checks, context)
        request = await _read(HealthCheckRequest, await self._arriving.arrived(context), context)
        if not self._knows(request.service, context):
            known = ", ".join(self._listed)
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"service: no service {request.service[:100]!r} here; known are: {known}",
            )
        if self._backlog_s is not None:
            context.set_trailing_metadata(((LOAD_KEY, _LOAD.format(self._backlog_s())),))
        return HealthCheckResponse(status=self._status_of(request.service))

    async def _watch(self, _: object, context: Context) -> None:
        await _admit(self.watches, context)
        request = await _read(HealthCheckRequest, await self._arriving.arrived(context), context)
        is_known = self._knows(request.service, context)
        sent = None
        while True:
            changed = self._changed
            status = HealthCheckResponse.SERVICE_UNKNOWN
            if is_known:
                status = self._status_of(request.service)
            if status != sent:
                sent = status
                await context.write(HealthCheckResponse(status=status))
            await changed.wait()


def reflections() -> OpenCalls:
    """Create the limits on reflection streams."""
    return OpenCalls(
        "reflection streams",
        MAX_REFLECTIONS,
        of_free=SHARE_OF_FREE,
        of_connection=MAX_REFLECTIONS_PER_CONNECTION,
    )


def reflection_handlers(services: Sequence[str], room: OpenCalls) -> tuple[grpc.GenericRpcHandler, ...]:
    """Describe services to tools, in both versions of reflection.

    Both versions have the same messages on the wire. gRPC's Python package has only v1alpha. The description
    of v1 is that of v1alpha with other names.
    """
    names = (*services, health.SERVICE_NAME, REFLECTION_V1, REFLECTION_V1ALPHA)
    known, pool = descriptor_pool.Default(), descriptor_pool.DescriptorPool()
    for name in (*services, health.SERVICE_NAME, REFLECTION_V1ALPHA):
        _describe(known.FindFileContainingSymbol(name), pool)
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    pool.Add(text_format.Parse(str(file).replace("v1alpha", "v1"), FileDescriptorProto()))
    servicer = ReflectionServicer(names, pool)

    async def reflect(_: object, context: Context) -> None:
        await _admit(room, context)
        while (data := await _next(context)) is not None:
            request = await _read(ServerReflectionRequest, data, context)
            async for answer in servicer.ServerReflectionInfo(_single(request), context):
                await context.write(answer)

    method: grpc.RpcMethodHandler[bytes, ServerReflectionResponse] = grpc.stream_stream_rpc_method_handler(
        reflect, response_serializer=ServerReflectionResponse.SerializeToString
    )
    return tuple(
        grpc.method_handlers_generic_handler(version, {"ServerReflectionInfo": method})
        for version in (REFLECTION_V1, REFLECTION_V1ALPHA)
    )


def _describe(file: FileDescriptor, pool: descriptor_pool.DescriptorPool) -> None:
    """Add a file to a pool, after the files that it imports."""
    for each in file.dependencies:
        _describe(each, pool)
    pool.AddSerializedFile(file.serialized_pb)


async def _next(context: Context) -> bytes | None:
    """The next message of a stream; None if it has ended, or was idle for `REFLECTION_IDLE_S`."""
    try:
        async with asyncio.timeout(REFLECTION_IDLE_S):
            data = await context.read()
    except TimeoutError:
        return None
    return None if data is grpc.aio.EOF else data


async def _single(request: Message) -> AsyncIterator[Message]:
    yield request


async def _read(kind: type[Request], data: bytes | FarrankError, context: Context) -> Request:
    """Parse a request of a standard service, or end its call."""
    if isinstance(data, FarrankError):
        await refuse(context, data)
    try:
        if len(data) > SMALL_BYTES:
            raise InvalidArgument(f"request: has {len(data)} bytes; the limit is {SMALL_BYTES}")
        return kind.FromString(data)
    except DecodeError as error:
        await refuse(context, InvalidArgument(f"request: is not a valid message of this method: {error}"))
    except InvalidArgument as error:
        await refuse(context, error)


async def _admit(places: OpenCalls, context: Context) -> None:
    """Take a place for a call, or refuse the call."""
    await bounded_metadata(context)
    refusal = places.enter(context.peer())
    if refusal is not None:
        refusal.retry_after_ms = _RETRY_AFTER_MS
        await refuse(context, refusal)


class _PendingRequests:
    """Calls that wait for their request: a limited number, of which the oldest gives way to a new one."""

    def __init__(self) -> None:
        # The time at which each began to wait, oldest first.
        self._waiting: dict[asyncio.Timeout, float] = {}

    async def arrived(self, context: Context) -> bytes | FarrankError:
        """Wait for a call's request; return it, or the error for its caller."""
        clock_s = asyncio.get_running_loop().time
        while len(self._waiting) >= MAX_PENDING_REQUESTS:
            # After a stall of the event loop, complete requests may wait to be read: they are read meanwhile.
            await asyncio.sleep(GIVES_WAY_S / 5)
            if len(self._waiting) < MAX_PENDING_REQUESTS:
                break
            oldest, began_s = next(iter(self._waiting.items()))
            # One whose own time is up leaves by itself, in this turn of the event loop or the next.
            if clock_s() - began_s >= GIVES_WAY_S and not oldest.expired():
                del self._waiting[oldest]
                oldest.reschedule(clock_s())
        patience = asyncio.timeout(ARRIVAL_S)
        try:
            async with patience:
                self._waiting[patience] = clock_s()
                data = await context.read()
        except TimeoutError:
            if patience in self._waiting:
                return DeadlineExceeded(f"request: did not arrive within {ARRIVAL_S:g} s")
            return ResourceExhausted(
                f"request: did not arrive while {MAX_PENDING_REQUESTS} other calls waited for theirs",
                retry_after_ms=_RETRY_AFTER_MS,
            )
        finally:
            self._waiting.pop(patience, None)
        if data is grpc.aio.EOF:
            return InvalidArgument("request: is missing")
        assert isinstance(data, bytes)
        return data
