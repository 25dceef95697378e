"""Reads HTTP requests, and refuses those that another reader, such as a proxy, could read differently.

h11 accepts line feeds without a carriage return, folded headers, and both kinds of body length in one
request. A caller behind a proxy can use these to hide one request in another (RFC 9112, 11.2).
"""

import re
from typing import Any

import h11
from h11._receivebuffer import ReceiveBuffer

# Limits on the request line and all headers together, and on the trailers of a chunked body.
MAX_HEADER_BYTES = 65_536
MAX_HEADERS = 100

# The HTTP status "Request Header Fields Too Large".
TOO_LARGE = 431

_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_FOLD = re.compile(rb"\n[ \t]")


class RequestRefused(h11.RemoteProtocolError):
    """A request that this module refuses, not h11. The message quotes nothing from the request."""


class RequestReader(h11.Connection):
    """The server's end of a connection in h11. `refusal` says why the last request was refused."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEADER_BYTES)
        self._receive_buffer = _Lines()
        self.refusal: h11.RemoteProtocolError | None = None

    @property
    def is_for_headers_alone(self) -> bool:
        """Whether the request is a HEAD, whose answer has no body."""
        return self._request_method == b"HEAD"

    def next_event(self) -> Any:
        """Return the next event. Raises: RemoteProtocolError, also for all that follows a refused request."""
        if self.refusal is not None:
            raise self.refusal
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check_length(event)
        except h11.RemoteProtocolError as error:
            is_long = error.error_status_hint == TOO_LARGE and not isinstance(error, RequestRefused)
            self.refusal = _too_long() if is_long else error
            raise
        return event


def _check_length(request: h11.Request) -> None:
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" not in names:
        return
    if b"content-length" in names:
        raise RequestRefused("has both Content-Length and Transfer-Encoding")
    if request.http_version < b"1.1":
        raise RequestRefused("has a Transfer-Encoding, which HTTP/1.0 does not allow")


def _too_long() -> RequestRefused:
    return RequestRefused(f"its headers have more than {MAX_HEADER_BYTES} bytes", TOO_LARGE)


class _Lines(ReceiveBuffer):
    """The buffer of received bytes from which h11 takes the lines of headers and trailers."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Take all lines up to an empty one, or return None if there is none. Raises: RequestRefused."""
        before = bytes(self)
        lines = super().maybe_extract_lines()
        if lines is None:
            return None
        taken = before[: len(before) - len(self)]
        if len(taken) > MAX_HEADER_BYTES:
            raise _too_long()
        if len(lines) - 1 > MAX_HEADERS:
            raise RequestRefused(f"has more than {MAX_HEADERS} headers", TOO_LARGE)
        if _BARE_LINE_FEED.search(taken):
            raise RequestRefused("a line ends with LF; lines must end with CRLF")
        if _FOLD.search(taken):
            raise RequestRefused("a header is folded over several lines; write each header in one line")
        return lines
