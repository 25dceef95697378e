"""The end of a connection that belongs to a library."""

import os
import socket
from contextlib import closing

from farrank_server.service.connections import DESCRIPTORS, end_connection, peer_name


async def test_a_connection_ends_and_no_descriptor_stays_open() -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listening,
        closing(socket.create_connection(listening.getsockname())) as caller,
        closing(listening.accept()[0]) as accepted,
    ):
        # The first call starts a thread.
        assert not await end_connection("ipv4:127.0.0.1:1")
        before = len(os.listdir(DESCRIPTORS))
        assert not await end_connection("ipv4:127.0.0.1:1")
        assert await end_connection(peer_name(*accepted.getpeername()))
        assert caller.recv(1) == b""
        assert len(os.listdir(DESCRIPTORS)) == before
