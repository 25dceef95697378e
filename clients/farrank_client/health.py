"""The standard health check (grpc.health.v1), asked without the package that carries its stubs.

That package belongs to the server extra, and a second copy of health.proto in the client would clash with
it in protobuf's registry when both are loaded. So the two messages, one string field and one enum field
numbered 1, are read as protobuf's own StringValue and Int32Value, which are the same bytes on the wire
(an enum travels as an int32).
Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from farrank_client.calls import Call
from farrank_client.errors import Unavailable

_METHOD = "/grpc.health.v1.Health/Check"
_STATUS_NAMES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_SERVING = 1
# The empty name asks about the server as a whole.
_WHOLE_SERVER = ""


def check() -> Call[Int32Value, None]:
    """Ask whether the server as a whole takes work; reading any other answer raises Unavailable."""
    return Call(_METHOD, StringValue(value=_WHOLE_SERVER), Int32Value, _read)


def _read(response: Int32Value) -> None:
    if response.value != _SERVING:
        status = _STATUS_NAMES.get(response.value, str(response.value))
        raise Unavailable(f"the server answers that its health is {status}")
