"""The choice of a call's replica in a proxy: the less busy of two, on any node.

By default Serve's proxies prefer replicas on their own node as long as these accept calls. Farrank's replicas
accept more calls than they answer, and refuse the rest with a time to retry (`application.py`). Calls would
thus be refused on one node while replicas of other nodes are idle.
"""

from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter


class AnyNodeRouter(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]  # untyped
    """Serve's power of two choices, among the replicas of all nodes equally."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given | {"prefer_local_node_routing": False})
