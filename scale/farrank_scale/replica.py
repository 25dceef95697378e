"""A replica of Ray Serve: a Farrank replica without its own sockets, which gets its calls from Serve."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn, cast

import grpc
import ray
from ray import serve
from starlette.types import ASGIApp, Receive, Scope, Send

from farrank_calls.errors import InvalidArgument
from farrank_calls.telemetry.log_output import configure_logging
from farrank_scale.autoscaling import METRIC
from farrank_scale.proxied import METHODS
from farrank_scale.user_config import reconfigured
from farrank_server.config.schema import AdminConfig, ServerConfig
from farrank_server.http.listen import HttpListener
from farrank_server.listen import SEARCHES, GrpcListener, health_of
from farrank_server.metrics import Metrics
from farrank_server.replica import Replica
from farrank_server.run import set_up_process
from farrank_server.service.methods import SERVICE
from farrank_server.wire.handlers import refuse
from farrank_server.wire.standard_services import Health, reflections
from farrank_settings.errors import ConfigError

log = logging.getLogger(__name__)

# Serve does not pass on a call's deadline or timeout. Farrank's clients also send it as this metadata.
TIMEOUT_KEY = "farrank-timeout-ms"

# A bound that keeps the deadline a finite float.
MAX_TIMEOUT_MS = 10**12


class ServedBytes(NamedTuple):
    """An answer for Serve, which wants an object that serializes itself."""

    data: bytes

    def SerializeToString(self) -> bytes:
        """Return the serialized answer."""
        return self.data


class _CallEnded(Exception):
    """Ends a handler's call after its status was set."""


class CallThroughServe:
    """A call from Serve, with the methods of `grpc.aio.ServicerContext` that gRPC's handlers use.

    `context` is Serve's own and returns to Serve with the answer. Its status and trailers reach the caller
    only if the handler raises nothing. Belongs to the event loop.
    """

    def __init__(self, request: bytes, context: Any) -> None:
        self._request = request
        self._context = context
        self._done: list[Callable[[Any], None]] = []
        self._late_s: float | None = None

    def begin(self) -> None:
        """Read the call's timeout and set its deadline. Raises: InvalidArgument if the timeout is invalid."""
        given = next((value for key, value in self.invocation_metadata() if key == TIMEOUT_KEY), None)
        if given is None:
            return
        if not (given.isascii() and given.isdigit() and int(given[:20]) <= MAX_TIMEOUT_MS):
            raise InvalidArgument(
                f"{TIMEOUT_KEY}: {given[:100]!r} is not allowed; it must be a whole number of milliseconds"
            )
        self._late_s = asyncio.get_running_loop().time() + int(given) / 1000

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, or None if the caller set none."""
        return None if self._late_s is None else max(0.0, self._late_s - asyncio.get_running_loop().time())

    def peer(self) -> str:
        """Return the address of the proxy's caller, as gRPC writes it."""
        return str(self._context.peer())

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """Return the metadata of the request."""
        return cast(list[tuple[str, str]], self._context.invocation_metadata())

    def set_trailing_metadata(self, trailing: tuple[tuple[str, str], ...]) -> None:
        """Set the answer's trailing metadata. Serve adds its own request id."""
        self._context.set_trailing_metadata(list(trailing))

    async def read(self) -> bytes:
        """Return the request, which Serve has received completely."""
        return self._request

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing: tuple[tuple[str, str], ...] = ()
    ) -> NoReturn:
        """End the call with a status."""
        self._context.set_code(code)
        self._context.set_details(details)
        self.set_trailing_metadata(trailing)
        raise _CallEnded

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Register a callback for the end of the call here, when its answer goes to Serve."""
        self._done.append(callback)

    async def answered(self, behaviour: Any) -> ServedBytes:
        """Let a handler answer. An error sets the status and gives an empty answer."""
        try:
            self.begin()
            return ServedBytes(await behaviour(None, self))
        except _CallEnded:
            return ServedBytes(b"")
        except InvalidArgument as error:
            try:
                await refuse(cast(Any, self), error)
            except _CallEnded:
                return ServedBytes(b"")
        finally:
            for each in self._done:
                each(self)


class _HandlerCallDetails(NamedTuple):
    method: str
    invocation_metadata: tuple[()] = ()


class ServeGrpc(GrpcListener):
    """The gRPC endpoint without a port. Serve's calls find their handlers here by name."""

    def __init__(self, rankers: Iterable[str]) -> None:
        self._health = Health((SERVICE.full_name, SEARCHES), [health_of(each) for each in rankers])
        # Proxies pass no reflection calls on, so none is ever open.
        self._reflections = reflections()
        self.port = 0
        self._behaviours: dict[str, Any] = {}

    async def open(self, service: grpc.GenericRpcHandler) -> None:
        """Answer calls, and report healthy."""
        handlers = (service, self._health.handlers())
        for name, full in METHODS.items():
            found = (each.service(cast(Any, _HandlerCallDetails(f"/{full}"))) for each in handlers)
            handler = next(each for each in found if each is not None)
            self._behaviours[name] = _written(handler.stream_unary, handler.response_serializer)
        self.report(serving=True)

    async def answer(self, method: str, request: bytes, context: Any) -> ServedBytes:
        """Answer one call."""
        return await CallThroughServe(request, context).answered(self._behaviours[method])

    async def close(self, grace_s: float) -> None:
        """Do nothing, because nothing is open."""


