"""To which replica a proxy passes a call: the less busy of two, wherever they are.

By default Serve's proxies prefer replicas of their node for as long as these take calls. Ours take more than
they answer, to refuse the rest with a hint (`application.py`): calls would be refused on one node while
replicas of others are idle.
"""

from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter


class AnyNodeRouter(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]  # untyped
    """Serve's power of two choices, among the replicas of all nodes alike."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given | {"prefer_local_node_routing": False})
