"""A plain HTTP/1.1 connection on which a test controls each send, read and close."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass
class HttpAnswer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        """Return whether the server announces that it closes the connection after this answer."""
        return self.headers.get("connection") == "close"


class ClosedError(ConnectionError):
    """The server ended the connection before the first byte of an answer."""


@dataclass
class HttpConnection:
    """Sends one request after the other. `answers` counts the answers."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    answers: int = field(default=0)

    async def ask(self, path: str, body: bytes | None = None, headers: str = "") -> HttpAnswer:
        """Send a request and read its answer. Raises: ClosedError."""
        await self.send(request(path, body, headers))
        return await self.answer()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        try:
            await self.writer.drain()
        except ConnectionError as error:
            raise ClosedError from error

    async def answer(self) -> HttpAnswer:
        """Raises: ClosedError; IncompleteReadError if the connection ends within an answer."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                raise
            raise ClosedError from error
        status, *lines = head.decode().strip().split("\r\n")
        headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        self.answers += 1
        return HttpAnswer(int(status.split()[1]), headers, body)

    async def ended(self) -> bytes:
        """Wait until the server closes the connection. Returns the bytes before that."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class Connections:
    """Opens connections, and closes all of them at the end of the block."""

    def __init__(self) -> None:
        self._opened: list[HttpConnection] = []

    async def __call__(self, port: int, address: str = "127.0.0.1") -> HttpConnection:
        """Connect from an address of the loopback network."""
        streams = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        opened = HttpConnection(*streams)
        self._opened.append(opened)
        return opened

    async def __aenter__(self) -> "Connections":
        return self

    async def __aexit__(self, *error: object) -> None:
        for each in self._opened:
            await each.close()


def request(path: str, body: bytes | None = None, headers: str = "") -> bytes:
    """Write a request: POST with a JSON body, GET without one. `headers` ends with a line break."""
    method = "GET" if body is None else "POST"
    head = f"{method} {path} HTTP/1.1\r\nHost: farrank.test\r\n{headers}"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + (body or b"")
