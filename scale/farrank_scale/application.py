"""The application that Ray Serve runs, made from Farrank's configuration and the number of replicas."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.schema import LoggingConfig

from farrank_scale.autoscaling import BacklogPolicy
from farrank_scale.proxied import IMPORT_PATH
from farrank_scale.replica import FarrankHttpReplica, FarrankReplica
from farrank_scale.routing import AnyNodeRouter
from farrank_server.config.schema import ServerConfig
from farrank_server.config.server_config import build_config
from farrank_settings import sources
from farrank_settings.checked import CheckedConfig, above_0, at_least, between
from farrank_settings.errors import ConfigError
from farrank_settings.sources import Setting, build

DEPLOYMENT = "farrank"

# A drain's time beyond its calls: refusing calls that outlive it, ending threads and the search process.
BEYOND_DRAIN_S = 15.0

# The interval in which replicas report their backlog, and the shortest period over which it is averaged.
REPORT_EVERY_S = 1.0
LOOK_BACK_S = 2.0

# The variable is 1 if the cluster was started with HAProxy, which then passes calls on.
HA_PROXY = "RAY_SERVE_ENABLE_HA_PROXY"

# The variable, in the controller's environment, sets how long Serve's controller waits for a proxy. The value
# is the time that Serve's own start waits for one.
PROXY_READY = "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"
PROXY_READY_S = "60"


@dataclass(frozen=True, slots=True)
class Scale(CheckedConfig):
    """The number of replicas, and the resources of each.

    The application starts with `replicas`. With `max_replicas`, the number then follows the backlog, between
    `min_replicas` (None: `replicas`) and `max_replicas`, so that each replica has about `target_backlog_s` of
    pending work. Replicas are added if this asks for more during `upscale_delay_s`, and removed if it asks
    for fewer during `downscale_delay_s`. A node must have `cpus` and `gpus` free for a replica; a replica
    uses one device. During a rollout `surge_percent` more replicas may run, at least one. With 0, an old
    replica ends before a new one starts.
    """

    replicas: int = at_least(1, 1)
    min_replicas: int | None = at_least(1, None)
    max_replicas: int | None = at_least(1, None)
    target_backlog_s: float = above_0(1.0)
    upscale_delay_s: float = at_least(0, 10.0)
    downscale_delay_s: float = at_least(0, 300.0)
    cpus: float = at_least(0, 1.0)
    gpus: float = at_least(0, 0.0)
    surge_percent: int = between(0, 100, 25)

    def __post_init__(self) -> None:
        CheckedConfig.__post_init__(self)
        least, most = self.min_replicas, self.max_replicas
        if most is None:
            if least is not None:
                raise ConfigError(f"min_replicas: {least} is given without max_replicas; set both")
            return
        if not (least or self.replicas) <= self.replicas <= most:
            raise ConfigError(
                f"replicas: {self.replicas} is not allowed; it must be from min_replicas "
                f"{least or self.replicas} to max_replicas {most}"
            )


def check_behind_serve(config: ServerConfig) -> None:
    """Check that Serve supports a configuration. Raises: ConfigError."""
    if config.listen.tls is not None:
        raise ConfigError(
            "listen.tls: Ray Serve's proxies have no TLS; leave it out, and put a TLS proxy before them"
        )


def application(config: ServerConfig, scale: Scale) -> Any:
    """Make the application. Raises: ConfigError as `check_behind_serve`."""
    check_behind_serve(config)
    made = FarrankReplica if config.listen.http.port is None else serve.ingress()(FarrankHttpReplica)
    calls = config.limits.max_concurrent_calls
    deployment = serve.deployment(
        name=DEPLOYMENT,
        # Above the replica's own limit, which refuses calls with a time to retry. Serve's refusals have none.
        max_ongoing_requests=2 * calls,
        # Calls wait in a proxy while no replica runs, and for a moment until the proxy finds one.
        max_queued_requests=2 * calls,
        **_router(),
        graceful_shutdown_timeout_s=config.listen.drain_timeout_s + BEYOND_DRAIN_S,
        graceful_shutdown_wait_loop_s=0.5,
        max_constructor_retry_count=3,
        max_surge_percent=scale.surge_percent,
        ray_actor_options={"num_cpus": scale.cpus, "num_gpus": scale.gpus},
        logging_config=LoggingConfig(enable_access_log=False),
        **_how_many(scale),
    )(made)
    # With an explicit version, Serve keeps the replicas if only their number changes.
    version = version_of(config, by_backlog=scale.max_replicas is not None)
    deployment = deployment.options(version=version, _internal=True)
    return deployment.bind(config)


def _router() -> dict[str, Any]:
    """Let calls go to replicas of any node. HAProxy does so itself, and Serve refuses a router with it."""
    if os.environ.get(HA_PROXY) == "1":
        return {}
    return {"request_router_config": RequestRouterConfig(request_router_class=AnyNodeRouter)}


def _how_many(scale: Scale) -> dict[str, Any]:
    if scale.max_replicas is None:
        return {"num_replicas": scale.replicas}
    policy = AutoscalingPolicy(
        policy_function=BacklogPolicy, policy_kwargs={"target_s": scale.target_backlog_s}
    )
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=scale.min_replicas or scale.replicas,
            initial_replicas=scale.replicas,
            max_replicas=scale.max_replicas,
            upscale_delay_s=scale.upscale_delay_s,
            downscale_delay_s=scale.downscale_delay_s,
            # Serve calls this deprecated, but does not read the variable that is to replace it.
            metrics_interval_s=REPORT_EVERY_S,
            look_back_period_s=max(LOOK_BACK_S, scale.upscale_delay_s),
            policy=policy,
        )
    }


def version_of(config: ServerConfig, *, by_backlog: bool) -> str:
    """Return a digest that changes when Serve must replace the replicas.

    It depends on the configuration, on the size and time of the rankers' files, and on `by_backlog`: replicas
    report their backlog only if autoscaling was on when they were made.
    """
    digest = hashlib.sha256(f"{by_backlog}\n{sources.to_yaml(config, ())}".encode())
    for ranker in config.rankers.values():
        for name in ("ranker.json", "config.json", "model.safetensors"):
            path = Path(ranker.source) / name
            if path.is_file():
                found = path.stat()
                digest.update(f"{path} {found.st_size} {found.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def proxy_options(config: ServerConfig) -> dict[str, dict[str, Any]]:
    """Return the options of Serve's proxies. They listen for gRPC on all of a node's addresses."""
    http = config.listen.http.port
    return {
        "grpc_options": {"port": config.listen.port, "grpc_servicer_functions": [IMPORT_PATH]},
        # Serve always listens for HTTP. Without Farrank's HTTP endpoint it passes no calls to Farrank.
        "http_options": {"host": config.listen.host, "port": 8000 if http is None else http},
    }


def proxy_location(*, head_only: bool) -> str:
    """Return the nodes that have a proxy: only the head node, or every node that has a replica."""
    return "HeadOnly" if head_only else "EveryNode"


def controller_options() -> dict[str, Any]:
    """Return the options of Serve's controller.

    By default it kills a proxy that is not ready after 5 s. This is too short on a node that has not imported
    Serve before: `up` waits for the first proxy and would fail.
    """
    seconds = os.environ.get(PROXY_READY, PROXY_READY_S)
    return {"runtime_env": {"env_vars": {PROXY_READY: seconds}}}


def serve_file(
    name: str, config: ServerConfig, args: Mapping[str, Any], *, head_only: bool = False
) -> dict[str, Any]:
    """Return a configuration file of Serve, for `serve deploy` and KubeRay. `args` are those of `from_file`.

    Serve replaces all replicas when the arguments change. A fixed number of replicas therefore stands outside
    them.
    """
    arguments = dict(args)
    fixed = {}
    if "max_replicas" not in arguments:
        fixed = {"deployments": [{"name": DEPLOYMENT, "num_replicas": arguments.pop("replicas", 1)}]}
    return {
        "proxy_location": proxy_location(head_only=head_only),
        "controller_options": controller_options(),
        **proxy_options(config),
        "applications": [
            {
                "name": name,
                "route_prefix": "/",
                "import_path": f"{__name__}:from_file",
                "args": arguments,
                **fixed,
            }
        ],
    }


def from_file(args: Mapping[str, Any]) -> Any:
    """Make the application for a configuration file of Serve.

    `args` may have `config`, the path of Farrank's file on the node that builds the application; `set`, a
    mapping of keys to values as in `farrank serve --set`; and the fields of `Scale`.
    Raises: ConfigError with every problem.
    """
    of_scale = {each.name for each in fields(Scale)}
    if unknown := args.keys() - of_scale - {"config", "set"}:
        known = ", ".join(("config", "set", *sorted(of_scale)))
        raise ConfigError(f"args.{min(unknown)}: there is no such key; known are: {known}")
    settings = sources.from_file(Path(args["config"])) if args.get("config") else []
    settings += [
        Setting(tuple(key.split(".")), value, f"args.set.{key}")
        for key, value in (args.get("set") or {}).items()
    ]
    config = build_config(settings)
    given = [Setting((key,), value, "args") for key, value in args.items() if key in of_scale]
    return application(config, build(Scale, given))
