"""A stand-in for the network, so that an application's tests need no server.

client = Client(transport=MockTransport(lambda request: RerankResponse(...)))
"""

from collections.abc import Callable

from google.protobuf.message import Message

from farrank_client.calls import Response


class MockTransport:
    """Answers calls of both clients with `handler(request)`; exceptions of the handler are those of the call.

    `requests` has all requests sent, including retries.
    """

    def __init__(self, handler: Callable[[Message], Message]) -> None:
        self._handler = handler
        self.requests: list[Message] = []

    def call(
        self, method: str, request: Message, response_type: type[Response], *, timeout_s: float
    ) -> Response:
        """Give the request to the handler.

        Raises: TypeError if the handler answers with another message than the method's.
        """
        self.requests.append(request)
        response = self._handler(request)
        if not isinstance(response, response_type):
            raise TypeError(f"{method} answers with {response_type.__name__}, not {type(response).__name__}")
        return response

    async def call_async(
        self, method: str, request: Message, response_type: type[Response], *, timeout_s: float
    ) -> Response:
        """Give the request to the handler: see `call`."""
        return self.call(method, request, response_type, timeout_s=timeout_s)

    def close(self) -> None:
        """There is nothing to close."""

    async def close_async(self) -> None:
        """There is nothing to close."""
