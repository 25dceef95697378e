"""The methods that Ray Serve's gRPC proxies take, each passed to a replica's method of that name.

Requests stay bytes until a replica reads them, under its limits: what Serve's own way with generated stubs
parses in the proxy, unbounded, and pickles as an object. Proxies import this module; it knows no server.
"""

from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from farrank.v1 import rerank_pb2

SERVICE = rerank_pb2.DESCRIPTOR.services_by_name["RerankService"]
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]

# Full names by the name of the replica's method. A health `Watch` would hold one replica's place for a
# client's life, and tell of that replica alone; without it, clients that balance take a proxy for healthy.
METHODS = {method.name: f"{SERVICE.full_name}/{method.name}" for method in SERVICE.methods} | {
    "Check": f"{HEALTH.full_name}/Check"
}

# What `grpc_servicer_functions` of Serve's configuration names.
IMPORT_PATH = f"{__name__}:add_to_server"


def add_to_server(_: object, server: Any) -> None:
    """Have a proxy's server take the methods; it puts behaviour of its own in the place of theirs."""
    for service in (SERVICE, HEALTH):
        taken = [name for name, full in METHODS.items() if full.startswith(f"{service.full_name}/")]
        behaviours: dict[str, Any] = {name: grpc.unary_unary_rpc_method_handler(_replaced) for name in taken}
        handler = grpc.method_handlers_generic_handler(service.full_name, behaviours)
        server.add_generic_rpc_handlers((handler,))


async def _replaced(request: bytes, context: object) -> bytes:
    raise AssertionError("Ray Serve replaces it")
