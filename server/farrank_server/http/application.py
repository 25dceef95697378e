"""The application behind the HTTP socket: its routes, and the answer for unknown paths."""

import asyncio
import math
import time
from types import MappingProxyType

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from farrank_calls.errors import Reason, Unavailable
from farrank_calls.telemetry.call_record import REQUEST_ID, begin
from farrank_page import openapi
from farrank_page.documentation import documentation_routes
from farrank_page.routes import page_routes
from farrank_server.config.schema import ServerConfig
from farrank_server.http import connect, judgements
from farrank_server.http.calls import RECORD, HttpCalls, refusal_headers
from farrank_server.http.dialects import info, score
from farrank_server.http.dialects import routes as dialects
from farrank_server.http.dialects.dialect_request import RerankBody
from farrank_server.http.dialects.models import Models
from farrank_server.http.judgements import JudgedSets
from farrank_server.service.guard import Guard
from farrank_server.service.methods import RerankService
from farrank_server.service.receiving import ReceivingBudget
from farrank_server.service.unread import UnreadAnswers
from farrank_server.wire.standard_services import LATELY_S

# The headers of answers that a page of another origin may read.
EXPOSED = (
    *("Retry-After", "retry-after-ms", "X-Request-Id", "X-Farrank-Tokens-Cut", "X-Farrank-Unknown-Model"),
    *("x-compute-type", "x-compute-characters", "x-compute-tokens", "x-compute-time", "x-total-time"),
    *("x-tokenization-time", "x-queue-time", "x-inference-time"),
)


class HttpApplication:
    """An ASGI application over a service. `/health` reports `serving` to load balancers.

    `judged` holds the judged questions for the page.
    """

    def __init__(
        self,
        config: ServerConfig,
        service: RerankService,
        guard: Guard,
        unread: UnreadAnswers,
        receiving: ReceivingBudget,
        judged: JudgedSets = MappingProxyType({}),
    ) -> None:
        self.serving = False
        self._health_asked_s = -math.inf
        self._calls = HttpCalls(config.limits, service, guard, unread, receiving)
        models = Models(service.rankers, config.listen.http, service.gone)
        http = config.listen.http
        cors = Middleware(
            CORSMiddleware,
            allow_origins=http.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=EXPOSED,
        )
        self._app = Starlette(
            middleware=[cors] if http.cors_origins else [],
            routes=[
                Route("/health", self._health),
                Route("/ping", self._health),
                *connect.routes(self._calls),
                *dialects.routes(self._calls, models),
                *info.routes(config, self._calls, models),
                *openapi.routes((RerankBody, score.ScoreBody)),
                *documentation_routes(),
                *((*page_routes(), *judgements.routes(judged, self._calls)) if http.page else ()),
            ],
            exception_handlers={HTTPException: _not_found},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request and add its id to the response."""
        name = REQUEST_ID.encode()
        given = next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)
        record = begin(given)
        scope = {**scope, RECORD: record}
        its_id = (name, record.request_id.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], its_id]}
            await send(message)

        await self._answer(scope, receive, send_with_id)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            # The server ends and cancels pending calls. uvicorn would log the cancellation as a bug.
            ended = Unavailable("the server stopped before the call was complete", reason=Reason.DRAINING)
            await connect.refuse(ended)(scope, receive, send)

    def close(self) -> None:
        """Stop the threads that read and write long bodies."""
        self._calls.close()

    def is_followed(self) -> bool:
        """Whether anyone has asked for the health lately, and may therefore still send calls."""
        return time.monotonic() - self._health_asked_s < LATELY_S

    async def _health(self, request: Request) -> Response:
        self._health_asked_s = time.monotonic()
        if self.serving:
            return JSONResponse({"status": "serving"})
        headers = refusal_headers(Unavailable("not serving"))
        return JSONResponse({"status": "not serving"}, 503, headers)


async def _not_found(request: Request, error: Exception) -> Response:
    """Answer that the path does not exist, or does not take this method."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:200]}"
    message = f"{what}: {'no such path' if error.status_code == 404 else error.detail.lower()}"
    return JSONResponse({"message": message, "detail": message}, error.status_code, error.headers)
