"""One address for several servers, like a Kubernetes service."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ServiceAddress:
    """Assigns new connections to its servers in turn. Open connections stay."""

    def __init__(self, servers: list[str]) -> None:
        self.servers = servers
        self.address = ""
        self._turn = itertools.count()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        servers = self.servers
        host, port = servers[next(self._turn) % len(servers)].split(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pass_on(reader, there_writer), _pass_on(there_reader, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@contextmanager
def service_address(servers: list[str]) -> Iterator[ServiceAddress]:
    """Listen on a free loopback port, in its own thread."""
    service, begun = ServiceAddress(servers), threading.Event()
    loop = asyncio.new_event_loop()
    ending = asyncio.Event()

    async def serve() -> None:
        listener = await asyncio.start_server(service.take, "127.0.0.1", 0)
        service.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        begun.set()
        await ending.wait()
        listener.close()
        open_ones = asyncio.all_tasks() - {asyncio.current_task()}
        for each in open_ones:
            each.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert begun.wait(60)
    try:
        yield service
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()