def _written(behaviour: Any, serializer: Callable[[Any], bytes] | None) -> Any:
    if serializer is None:
        return behaviour

    async def write(requests: object, context: Any) -> bytes:
        return serializer(await behaviour(requests, context))

    return write


class ServeHttp(HttpListener):
    """The HTTP endpoint without a port: Serve calls its application."""

    def __init__(self) -> None:
        self.port = 0
        self.application: Any = None

    @property
    def url(self) -> str:
        """Return no URL, because Serve's proxies have the ports."""
        return ""

    async def open(self, application: Any) -> None:
        """Answer calls, and report healthy."""
        self.application = application
        self.report(serving=True)

    def report(self, *, serving: bool) -> None:
        """Set whether health checks are answered with serving."""
        if self.application is not None:
            self.application.serving = serving

    def report_not_serving(self) -> None:
        """Answer health checks with not serving."""
        self.report(serving=False)

    def is_followed(self) -> bool:
        """Return False: Serve sends no calls to a replica that it ends, so a drain needs no wait."""
        return False

    def end_idle(self) -> None:
        """Do nothing, because Serve has the connections."""

    def show_open(self, metrics: Metrics) -> None:
        """Do nothing, because Serve has the connections."""

    async def close(self, grace_s: float) -> None:
        """End the application's threads."""
        if self.application is not None:
            self.application.close()


class ReplicaBehindServe(Replica):
    """A replica that gets its calls from Serve: `grpc` and `http` replace the listening sockets."""

    grpc: ServeGrpc
    http: ServeHttp | None = None

    def _listen(self) -> GrpcListener:
        self.grpc = ServeGrpc(self._config.rankers)
        return self.grpc

    def _listen_http(self) -> HttpListener:
        self.http = ServeHttp()
        return self.http


def without_ports(config: ServerConfig) -> ServerConfig:
    """Return a replica's configuration: Serve has the endpoints' ports, and metrics take a free one."""
    listen = config.listen
    return replace(
        config,
        listen=replace(
            listen,
            port=0,
            metrics_port=None if listen.metrics_port is None else 0,
            http=replace(listen.http, port=None if listen.http.port is None else 0),
            # A change of one replica would leave the others behind.
            admin=AdminConfig(),
        ),
    )


