"""Ends a connection that belongs to a library which cannot end it.

gRPC for Python cannot cancel a call from the server's side either: a status waits behind the unread answer.
"""

import asyncio
import ipaddress
import logging
import os
import socket
from contextlib import suppress
from urllib.parse import unquote

log = logging.getLogger(__name__)

# The directory of open files by number, on Linux and macOS.
DESCRIPTORS = "/dev/fd"


def end_connection(peer: str) -> asyncio.Future[bool]:
    """End the connection with a peer (as `peer_name`) on another thread: thousands of files may be open.

    Its owner sees the same as if the peer had disconnected. The result is whether there was such a
    connection.
    """
    return asyncio.get_running_loop().run_in_executor(None, _end, unquote(peer))


def _end(peer: str) -> bool:
    for name in os.listdir(DESCRIPTORS):
        # Some are closed meanwhile, and most are not sockets.
        with suppress(OSError, ValueError):
            # The copy keeps its connection even if the number is reused meanwhile.
            copy = os.dup(int(name))
            try:
                found = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            with found:
                if _peer_of(found) == peer:
                    found.shutdown(socket.SHUT_RDWR)
                    return True
    log.debug("the connection with %s had ended before", peer)
    return False


def _peer_of(connection: socket.socket) -> str:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    host, port = connection.getpeername()[:2]
    return peer_name(host, port)


def peer_name(host: str, port: int) -> str:
    """The other end of a connection as gRPC writes it: ipv4:127.0.0.1:5000, ipv6:[::1]:5000."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return f"ipv6:[{host}]:{port}"
        host = str(address.ipv4_mapped)
    return f"ipv4:{host}:{port}"
