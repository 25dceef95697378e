"""Traces of sampled calls by OpenTelemetry, sent to an OTLP collector over HTTP.

Imported only if `tracing.endpoint` is set. A call that is not sampled has no trace, and its stages record
nothing. The stages of a sampled call record when they began and ended. Spans are made of these times after
the answer is on its way.

Sources: https://www.w3.org/TR/trace-context/, https://opentelemetry.io/docs/specs/otel/.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata

import grpc
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from farrank_calls.telemetry.call_record import Facts, TracedBatch
from farrank_calls.telemetry.config import TracingConfig

# The limit of a call's steps; further ones are only counted. Thousands of documents are a few hundred
# batches.
MAX_STEPS = 256

# How long the exit of the process waits for a collector.
CLOSE_S = 2.0

# The codes that OpenTelemetry's conventions count as errors of the server. Others are the caller's errors.
_ERRORS = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
}

_W3C = TraceContextTextMapPropagator()


class Tracing:
    """Decides which calls are traced, and sends their spans.

    `service` is the process's name if the environment sets none (OTEL_SERVICE_NAME,
    OTEL_RESOURCE_ATTRIBUTES).
    """

    def __init__(self, config: TracingConfig, service: str) -> None:
        own: dict[str, str | int] = {
            "service.name": service,
            "service.version": metadata.version("farrank"),
            "process.pid": os.getpid(),
        }
        # The environment takes precedence.
        resource = Resource.create(own).merge(OTELResourceDetector().detect())
        root = TraceIdRatioBased(config.sample_ratio)
        sampler = ParentBased(root, remote_parent_sampled=ALWAYS_ON if config.follow_callers else root)
        # Disable the provider's own shutdown: at exit it may wait half a minute for a collector that does not
        # answer.
        self._sampled = TracerProvider(sampler, resource, shutdown_on_exit=False)
        # A batch belongs to all of its calls: it is recorded if any of them is sampled.
        self._all = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        self._processor = BatchSpanProcessor(OTLPSpanExporter(config.url))
        for each in (self._sampled, self._all):
            each.add_span_processor(self._processor)
        self.tracer = self._sampled.get_tracer("farrank")
        self.batches = self._all.get_tracer("farrank")

    def begin(self, header: Callable[[str], str | None]) -> "CallTrace | None":
        """Begin the trace of a call, as a child of its caller's trace. Returns None if it is not sampled.

        The span becomes the current one of the calling context.
        """
        sent = {name: value for name in ("traceparent", "tracestate") if (value := header(name))}
        span = self.tracer.start_span("call", _W3C.extract(sent, contexts.Context()), trace.SpanKind.SERVER)
        if not span.is_recording():
            return None
        contexts.attach(trace.set_span_in_context(span))
        return CallTrace(self, span)

    @contextmanager
    def continued(self, traceparent: str, name: str, start_ns: int, facts: Facts) -> Iterator[None]:
        """Open a span for the request of another process, in the trace of that process."""
        context = _W3C.extract({"traceparent": traceparent}, contexts.Context())
        attributes = _attributes(facts)
        span = self.tracer.start_span(name, context, trace.SpanKind.SERVER, attributes, start_time=start_ns)
        try:
            yield
        finally:
            span.end()

    def close(self) -> None:
        """Send the spans not yet sent. Waits at most `CLOSE_S`."""
        ending = threading.Thread(target=self._processor.shutdown, name="farrank-traces-end", daemon=True)
        ending.start()
        ending.join(CLOSE_S)


class CallTrace:
    """The trace of one sampled call; times are of `time.monotonic`.

    Belongs to the event loop, except for `step`.
    """

    def __init__(self, tracing: Tracing, span: trace.Span) -> None:
        self._tracing = tracing
        self._span = span
        self._context = trace.set_span_in_context(span, contexts.Context())
        self._steps: list[tuple[str, float, float, Facts, TracedBatch | None]] = []
        self._left_out = 0
        self._monotonic_ns = _monotonic_ns()
        self.span_context = span.get_span_context()
        self.trace_id = trace.format_trace_id(self.span_context.trace_id)

    def step(
        self, name: str, start_s: float, end_s: float, facts: Facts, batch: TracedBatch | None = None
    ) -> None:
        """Record a finished stage, and the batch that it was part of. Any thread may call it."""
        if len(self._steps) < MAX_STEPS:
            self._steps.append((name, start_s, end_s, facts, batch))
        else:
            self._left_out += 1

    @contextmanager
    def stage(self, name: str, facts: Facts) -> Iterator[None]:
        """Open a span around a stage that calls other processes, which continue in it."""
        with self._tracing.tracer.start_as_current_span(
            name, attributes=_attributes(facts), record_exception=False, set_status_on_exception=False
        ):
            yield

    def traceparent(self) -> str:
        """The context of the current span in W3C format."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier.get("traceparent", "")

    def end(self, name: str, code: grpc.StatusCode, facts: Facts) -> None:
        """Record how the call ended, and send all of its spans."""
        for step, start_s, end_s, its_facts, batch in self._steps:
            links = [trace.Link(self._span_of(batch))] if batch is not None else []
            span = self._tracing.tracer.start_span(
                step,
                self._context,
                attributes=_attributes(its_facts),
                links=links,
                start_time=self._unix_ns(start_s),
            )
            span.end(self._unix_ns(end_s))
        self._span.update_name(name)
        service, _, method = name.rpartition("/")
        self._span.set_attributes(
            {
                "rpc.system": "grpc",
                "rpc.service": service,
                "rpc.method": method,
                "rpc.grpc.status_code": code.value[0],
                **_attributes(facts),
            }
        )
        if self._left_out:
            self._span.set_attribute("farrank.steps_left_out", self._left_out)
        if code in _ERRORS:
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()

    def _span_of(self, batch: TracedBatch) -> trace.SpanContext:
        """Send a batch's span once, with links to all of its traced calls."""
        if batch.span_context is None:
            span = self._tracing.batches.start_span(
                "batch",
                contexts.Context(),
                attributes=_attributes(batch.facts),
                links=[trace.Link(each.span_context) for each in batch.traces],
                start_time=self._unix_ns(batch.start_s),
            )
            span.end(self._unix_ns(batch.end_s))
            batch.span_context = span.get_span_context()
        return batch.span_context

    def _unix_ns(self, at_s: float) -> int:
        return round(at_s * 1e9) + self._monotonic_ns


def _monotonic_ns() -> int:
    """Return the Unix time at which the monotonic clock was zero.

    The process may be preempted between two readings: the pair read in the least time is used.
    """
    pairs = []
    for _ in range(3):
        before_ns = time.monotonic_ns()
        unix_ns = time.time_ns()
        pairs.append((time.monotonic_ns() - before_ns, unix_ns - before_ns))
    return min(pairs)[1]


def _attributes(facts: Facts) -> Mapping[str, str | int | float]:
    return {f"farrank.{name}": value for name, value in facts.items()}
