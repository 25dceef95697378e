"""A call's metadata: read once, and limited in size.

gRPC's core refuses calls with more metadata than its limit, but only if the caller has acknowledged the
setting. A caller that acknowledges none may send any amount, and with HPACK, 3 KB can refer to one field of 4
KB thousands of times: 12 MB of metadata in each call. This module ends such a connection.
"""

import logging
from typing import Any, TypeAlias

import grpc

from farrank_calls.telemetry.line_rate import LineRate
from farrank_server.access.callers import account_of_peer
from farrank_server.access.keys import Header
from farrank_server.service.connections import end_connection

log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Metadata = tuple[tuple[str, str | bytes], ...]

# An API key, the headers of a trace and W3C baggage (8,192 bytes at most) together take about half of this.
MAX_METADATA_BYTES = 16_384

# A field counts with the bytes of its name, of its value, and this overhead (RFC 7541, 4.1).
_FIELD_BYTES = 32

# Connections that are being ended, and the rate limit of their log lines. All calls share one event loop.
_ending: set[str] = set()
_line_rate = LineRate()


def header_in(metadata: Metadata) -> Header:
    """Return the function that reads metadata by name."""

    def header(key: str) -> str | None:
        return next((value for name, value in metadata if name == key and isinstance(value, str)), None)

    return header


def metadata_of(context: Context) -> Metadata:
    """Return a call's metadata; gRPC builds it again on each call."""
    metadata: Any = context.invocation_metadata()
    return metadata or ()


async def bounded_metadata(context: Context) -> Metadata:
    """Return a call's metadata; end the call and its connection if it has more than `MAX_METADATA_BYTES`."""
    metadata = metadata_of(context)
    size = sum(len(name) + len(value) + _FIELD_BYTES for name, value in metadata)
    if size <= MAX_METADATA_BYTES:
        return metadata
    peer = context.peer()
    if peer not in _ending:
        _ending.add(peer)
        left_out = _line_rate.left_out(account_of_peer(peer).name)
        if left_out is not None:
            log.warning(
                "a call's metadata exceeds %d bytes: its connection is ended (%d lines left out before)",
                MAX_METADATA_BYTES,
                left_out,
            )
        end_connection(peer).add_done_callback(lambda _: _ending.discard(peer))
    await context.abort(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"metadata: has {size} bytes; the limit is {MAX_METADATA_BYTES}",
    )
    raise AssertionError("abort raises")
