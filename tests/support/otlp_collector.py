"""A collector of traces, which receives OTLP over HTTP and keeps it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.waiting import until


def plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@dataclass
class Collected:
    """A span, and the attributes of the process that sent it."""

    span: Span
    process: dict[str, Any]
    facts: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.facts = plain(self.span.attributes)

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def trace_id(self) -> str:
        return self.span.trace_id.hex()

    @property
    def links(self) -> set[bytes]:
        return {each.span_id for each in self.span.links}


@dataclass
class Collector:
    """The received spans; `bodies` has them as sent."""

    url: str
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def spans(self, name: str = "", trace_id: str = "") -> list[Collected]:
        """Return the spans of a name, of a trace, or all."""
        found = []
        for body in list(self.bodies):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    found += [Collected(each, plain(resource.resource.attributes)) for each in scope.spans]
        return [each for each in found if name in ("", each.name) and trace_id in ("", each.trace_id)]

    async def collected(self, count: int, name: str = "", trace_id: str = "") -> list[Collected]:
        """Wait for a number of spans."""
        await until(lambda: len(self.spans(name, trace_id)) >= count)
        return self.spans(name, trace_id)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""

    class Take(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = 200 if self.path == "/v1/traces" else 404
            if status == 200:
                collector.headers.append(dict(self.headers))
                collector.bodies.append(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Take) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
