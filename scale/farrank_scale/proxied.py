"""The methods of Ray Serve's gRPC proxies. Each is passed to a replica's method of the same name.

Requests stay bytes until a replica reads them under its limits. With generated stubs, Serve would parse them
in the proxy, without limits, and pickle the objects. Proxies import this module, so it imports no server.
"""

from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from farrank.v1 import rerank_pb2

SERVICE = rerank_pb2.DESCRIPTOR.services_by_name["RerankService"]
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]

# Full names by the name of the replica's method. A health `Watch` would occupy one replica for a client's
# lifetime and report only that replica's health. Without it, balancing clients take a proxy for healthy.
METHODS = {method.name: f"{SERVICE.full_name}/{method.name}" for method in SERVICE.methods} | {
    "Check": f"{HEALTH.full_name}/Check"
}

# The import path for `grpc_servicer_functions` in Serve's configuration.
IMPORT_PATH = f"{__name__}:add_to_server"


def add_to_server(_: object, server: Any) -> None:
    """Register the methods with a proxy's server, which replaces their behaviour by its own."""
    for service in (SERVICE, HEALTH):
        taken = [name for name, full in METHODS.items() if full.startswith(f"{service.full_name}/")]
        behaviours: dict[str, Any] = {name: grpc.unary_unary_rpc_method_handler(_replaced) for name in taken}
        handler = grpc.method_handlers_generic_handler(service.full_name, behaviours)
        server.add_generic_rpc_handlers((handler,))


async def _replaced(request: bytes, context: object) -> bytes:
    raise AssertionError("Ray Serve replaces it")
