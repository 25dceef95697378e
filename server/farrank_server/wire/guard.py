"""Around every method: errors become gRPC statuses, calls are counted, malformed bytes are refused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from farrank.v1 import rerank_pb2
from farrank.v1.rerank_pb2_grpc import RerankServiceServicer
from farrank_runtimes.runtime import forget_locals
from farrank_server.errors import DeadlineExceeded, FarrankError, Internal, InvalidArgument
from farrank_server.metrics import Metrics

log = logging.getLogger(__name__)

SERVICE = rerank_pb2.DESCRIPTOR.services_by_name["RerankService"]

# gRPC's own key for a server's wish when to be called again (gRFC A6); its clients honour it.
RETRY_KEY = "grpc-retry-pushback-ms"

# A caller's deadline passes before ours by its request's way here: who goes so shortly before was late.
LATE_S = 0.1

Behaviour = Callable[[Any, Any], Any]


class Guard:
    """The one place that decides what a caller is told when something fails."""

    def __init__(self, metrics: Metrics, rankers: Collection[str], default_ranker: str) -> None:
        self._metrics = metrics
        self._rankers = rankers
        self._default_ranker = default_ranker

    def handlers(self, servicer: RerankServiceServicer) -> grpc.GenericRpcHandler:
        """Make the service's handlers around a servicer's methods.

        Not an interceptor: gRPC would go through its chain with every call.
        """
        handlers = {}
        for method in SERVICE.methods:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                self._guarded(getattr(servicer, method.name), method.name),
                # A failure inside gRPC's own deserializing would reach the caller as INTERNAL.
                request_deserializer=partial(_read, GetMessageClass(method.input_type)),
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
        return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)

    def _guarded(self, behaviour: Behaviour, method: str) -> Behaviour:
        async def call(request: Any, context: Any) -> Any:
            started_s = time.perf_counter()
            ranker = self._ranker_label(request)
            code = grpc.StatusCode.OK
            self._metrics.in_flight.labels(method).inc()
            try:
                if isinstance(request, str):
                    raise InvalidArgument(request)
                return await behaviour(request, context)
            except asyncio.CancelledError:
                # gRPC cancels the handler when the caller goes, and when the deadline passes.
                remaining_s = context.time_remaining()
                late = remaining_s is not None and remaining_s < LATE_S
                code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
                if late:
                    self._count_failure(ranker, DeadlineExceeded("cancelled by gRPC"))
                else:
                    self._metrics.cancellations.labels(ranker).inc()
                raise
            except FarrankError as error:
                code = error.code
                await self._refuse(context, ranker, error)
            except Exception as error:
                code = grpc.StatusCode.INTERNAL
                log.exception("%s failed", method)
                forget_locals(error)
                await self._refuse(context, ranker, Internal("the server failed; its log says why"))
            finally:
                # After the answer is on its way, so that no caller waits for the counters.
                seconds = time.perf_counter() - started_s
                asyncio.get_running_loop().call_soon(self._count_call, method, ranker, code, seconds)

        return call

    async def _refuse(self, context: Any, ranker: str, error: FarrankError) -> None:
        self._count_failure(ranker, error)
        # A call that waited is in a circle with its error. Without this its texts would stay until a full
        # collection, and those are rare here.
        forget_locals(error)
        hint = () if error.retry_after_ms is None else ((RETRY_KEY, str(error.retry_after_ms)),)
        await context.abort(error.code, error.message, hint)

    def _count_call(self, method: str, ranker: str, code: grpc.StatusCode, seconds: float) -> None:
        self._metrics.in_flight.labels(method).dec()
        self._metrics.requests.labels(method, ranker, code.name).inc()
        self._metrics.request_seconds.labels(method, ranker).observe(seconds)

    def _count_failure(self, ranker: str, error: FarrankError) -> None:
        """Count what was not the caller's mistake: admitted calls that were late, and all others refused."""
        if error.reason is not None:
            self._metrics.rejections.labels(ranker, error.reason).inc()
        elif isinstance(error, DeadlineExceeded):
            self._metrics.deadline_drops.labels(ranker, error.dropped_at).inc()

    def _ranker_label(self, request: Any) -> str:
        """The ranker asked for; never a caller's own word, which could be a new one every time."""
        options = getattr(request, "options", None)
        if options is None:
            return ""
        name = options.ranker or self._default_ranker
        return name if name in self._rankers else "unknown"


def _read(message: type[Message], data: bytes) -> Message | str:
    """Read bytes, or say what the caller is to be told."""
    try:
        return message.FromString(data)
    except DecodeError as error:
        return f"request: is not a message of this method: {error}"
