"""What operators do with the application on a cluster: bring it up, look at it, take it down."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.schema import LoggingConfig

from farrank_scale.application import DEPLOYMENT, Scale, application, proxy_options
from farrank_server.config.schema import ServerConfig

DESCRIBE_S = 30.0
CONNECT_S = 5.0


class ClusterError(RuntimeError):
    """There is no cluster, or no such application on it, or it could not be brought up."""


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


def bring_up(config: ServerConfig, scale: Scale, name: str, *, head_only: bool = False) -> None:
    """Deploy the application, or change one of that name, and wait until it runs.

    Replicas whose configuration stays are kept; others are replaced a few at a time, and drain. With
    `head_only` the head node alone has proxies.
    Raises: ClusterError with what Serve says; ConfigError as `application`.
    """
    made = application(config, scale)
    serve.start(
        proxy_location="HeadOnly" if head_only else "EveryNode",
        logging_config=LoggingConfig(enable_access_log=False),
        **proxy_options(config),
    )
    try:
        serve.run(made, name=name, route_prefix="/")
    except RuntimeError as error:
        raise ClusterError(f"{error} {_why(name)}".strip()) from error


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
    handle = serve.get_deployment_handle(DEPLOYMENT, name)
    states = dict(deployment.replica_states) if deployment else {}
    replicas = handle.broadcast("describe").results(timeout_s=DESCRIBE_S) if states.get("RUNNING") else []
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
