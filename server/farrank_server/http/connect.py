"""The contract of `rerank.proto` in JSON or protobuf: stock Connect clients, and curl.

Source: https://connectrpc.com/docs/protocol (unary RPCs).
"""

from functools import partial
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from farrank_calls.errors import FarrankError, Unimplemented
from farrank_server.access.callers import Caller
from farrank_server.config.schema import LimitsConfig
from farrank_server.http.calls import PROTO, HttpCalls, media_type, refusal_headers, status_of
from farrank_server.http.json_bodies import JSON, to_json
from farrank_server.http.protobuf_json import message_of_json
from farrank_server.service.fields import parsed
from farrank_server.service.methods import SERVICE


def routes(calls: HttpCalls) -> list[Route]:
    """The methods, each at `/farrank.v1.RerankService/METHOD`, and an answer for unknown method names."""
    prefix = f"/{SERVICE.full_name}"
    return [
        *(
            Route(f"{prefix}/{method.name}", partial(_post, calls, method), methods=["POST"])
            for method in SERVICE.methods
        ),
        Route(f"{prefix}/{{name}}", _unknown, methods=["POST"]),
    ]


async def _post(calls: HttpCalls, method: MethodDescriptor, request: Request) -> Response:
    kind = media_type(request)
    if kind not in (JSON, PROTO):
        return Response(status_code=415, headers={"Accept-Post": f"{JSON}, {PROTO}"})
    version = request.headers.get("connect-protocol-version", "1")
    if version != "1":
        return _failure(400, "invalid_argument", f"Connect-Protocol-Version: {version[:100]!r} is not 1")
    message = GetMessageClass(method.input_type)
    exchange = JsonExchange(message) if kind == JSON else ProtoExchange(message)
    return await calls.answer(request, method.name, exchange)


async def _unknown(request: Request) -> Response:
    known = ", ".join(method.name for method in SERVICE.methods)
    name = request.path_params["name"][:100]
    return _failure(404, "unimplemented", f"{SERVICE.full_name} has no method {name!r}; it has {known}")


def refuse(error: FarrankError) -> Response:
    """Write an error in Connect's form, for JSON and protobuf clients."""
    status = 501 if isinstance(error, Unimplemented) else status_of(error)
    return _failure(status, error.code.name.lower(), error.message, refusal_headers(error))


def _failure(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json({"code": code, "message": message}), status, headers, JSON)


class JsonExchange:
    """One request and its answer in protobuf's JSON."""

    def __init__(self, message: type[Message]) -> None:
        self._message = message
        self.refuse = refuse

    def read(self, body: bytes, limits: LimitsConfig, caller: Caller) -> Message:
        """Read a message. An empty body is an empty message, which is convenient with curl.

        Raises: InvalidArgument naming the field.
        """
        return message_of_json(body or b"{}", self._message, limits)

    def write(self, answer: Message) -> Response:
        """Write a message, including fields that are 0, such as `index` of the first document."""
        tree: dict[str, Any] = json_format.MessageToDict(answer, always_print_fields_with_no_presence=True)
        return Response(to_json(tree), media_type=JSON)


class ProtoExchange:
    """One request and its answer as protobuf's bytes."""

    def __init__(self, message: type[Message]) -> None:
        self._message = message
        self.refuse = refuse

    def read(self, body: bytes, limits: LimitsConfig, caller: Caller) -> Message:
        """Read a message.

        Raises: InvalidArgument.
        """
        return parsed(self._message, body, limits)

    def write(self, answer: Message) -> Response:
        """Write a message."""
        return Response(answer.SerializeToString(), media_type=PROTO)
