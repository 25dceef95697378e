"""Sleeping replicas on a Ray cluster of one node in this process. It needs the ray extra."""

from multiprocessing.connection import Connection
from unittest.mock import patch

import ray
from ray import serve

from farrank_bench.scaling.sleeping import SleepingConfig, sleep_instead
from farrank_scale import application
from farrank_scale.replica import FarrankReplica
from farrank_server.config.schema import ServerConfig

END = 0
NAME = "sleeping"
OBJECT_STORE_BYTES = 80 * 2**20

# The node's CPUs as Ray counts them. Sleeping replicas hardly use the machine's real ones.
CPUS = 32


class SleepingReplica(FarrankReplica):
    """A replica of the real application, with a device that sleeps."""

    async def __init__(self, config: ServerConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        assert isinstance(config, SleepingConfig)
        sleep_instead(config.token_s)
        await super().__init__(config)


def run_cluster(asked: Connection, config: SleepingConfig, folder: str, http_port: int) -> None:
    """Run a cluster. Answer each number of replicas when that many run, and END when all has ended."""
    ray.init(
        num_cpus=CPUS,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
    )
    serve.start(
        proxy_location="HeadOnly",
        **application.proxy_options(config) | {"http_options": {"host": "127.0.0.1", "port": http_port}},
    )
    while (replicas := asked.recv()) != END:
        with patch.object(application, "FarrankReplica", SleepingReplica):
            made = application.application(config, application.Scale(replicas=replicas))
        serve.run(made, name=NAME, route_prefix="/")
        asked.send(replicas)
    # Serve's own shutdown would drain replicas, which takes half a minute with HAProxy.
    ray.shutdown()
    asked.send(END)
