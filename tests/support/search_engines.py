"""A search engine in memory behind an HTTP server that can fail in every way of a real one."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web
from osmem_server import OsmemServer

INDEX = "web"
TEXTS = {
    "rhine": ("Rivers", "the river Rhine flows to the sea"),
    "bread": ("Baking", "flour and salt make bread"),
    "sea": ("Coasts", "a river reaches the sea"),
}

# A fault changes or replaces the engine's answer. None sends it unchanged.
Fault = Callable[[web.Request, "Answer"], Awaitable[web.StreamResponse]]


@dataclass
class Answer:
    """The engine's answer."""

    status: int
    body: bytes

    def response(self, **headers: str) -> web.Response:
        return web.Response(
            status=self.status, body=self.body, headers=headers, content_type="application/json"
        )


@dataclass
class Asked:
    """A received request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Front:
    """Passes requests on to the engine. `fault` applies to every search, `fault_all` to every request.

    With `product`, Elasticsearch's client takes it for Elasticsearch. `left` is set when a caller goes before
    its answer.
    """

    behind: str
    product: str | None = None
    url: str = ""
    fault: Fault | None = None
    fault_all: Fault | None = None
    asked: list[Asked] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    session: ClientSession | None = None

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def searches(self) -> list[Asked]:
        return [each for each in self.asked if each.path.endswith("/_search")]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append(
            Asked(
                request.method,
                request.path,
                dict(request.query),
                {name.lower(): value for name, value in request.headers.items()},
                json.loads(body) if body else None,
            )
        )
        try:
            answer = await self._of_engine(request, body)
            self.arrived.set()
            fault = self.fault_all or (self.fault if request.path.endswith("/_search") else None)
            return await fault(request, answer) if fault else answer.response(**self.product_header)
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def _of_engine(self, request: web.Request, body: bytes) -> Answer:
        assert self.session is not None
        headers = {"content-type": "application/json"} if body else {}
        async with self.session.request(
            request.method, self.behind + request.path_qs, data=body, headers=headers
        ) as behind:
            return Answer(behind.status, await behind.read())

    @property
    def product_header(self) -> dict[str, str]:
        return {"X-Elastic-Product": self.product} if self.product else {}

    # The faults.

    async def hang(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        """Send nothing until the caller has gone."""
        await asyncio.Event().wait()
        raise AssertionError

    async def break_off(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        """Send half of the answer and close the connection."""
        half = web.StreamResponse(headers=self.product_header)
        half.content_length = len(answer.body)
        half.content_type = "application/json"
        await half.prepare(request)
        await half.write(answer.body[: len(answer.body) // 2])
        assert request.transport is not None
        request.transport.close()
        return half

    async def close_unanswered(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        """Close the connection instead of answering."""
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    def say(self, body: object, status: int = 200, content_type: str = "application/json") -> Fault:
        """Send another answer: a tree as JSON, or a string as it is."""

        async def said(request: web.Request, answer: Answer) -> web.StreamResponse:
            text = body if isinstance(body, str) else json.dumps(body)
            return web.Response(
                text=text, status=status, content_type=content_type, headers=self.product_header
            )

        return said

    def change(self, **changes: Any) -> Fault:
        """Send the engine's answer with some keys changed."""

        async def changed(request: web.Request, answer: Answer) -> web.StreamResponse:
            return await self.say(json.loads(answer.body) | changes)(request, answer)

        return changed


@asynccontextmanager
async def serve(front: Front, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[Front]:
    """Listen on a free loopback port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", front.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
    await site.start()
    (_, port) = runner.addresses[0]
    front.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        async with ClientSession() as front.session:
            yield front
    finally:
        await runner.cleanup()


def fill(engine: OsmemServer) -> None:
    """Create the index and add the documents."""
    similarity = {"default": {"type": "BM25", "k1": 0.9, "b": 0.4}}
    text = {"type": "text"}
    engine.request(
        "PUT",
        f"/{INDEX}",
        {
            "settings": {"index": {"similarity": similarity}},
            "mappings": {"properties": {"title": text, "body": text}},
        },
    )
    for doc_id, (title, body) in TEXTS.items():
        engine.request("PUT", f"/{INDEX}/_doc/{doc_id}?refresh=true", {"title": title, "body": body})


def write_json(path: Path, tree: object) -> Path:
    path.write_text(json.dumps(tree), encoding="utf-8")
    return path
