"""The operations on an application of a cluster: bring it up, describe it, take it down."""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationDetails, ApplicationStatus, LoggingConfig, ServeInstanceDetails

from farrank_scale.application import (
    DEPLOYMENT,
    Scale,
    application,
    controller_options,
    proxy_location,
    proxy_options,
)
from farrank_scale.progress import progress
from farrank_server.config.schema import ServerConfig

DESCRIBE_S = 30.0
CONNECT_S = 5.0
LOOK_EVERY_S = 0.5

# Long enough for a large ranker on a node that the cluster has to add first.
READY_S = 600.0


class ClusterError(RuntimeError):
    """There is no cluster or no such application, or the application could not be brought up."""


class NotReadyError(ClusterError):
    """The replicas were not ready in time. Serve goes on starting them."""


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to a cluster: that of `address` (None: that of RAY_ADDRESS, or this machine's).

    Raises: ClusterError if there is none.
    """
    if ray.is_initialized():
        yield
        return
    named = address or os.environ.get("RAY_ADDRESS", "")
    try:
        _check_listens(named)
        ray.init(address=named or "auto", log_to_driver=False, configure_logging=False)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        where = f"at {named}" if named else "here"
        first = next(iter(str(error).splitlines()), "")
        raise ClusterError(
            f"no Ray cluster {where}: start one with `ray start --head`, or name it with --address ({first})"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_listens(address: str) -> None:
    """Check that a process listens at `HOST:PORT`. Ray itself would need minutes to find out.

    Raises: OSError if none listens; OverflowError if the port is out of range.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal():
        return
    hosts = [host.strip("[]")]
    if host in ("127.0.0.1", "localhost"):
        # Ray then connects to this machine's own address.
        hosts.append(ray.util.get_node_ip_address())
    for each in hosts:
        try:
            socket.create_connection((each, int(port)), CONNECT_S).close()
            return
        except OSError:
            if each == hosts[-1]:
                raise


def bring_up(
    config: ServerConfig,
    scale: Scale,
    name: str,
    *,
    head_only: bool = False,
    ready_s: float = READY_S,
    show: Callable[[str], None] = lambda _: None,
) -> None:
    """Deploy the application, or change one of that name, and wait until it runs, for `ready_s` at most.

    Replicas with an unchanged configuration stay; others drain and are replaced a few at a time. With
    `head_only`, only the head node has proxies. `show` gets a line at each progress of the deployment.
    Raises: NotReadyError after `ready_s`; ClusterError with Serve's message; ConfigError as `application`.
    """
    end_s = time.monotonic() + ready_s
    made = application(config, scale)
    try:
        # Both calls wait a minute for Serve's proxies, which a busy machine may need longer to start.
        with suppress(TimeoutError):
            serve.start(
                proxy_location=proxy_location(head_only=head_only),
                logging_config=LoggingConfig(enable_access_log=False),
                controller_options=controller_options(),
                **proxy_options(config),
            )
        target = serve.RunTarget(made, name=name, route_prefix="/")
        with suppress(TimeoutError):
            serve.run_many([target], wait_for_applications_running=False)
        _wait_until_ready(name, end_s, ready_s, show)
        _wait_for_proxies(end_s, ready_s)
    except (RayError, TimeoutError) as error:
        # The last line is the cause.
        last = (str(error).splitlines() or [type(error).__name__])[-1].strip()
        raise ClusterError(f"Ray Serve did not start, or did not take the application: {last}") from error


def _wait_until_ready(name: str, end_s: float, ready_s: float, show: Callable[[str], None]) -> None:
    shown = ""
    while (details := _details(name)).status is not ApplicationStatus.RUNNING:
        if details.status is ApplicationStatus.DEPLOY_FAILED:
            raise ClusterError(f"Deploying application {name} failed: {details.message} {_why(name)}".strip())
        deployment = details.deployments.get(DEPLOYMENT)
        line = "no replica exists yet"
        if deployment is not None:
            line = progress(deployment, ray.available_resources(), ray.cluster_resources())
        if line != shown:
            show(line)
            shown = line
        if time.monotonic() >= end_s:
            raise NotReadyError(f"not ready after {ready_s:g} s: {line}")
        time.sleep(LOOK_EVERY_S)


def _wait_for_proxies(end_s: float, ready_s: float) -> None:
    """Wait until the proxies have started and know the application's route, a moment after it runs."""
    while True:
        with suppress(TimeoutError):
            _get_global_client().wait_for_proxies_serving()
            return
        if time.monotonic() >= end_s:
            raise NotReadyError(f"not ready after {ready_s:g} s: Ray Serve's proxies do not answer")


def _details(name: str) -> ApplicationDetails:
    """Return Serve's details of an application. `serve.status` would leave out the replicas' nodes."""
    found = ServeInstanceDetails(**_get_global_client().get_serve_details()).applications
    if name not in found:
        raise ClusterError(f"the application {name!r} was taken down in the meantime")
    return found[name]


def _why(name: str) -> str:
    """Return the last lines of Serve's messages about a failed deployment."""
    found = serve.status().applications.get(name)
    if found is None:
        return ""
    messages = [found.message, *(each.message for each in found.deployments.values())]
    return " ".join(line for each in messages if each for line in each.splitlines()[-1:])


def proxy_host() -> str:
    """Return the address of a node that has a proxy, preferably the head node's."""
    nodes = {each["NodeID"]: each for each in ray.nodes() if each["Alive"]}
    with_proxy = [nodes[each] for each in serve.status().proxies if each in nodes]
    with_proxy.sort(key=lambda node: "node:__internal_head__" not in node["Resources"])
    return str(with_proxy[0]["NodeManagerAddress"]) if with_proxy else "127.0.0.1"


def describe(name: str) -> dict[str, Any]:
    """Describe the application: its status, the replicas in each state, and each replica's own description.

    Raises: ClusterError if there is no application of that name.
    """
    status = _status(name)
    deployment = status.deployments.get(DEPLOYMENT)
    states = dict(deployment.replica_states) if deployment else {}
    replicas: list[Any] = []
    if states.get("RUNNING"):
        handle = serve.get_deployment_handle(DEPLOYMENT, name)
        replicas = handle.broadcast("describe").results(timeout_s=DESCRIBE_S)
    return {
        "application": name,
        "status": str(status.status.value),
        "message": status.message,
        "states": {str(state): count for state, count in states.items()},
        "replicas": replicas,
    }


def targets(name: str) -> list[dict[str, Any]]:
    """Return the replicas' metrics pages for Prometheus' file or HTTP discovery. Raises: as `describe`."""
    return [
        {
            "targets": [each["metrics_url"].partition("//")[2].partition("/")[0]],
            "labels": {"application": name, "replica": each["replica"], "node": each["node"]},
        }
        for each in describe(name)["replicas"]
        if each["metrics_url"] is not None
    ]


def write_targets(name: str, file: Path) -> int:
    """Write the targets to a file atomically. Returns their number. Raises: as `describe`; OSError."""
    found = targets(name)
    new = file.with_name(f".{file.name}.new")
    new.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    new.replace(file)
    return len(found)


def take_down(name: str) -> None:
    """Drain and end the application's replicas. With the last application, Serve ends, too.

    Raises: ClusterError if there is no application of that name.
    """
    _status(name)
    serve.delete(name)
    if not serve.status().applications:
        serve.shutdown()


def _status(name: str) -> Any:
    applications = serve.status().applications
    if name not in applications:
        known = ", ".join(applications) or "none"
        raise ClusterError(f"no application {name!r} on this cluster; known are: {known}")
    return applications[name]
