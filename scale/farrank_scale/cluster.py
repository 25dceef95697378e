"""What operators do with the application on a cluster: bring it up, look at it, take it down."""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

# Of a large ranker's loading on a node that a cluster had to add first.
READY_S = 600.0


class ClusterError(RuntimeError):
    """There is no cluster, or no such application on it, or it could not be brought up."""


class NotReadyError(ClusterError):
    """The replicas were not ready in time. Serve goes on starting them."""


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Be a client of a cluster: that of `address` (None: RAY_ADDRESS's, or the one of this machine).

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
    """Check that somebody listens at `HOST:PORT`, for which Ray takes minutes.

    Raises: OSError if nobody does; OverflowError if the port is none.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal():
        return
    hosts = [host.strip("[]")]
    if host in ("127.0.0.1", "localhost"):
        # Ray asks at this machine's own address then.
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

    Replicas whose configuration stays are kept; others are replaced a few at a time, and drain. With
    `head_only` the head node alone has proxies. `show` gets a line whenever the deployment has come further.
    Raises: NotReadyError after `ready_s`; ClusterError with what Serve says; ConfigError as `application`.
    """
    end_s = time.monotonic() + ready_s
    made = application(config, scale)
    try:
        serve.start(
            proxy_location=proxy_location(head_only=head_only),
            logging_config=LoggingConfig(enable_access_log=False),
            controller_options=controller_options(),
            **proxy_options(config),
        )
        target = serve.RunTarget(made, name=name, route_prefix="/")
        serve.run_many([target], wait_for_applications_running=False)
        _wait_until_ready(name, end_s, ready_s, show)
        # They know the application's place a moment after it runs.
        _get_global_client().wait_for_proxies_serving()
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


def _details(name: str) -> ApplicationDetails:
    """What Serve tells of an application, each replica with its node, which `serve.status` leaves out."""
    found = ServeInstanceDetails(**_get_global_client().get_serve_details()).applications
    if name not in found:
        raise ClusterError(f"the application {name!r} was taken down meanwhile")
    return found[name]


def _why(name: str) -> str:
    """What Serve knows of a failed deployment: the last lines of its messages."""
    found = serve.status().applications.get(name)
    if found is None:
        return ""
    messages = [found.message, *(each.message for each in found.deployments.values())]
    return " ".join(line for each in messages if each for line in each.splitlines()[-1:])


def proxy_host() -> str:
    """The address of a node that has a proxy, the head's where it has one."""
    nodes = {each["NodeID"]: each for each in ray.nodes() if each["Alive"]}
    with_proxy = [nodes[each] for each in serve.status().proxies if each in nodes]
    with_proxy.sort(key=lambda node: "node:__internal_head__" not in node["Resources"])
    return str(with_proxy[0]["NodeManagerAddress"]) if with_proxy else "127.0.0.1"


def describe(name: str) -> dict[str, Any]:
    """Say how the application is: its status, what Serve counts, and what each replica tells of itself.

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
    """The replicas' metrics pages as Prometheus' file and HTTP discovery take them. Raises: as `describe`."""
    return [
        {
            "targets": [each["metrics_url"].partition("//")[2].partition("/")[0]],
            "labels": {"application": name, "replica": each["replica"], "node": each["node"]},
        }
        for each in describe(name)["replicas"]
        if each["metrics_url"] is not None
    ]


def write_targets(name: str, file: Path) -> int:
    """Write them to a file, at once whole; return how many. Raises: as `describe`; OSError."""
    found = targets(name)
    beside = file.with_name(f".{file.name}.new")
    beside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    beside.replace(file)
    return len(found)


def take_down(name: str) -> None:
    """Drain and end the application's replicas; with the last application Serve ends, too.

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