class FarrankReplica:
    """The class that Serve instantiates for each replica: one engine, one device.

    Raises, when it is made: ConfigError if the configuration cannot be served on this node.
    """

    async def __init__(self, config: ServerConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        set_up_process()
        configure_logging(config.logging)
        self._config = self._wanted = without_ports(config)
        self._serves = False
        self._problem = ""
        self._reloading = asyncio.Lock()
        self._reloads: set[asyncio.Task[None]] = set()
        self._replica = ReplicaBehindServe(self._config, lambda: self._wanted)
        await self._replica.__aenter__()

    async def reconfigure(self, user_config: Any) -> None:
        """Swap the rankers that Serve's `user_config` changes (see `reconfigured`), without a restart.

        A new replica has them before its first call. One that serves swaps them afterwards, as after SIGHUP:
        Serve sends it no calls while this method runs, and would end it after an error. Its old rankers then
        serve on, and `describe` has the problem.
        Raises: ConfigError, in a new replica only.
        """
        if not self._serves:
            self._wanted = reconfigured(self._config, user_config)
            await self._replica.reload()
            return
        reload = asyncio.create_task(self._reload(user_config))
        self._reloads.add(reload)
        reload.add_done_callback(self._reloads.discard)

    async def _reload(self, user_config: Any) -> None:
        """Swap rankers beside calls. Changes that come meanwhile wait, in their order."""
        async with self._reloading:
            try:
                self._wanted = reconfigured(self._config, user_config)
                await self._replica.reload()
                self._problem = ""
            except ConfigError as error:  # the old rankers still serve
                log.error("the change of user_config failed: %s", error)
                self._problem = str(error)
            except Exception as error:
                # A bug in one reload must not prevent later reloads.
                log.exception("the change of user_config failed")
                self._problem = str(error) or type(error).__name__

    async def Rerank(self, request: bytes, grpc_context: Any) -> ServedBytes:
        """Rerank the caller's documents, including those that it names by index and id."""
        return await self._replica.grpc.answer("Rerank", request, grpc_context)

    async def SearchAndRerank(self, request: bytes, grpc_context: Any) -> ServedBytes:
        """Find candidates in an index and rerank them."""
        return await self._replica.grpc.answer("SearchAndRerank", request, grpc_context)

    async def ListRankers(self, request: bytes, grpc_context: Any) -> ServedBytes:
        """List the rankers and indexes that the caller may use."""
        return await self._replica.grpc.answer("ListRankers", request, grpc_context)

    async def Check(self, request: bytes, grpc_context: Any) -> ServedBytes:
        """Answer a health check, as gRPC's own health service does."""
        return await self._replica.grpc.answer("Check", request, grpc_context)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Report the seconds of pending work to the autoscaling policy."""
        return {METRIC: self._replica.engine.backlog_s()}

    async def check_health(self) -> None:
        """Let Serve replace a replica whose device is lost. Raises: RuntimeError."""
        # Serve's first check ends a replica's start.
        self._serves = True
        if self._replica.engine.lost.is_set():
            raise RuntimeError("the device is lost, or too many threads hang")

    async def describe(self) -> dict[str, Any]:
        """Describe this replica for operators: its node, metrics page, rankers' versions and backlog.

        `problem` says why the last change of `user_config` failed, or is empty.
        """
        metrics_url = self._replica.metrics_url
        if metrics_url is not None:
            for everywhere in ("//0.0.0.0:", "//[::]:"):
                metrics_url = metrics_url.replace(everywhere, f"//{ray.util.get_node_ip_address()}:")
        return {
            "replica": serve.get_replica_context().replica_id.unique_id,
            "node": ray.get_runtime_context().get_node_id(),
            "metrics_url": metrics_url,
            "rankers": {name: each.version for name, each in self._replica.engine.rankers.items()},
            "backlog_s": self._replica.engine.backlog_s(),
            "problem": self._problem,
        }

    async def __del__(self) -> None:
        """Drain and end. Serve calls this when it sends no more calls."""
        if hasattr(self, "_replica"):
            for each in self._reloads:
                each.cancel()
            await self._replica.__aexit__(None, None, None)


class FarrankHttpReplica(FarrankReplica):
    """A replica with the HTTP endpoint, too."""

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the application for Serve, which calls this after the replica was made."""
        assert self._replica.http is not None
        application: ASGIApp = self._replica.http.application

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "lifespan":
                await application(scope, receive, send)
                return
            # The application starts and ends with its replica, so there is nothing to do.
            while True:
                event = (await receive())["type"]
                await send({"type": f"{event}.complete"})
                if event == "lifespan.shutdown":
                    return

        return answer
