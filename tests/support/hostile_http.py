"""Steps of an attack on the HTTP endpoint: half headers, slow bodies, lengths that contradict each other."""

from dataclasses import dataclass

from support.hostile_connection import HTTP, Attacker

RERANK = "/farrank.v1.RerankService/Rerank"
BODY = b'{"query": "a", "documents": [{"text": "a"}]}'

# Requests, each wrong or unusual in a different way. %b stands for the API key's header.
REQUESTS: dict[str, bytes] = {
    "whole": b"POST /rerank HTTP/1.1\r\nHost: a\r\n%bContent-Length: 36\r\n\r\n"
    b'{"query": "a", "documents": ["a b"]}',
    "health": b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
    "head alone": b"POST /rerank HTTP/1.1\r\nHost: a\r\n",
    "line alone": b"POST /rer",
    "both lengths": b"POST /rerank HTTP/1.1\r\nHost: a\r\n%bContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "lengths twice": b"POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"
    b"Content-Length: 6\r\n\r\naaaaa",
    "length negative": b"POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "length huge": b"POST /rerank HTTP/1.1\r\nHost: a\r\n%bContent-Length: 99999999999999999999\r\n\r\n",
    "chunks wrong": b"POST /rerank HTTP/1.1\r\nHost: a\r\n%bTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "chunk huge": b"POST /rerank HTTP/1.1\r\nHost: a\r\n%bTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
    "coding unknown": b"POST /rerank HTTP/1.1\r\nHost: a\r\n%bTransfer-Encoding: gzip\r\n\r\n",
    "bare line feeds": b"GET /health HTTP/1.1\nHost: a\n\n",
    "folded": b"GET /health HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\nHost: a\r\n" + b"X-A: b\r\n" * 5_000 + b"\r\n",
    "long header": b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    "long line": b"GET /" + b"a" * 100_000,
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "version": b"GET /health HTTP/9.9\r\nHost: a\r\n\r\n",
    "expects": b"POST /rerank HTTP/1.1\r\nHost: a\r\n%bExpect: 100-continue\r\nContent-Length: 10\r\n\r\n",
    "upgrades": b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "garbage": bytes(range(256)),
}


@dataclass(frozen=True)
class Requests:
    """Send a request of `REQUESTS` repeatedly, on one connection or each on its own, which stays open."""

    times: int
    which: str
    apart: bool = False

    def run(self, attacker: Attacker) -> None:
        key = f"Authorization: Bearer {attacker.key}\r\n".encode() if attacker.key else b""
        request = REQUESTS[self.which].replace(b"%b", key)
        for _ in range(self.times):
            connection = attacker.open(HTTP) if self.apart else attacker.current(HTTP)
            if not connection.send(request):
                return


@dataclass(frozen=True)
class Bodies:
    """Begin requests whose body claims a length, and send a part of it, each on its own connection."""

    times: int
    claimed: int
    sent: int
    path: str = RERANK

    def run(self, attacker: Attacker) -> None:
        key = f"Authorization: Bearer {attacker.key}\r\n" if attacker.key else ""
        head = f"POST {self.path} HTTP/1.1\r\nHost: a\r\n{key}Content-Type: application/json\r\n"
        head += f"Connect-Timeout-Ms: 9999999999\r\nContent-Length: {self.claimed}\r\n\r\n"
        data = (BODY + b" " * self.sent)[: self.sent]
        for _ in range(self.times):
            attacker.open(HTTP).send(head.encode() + data)


@dataclass(frozen=True)
class Drips:
    """Send the headers of a request byte by byte, each in its own packet, and never the last one."""

    size: int

    def run(self, attacker: Attacker) -> None:
        connection = attacker.current(HTTP)
        for at in range(self.size):
            data = b"GET /health HTTP/1.1\r\nX: " if at == 0 else b"a"
            if not connection.send(data):
                return
