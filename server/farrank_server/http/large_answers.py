"""Large answers: compressed if their caller accepts that, and sent no faster than it reads them."""

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from farrank_calls.content_coding import packed
from farrank_server.service.connections import end_connection
from farrank_server.service.unread import UnreadAnswer, UnreadAnswers

# A larger answer is compressed. A smaller one travels in about one round trip in any case.
PACKED_ABOVE_BYTES = 16_384

# Size of the pieces in which a large answer is sent.
PIECE_BYTES = 65_536


def encoded(answer: Response, *, with_gzip: bool) -> Response:
    """Compress an answer if it is large and its caller accepts gzip."""
    if len(answer.body) > PACKED_ABOVE_BYTES:
        answer.headers.add_vary_header("Accept-Encoding")
        if with_gzip:
            answer.body = packed(bytes(answer.body))
            answer.headers["Content-Encoding"] = "gzip"
            answer.headers["Content-Length"] = str(len(answer.body))
    return answer


class PacedResponse(Response):
    """A large answer, sent no faster than its caller reads it.

    In one piece the whole answer would lie in the connection's buffer, outside the count of unread answers.
    """

    def __init__(self, whole: Response, unread: UnreadAnswers, noted: UnreadAnswer) -> None:
        super().__init__(None, whole.status_code)
        self.raw_headers = whole.raw_headers
        self.body = whole.body
        self._unread = unread
        self._noted = noted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer piece by piece: uvicorn waits while the connection's buffer is full."""
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        try:
            await send(start)
            for at in range(0, len(self.body), PIECE_BYTES):
                end = at + PIECE_BYTES
                body, more = bytes(self.body[at:end]), end < len(self.body)
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except asyncio.CancelledError:
            # The server ends, and half an answer cannot be followed by an error.
            await end_connection(self._noted.connection)
            await until_gone(receive)
        finally:
            self._unread.remove(self._noted)


async def until_gone(receive: Receive) -> None:
    """Wait until the caller disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
