"""A real Ray cluster of two nodes on this machine, only on loopback."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from farrank_bench.scaling.loopback import only_loopback
from farrank_server.config.schema import (
    DeviceConfig,
    HttpConfig,
    LimitsConfig,
    ListenConfig,
    RankerConfig,
    ServerConfig,
)

# Ray reads these when it is imported. The second makes it use 127.0.0.1 as this machine's address.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
# Serve kills a proxy that is not up within 5 s. Its imports take longer on a busy machine.
os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "120"
# Ray gives its workers a niceness of 15. Beside other work of the machine they would hardly run.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # Ray's own spelling

# Serve's gRPC proxy always listens on every interface. By default these tests run only where loopback is the
# only one.
ASKED = "FARRANK_RAY"


@pytest.fixture(scope="session")
def node() -> dict[str, Any]:
    """The size and address of a node."""
    return {"object_store_memory": 80 * 2**20, "node_ip_address": "127.0.0.1"}


@pytest.fixture(scope="session")
def cluster(node: dict[str, Any], dashboard_port: int) -> Iterator[Any]:
    """Two nodes, the head with room for two replicas and the other with room for one, and a dashboard."""
    if not (only_loopback() or os.environ.get(ASKED)):
        pytest.skip(
            "Serve's proxy listens on every interface, and more than loopback is up: `make ray-tests` runs "
            f"these in a network of their own where that is allowed, {ASKED}=1 anywhere"
        )
    ray = pytest.importorskip("ray", reason="needs the ray extra: pip install 'farrank[ray]'")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "dashboard_host": "127.0.0.1", "dashboard_port": dashboard_port, **node}
    opened = Cluster(head_node_args={"include_dashboard": True, **head}, initialize_head=True)
    try:
        opened.add_node(num_cpus=1, **node)
        address = opened.address
        ray.init(address=address, _node_ip_address="127.0.0.1", log_to_driver=False, configure_logging=False)
        yield opened
    finally:
        ray.shutdown()
        opened.shutdown()


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture(scope="session")
def ports() -> list[int]:
    """Free ports for gRPC and HTTP."""
    return free_ports(2)


@pytest.fixture(scope="session")
def dashboard_port() -> int:
    """The port of Ray's dashboard, which has the REST API that `serve deploy` calls."""
    return free_ports(1)[0]


@pytest.fixture(scope="session")
def config(tiny_rankers: dict[str, Path], ports: list[int]) -> ServerConfig:
    """The configuration: a tiny ranker, with up to four calls at once."""
    return ServerConfig(
        rankers={"tiny": RankerConfig(source=str(tiny_rankers["maxp"]), runtime="torch")},
        listen=ListenConfig(port=ports[0], http=HttpConfig(port=ports[1])),
        device=DeviceConfig(name="cpu", threads=1),
        limits=LimitsConfig(max_concurrent_calls=4),
    )
