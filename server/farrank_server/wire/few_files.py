"""Ends gRPC connections before they take the last files that the process may open.

gRPC accepts every connection. Without this module, a caller that only connects would use up the files that
probes, metrics, HTTP and other gRPC callers need.
"""

import asyncio
import heapq
import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from farrank_calls.telemetry.line_rate import LineRate
from farrank_server.access.callers import account_of_peer
from farrank_server.metrics import Metrics
from farrank_server.service.connections import peer_name

log = logging.getLogger(__name__)

CHECK_EVERY_S = 0.5

# Shares of the files that the process may open: above FEW, connections are ended until ENOUGH is reached.
FEW = 0.85
ENOUGH = 0.7

# gRPC keeps connections for at least this share of the files, even if other parts have opened the rest.
KEPT = 0.1


async def keep_files_free(port: int, metrics: Metrics) -> None:
    """Check until cancelled. `port` is gRPC's. The caller with most connections loses its newest first."""
    rate = LineRate()
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = _open_files(limit)
        if limit == resource.RLIM_INFINITY or taken < FEW * limit:
            continue
        ended = await asyncio.to_thread(end_newest, port, limit, taken - int(ENOUGH * limit))
        metrics.grpc_connections_ended.inc(ended)
        if ended and (left_out := rate.left_out("ended")) is not None:
            log.warning(
                "closed %d gRPC connections of the callers with the most: %d of %d files are open "
                "(%d similar lines were left out)",
                *(ended, taken, limit, left_out),
            )


def _open_files(limit: int) -> int:
    """The number of open files; `limit` if no more can be opened.

    Other systems than Linux 6.2 or later do not say it without opening another file. There it is the lowest
    free file number, which is smaller while a lower number is free.
    """
    with suppress(FileNotFoundError):
        if number := os.stat("/proc/self/fd").st_size:
            return number
    try:
        file = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return limit
    os.close(file)
    return file


def end_newest(port: int, files: int, number: int) -> int:
    """End up to `number` connections with a port, of the callers with the most; return their number."""
    connections: dict[str, list[tuple[int, str]]] = {}
    # Listing the open files would need one more open file.
    for file in range(files):
        with suppress(OSError), _socket_of(file) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] == port:
                peer = peer_name(*found.getpeername()[:2])
                connections.setdefault(account_of_peer(peer).name, []).append((file, peer))
    largest = [(-len(those), name) for name, those in connections.items()]
    heapq.heapify(largest)
    left = min(number, sum(map(len, connections.values())) - int(KEPT * files))
    ended = 0
    while ended < left:
        count, name = heapq.heappop(largest)
        file, peer = connections[name].pop()
        heapq.heappush(largest, (count + 1, name))
        with suppress(OSError), _socket_of(file) as found:
            # Meanwhile the number may belong to another file.
            if peer_name(*found.getpeername()[:2]) == peer:
                found.shutdown(socket.SHUT_RDWR)
        ended += 1
    return ended


@contextmanager
def _socket_of(file: int) -> Iterator[socket.socket]:
    """The socket with a file number; it stays open afterwards. Raises: OSError if there is none."""
    found = socket.socket(fileno=file)
    try:
        yield found
    finally:
        found.detach()
