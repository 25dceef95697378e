"""One replica from start to end: load, warm up, serve, drain."""

import asyncio
import gc
import importlib.util
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

from farrank_calls.key_file import read_keys
from farrank_first_stage.lucene_host import SearchState
from farrank_first_stage.stages import check_indexes, open_first_stages
from farrank_server.access.keys import Keys
from farrank_server.access.token_file import TokenFile, read_token
from farrank_server.admin.listen import AdminListener, check_admin
from farrank_server.admin.methods import AdminMethods
from farrank_server.certificates import Certificates, read_certificates
from farrank_server.config.schema import ServerConfig
from farrank_server.engine.device.device_loop import DeviceState, DeviceThread
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.document_cache import DocumentCache
from farrank_server.engine.loaded.loading import check_rankers, load_rankers
from farrank_server.engine.query_encoders import EngineEncoders
from farrank_server.listen import GrpcListener, check_port, host_and_port, is_loopback
from farrank_server.metrics import Endpoint, Metrics
from farrank_server.metrics_page import PROBE_S, MetricsPage
from farrank_server.service.guard import Guard
from farrank_server.service.indexes import Indexes, OpenIndexes
from farrank_server.service.loading_beside import BesideLoader
from farrank_server.service.methods import SERVICE, RerankService
from farrank_server.service.rankers import Rankers, sources
from farrank_server.service.receiving import ReceivingBudget
from farrank_server.service.unread import UnreadAnswers
from farrank_server.wire.few_files import keep_files_free
from farrank_server.wire.handlers import handlers
from farrank_server.wire.standard_services import LIVENESS
from farrank_settings.errors import ConfigError

if TYPE_CHECKING:
    from farrank_server.http.judgements import JudgedSets
    from farrank_server.http.listen import HttpListener

log = logging.getLogger(__name__)

# The time in which calls that outlasted the drain can send their refusals.
CUT_GRACE_S = 1.0

# How long calls are still answered after load balancers, which check once or twice a second, were informed
# that the replica ends.
NOTICE_S = 1.5

# The probes of the metrics page, each with its service name in the health service.
PROBES = {"/livez": LIVENESS, "/readyz": SERVICE.full_name}

# Python's default is 10. Each call leaves reference cycles of gRPC objects, and most of them only a full
# collection frees.
MIDDLE_COLLECTIONS_BEFORE_FULL = 100


class Replica:
    """An async context manager: healthy after entry, drained after exit.

    `reread` reads the configuration again from its source.
    """

    def __init__(self, config: ServerConfig, reread: Callable[[], ServerConfig] | None = None) -> None:
        self._config = config
        self._reread = reread
        self._last_read = config if reread is None else reread()
        self.metrics = Metrics()
        self.metrics_url: str | None = None
        self.admin: AdminListener | None = None
        self.keys: Keys | None = None
        self.certificates: Certificates | None = None
        self._cache = DocumentCache(config.cache_bytes)
        self._http: HttpListener | None = None
        self._grpc: GrpcListener | None = None
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> "Replica":
        """Bind, load, warm up, then report healthy.

        Raises: ConfigError if the configuration cannot be served; everything is then closed again.
        """
        async with AsyncExitStack() as opened:
            await self._open(opened)
            self._opened = opened.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Report not serving, refuse new calls a moment later, answer the admitted ones, then end."""
        endpoints = [each for each in (self._listener, self._http) if each]
        for each in endpoints:
            each.report_not_serving()
        timeout_s = self._config.listen.drain_timeout_s
        # A call that reaches gRPC in the moment when it closes ends as CANCELLED, and few HTTP clients retry
        # after a 503. During this time, callers that follow health or read `Connection: close` go elsewhere,
        # and their calls are still answered.
        notice_s = min(NOTICE_S, timeout_s) if any(each.is_followed() for each in endpoints) else 0.0
        await asyncio.sleep(notice_s)
        if self._http:
            self._http.end_idle()
        if not await self.engine.drain(timeout_s - notice_s):
            log.warning("calls were still in flight after draining for %.0f s; they are refused", timeout_s)
            # This also refuses searches in flight.
            await self.indexes.stop()
        await self._opened.aclose()
        log.info("drained and ended")

    async def _open(self, opened: AsyncExitStack) -> None:
        """Open everything. The first thing opened is closed last."""
        config = self._config
        # Run all quick checks first: a wrong path should not be found only after a model has loaded.
        await asyncio.to_thread(check, config)
        if config.listen.metrics_port is not None:
            token_file = config.listen.metrics_token_file
            token = None if token_file is None else TokenFile(token_file)
            loop = asyncio.get_running_loop()
            probes = {
                path: partial(_run_on_loop, loop, partial(self._is_serving, service))
                for path, service in PROBES.items()
            }
            page = MetricsPage(config.listen.host, config.listen.metrics_port, self.metrics, token, probes)
            opened.callback(page.close)
            self.metrics_url = page.url
        tracing = None
        if config.tracing.endpoint is not None:
            # Imported here because it is an optional extra, and a server without tracing should not load it.
            from farrank_calls.telemetry.tracing import Tracing

            tracing = Tracing(config.tracing, "farrank")
            opened.push_async_callback(asyncio.to_thread, tracing.close)
        encoders = EngineEncoders()
        opening = partial(
            open_first_stages,
            config.first_stage,
            encoders,
            on_state=self._report_searches,
            tracing=config.tracing,
        )
        judged = await asyncio.to_thread(_read_judgements, config)
        first_stages = await asyncio.to_thread(opening)
        # Stop them on an error until `indexes` owns them.
        unowned = await opened.enter_async_context(AsyncExitStack())
        unowned.push_async_callback(first_stages.stop)
        device = DeviceThread()
        if config.listen.tls is not None:
            self.certificates = Certificates(config.listen.tls)
        self._grpc = self._listener = self._listen()
        # Rankers load while another process opens the indexes.
        searching = asyncio.create_task(first_stages.start())
        engine: Engine | None = None
        try:
            if config.listen.http.port is not None:
                self._http = self._listen_http()
            # As configured: `--export auto` may serve a ranker from elsewhere.
            loaded_from = await asyncio.to_thread(sources, self._last_read.rankers)
            loading = device.submit(load_rankers, config, self._cache)
            scorers = await asyncio.wrap_future(loading)
            self.engine = engine = Engine(config, scorers, device, self._cache, self.metrics)
            opened.push_async_callback(asyncio.to_thread, engine.close)
            # An index may need a ranker for its queries.
            encoders.provide(engine)
            await searching
        except BaseException:
            searching.cancel()
            await asyncio.wait((searching,))
            await self._listener.close(0)
            if self._http:
                await self._http.close(0)
            if engine is None:
                device.shutdown(timeout_s=1.0)
            raise
        opened.push_async_callback(self._listener.close, CUT_GRACE_S)
        if self._http:
            opened.push_async_callback(self._http.close, CUT_GRACE_S)
        self.metrics.show_objective(config.objective)
        self.metrics.show_limits(config.limits, config.cache_bytes)
        endpoints = [Endpoint.GRPC, Endpoint.HTTP] if self._http else [Endpoint.GRPC]
        self.metrics.show_endpoints(endpoints)
        now = await asyncio.to_thread(OpenIndexes, first_stages, self.engine)
        self.indexes = Indexes(now, opening, self.engine, self.metrics)
        opened.push_async_callback(self.indexes.stop)
        loader = BesideLoader(config, engine, self.indexes, encoders, self._cache)
        opened.callback(loader.close)
        self.rankers = Rankers(
            config,
            loaded_from,
            loader,
            engine,
            self.indexes,
            self.metrics,
            endpoints,
            self._listener.show_rankers,
        )
        unowned.pop_all()
        service = RerankService(config, self.engine, self.indexes, self.metrics)
        names = self.engine.rankers.keys()
        self.keys = self._open_keys(opened, endpoints)
        guard = partial(
            Guard,
            metrics=self.metrics,
            rankers=names,
            default_ranker=config.default_ranker,
            keys=self.keys,
            ok_sample=config.logging.ok_sample,
            tracing=tracing,
        )
        # Exempt all loaded objects from garbage collection: traversing them takes 0.3 s in which no call
        # proceeds.
        gc.collect()
        gc.freeze()
        # Python delays a full collection until the new objects are a quarter of those that the last one
        # traversed. Collect again, so that this number no longer includes the libraries.
        gc.collect()
        opened.callback(gc.unfreeze)
        # Collect the objects of calls in flight rarely, too: with 1,000 calls it takes tens of milliseconds.
        young, middle, full = gc.get_threshold()
        gc.set_threshold(young, middle, MIDDLE_COLLECTIONS_BEFORE_FULL)
        opened.callback(gc.set_threshold, young, middle, full)
        unread = UnreadAnswers(config.limits, self.metrics)
        opened.callback(unread.close)
        self._listener.report_load(self.engine.backlog_s)
        receiving = ReceivingBudget(config.limits, self.metrics)
        if self.keys is not None:
            self._listener.protect(self.keys)
        self._listener.show_open(self.metrics)
        await self._listener.open(handlers(service, guard(Endpoint.GRPC), config.limits, unread, receiving))
        if self._listener.port:
            checking = asyncio.create_task(keep_files_free(self._listener.port, self.metrics))
            opened.callback(checking.cancel)
        if self._http:
            from farrank_server.http.application import HttpApplication

            self._http.show_open(self.metrics)
            await self._http.open(
                HttpApplication(config, service, guard(Endpoint.HTTP), unread, receiving, judged)
            )
        if config.listen.admin.port is not None:
            methods = AdminMethods(self.rankers, config.limits.max_ranker_bytes)
            self.admin = AdminListener(config.listen.admin, methods)
            opened.push_async_callback(self.admin.close)
            await self.admin.open()
        self.engine.device.on_change.append(self._report_health)
        # The device may have failed since its rankers were loaded.
        if self.engine.device.state is not DeviceState.READY:
            self._report_health(self.engine.device.state)

    def _listen(self) -> GrpcListener:
        """Bind gRPC's port. Subclasses may return another listener."""
        config = self._config
        return GrpcListener(config.listen, config.limits, self.certificates, config.rankers)

    def _listen_http(self) -> "HttpListener":
        """Bind HTTP's port. Subclasses may return another listener."""
        # Imported here because a server without HTTP should not load its libraries.
        from farrank_server.http.listen import HttpListener

        return HttpListener(self._config.listen, self._config.limits, self.certificates)

    def _open_keys(self, opened: AsyncExitStack, endpoints: Collection[Endpoint]) -> Keys | None:
        """Read the API keys and watch their file. Returns None if no keys are configured."""
        listen = self._config.listen
        if listen.keys is None:
            return None
        held = {"rankers": self.engine.rankers, "indexes": self._config.first_stage.indexes}
        keys = Keys(listen.keys, self.metrics, held)
        self.metrics.show_access(endpoints)
        if listen.tls is None and not is_loopback(listen.host):
            log.warning(
                "listen.keys: without listen.tls, API keys cross the network unencrypted; "
                "anyone who reads one can use it"
            )
        watching = asyncio.create_task(keys.watch())
        opened.callback(watching.cancel)
        return keys

    async def reload(self) -> None:
        """Reload the keys, the certificates, the objective, the rankers and the indexes.

        Each stays as it is if its reload fails. Raises: ConfigError with the problems of all of them.
        """
        failures: list[Exception] = []
        try:
            await self._reload_configuration()
        except ConfigError as error:
            failures.append(error)
        try:
            if self.keys is not None:
                await self.keys.reload()
        except ConfigError as error:
            failures.append(error)
        try:
            if self.certificates is not None:
                await asyncio.to_thread(self.certificates.reload)
        except ConfigError as error:
            failures.append(error)
        try:
            await self.indexes.reload()
        except Exception as error:
            failures.append(error)
        if failures:
            raise ConfigError(*(str(each) or type(each).__name__ for each in failures)) from failures[0]

    async def _reload_configuration(self) -> None:
        """Read the configuration again. Its objective and its rankers take effect without a restart."""
        if self._reread is not None:
            self._reload_objective(await asyncio.to_thread(self._reread))
        await self.rankers.reload(self._last_read.rankers)

    def _reload_objective(self, now: ServerConfig) -> None:
        before, self._last_read = self._last_read, now
        self.metrics.show_objective(self._last_read.objective)
        changed = [
            each.name
            for each in fields(before)
            if each.name not in ("objective", "rankers")
            and getattr(before, each.name) != getattr(self._last_read, each.name)
        ]
        if changed:
            log.warning("changes to %s in the configuration take effect after a restart", ", ".join(changed))

    def _report_health(self, state: DeviceState) -> None:
        """Report to load balancers whether the device is ready."""
        ready = state is DeviceState.READY
        if self._http:
            self._http.report(serving=ready)
        self._listener.report(serving=ready)
        self._listener.report_life(alive=not self.engine.device.is_dead_or_hung)

    def _is_serving(self, service: str) -> bool:
        """Return a probe's answer. Before the start is complete, a replica is alive and not ready."""
        return self._grpc.is_serving(service) if self._grpc else service == LIVENESS

    def _report_searches(self, state: SearchState) -> None:
        """Report and count the state of the search process. Calls that bring documents are not affected."""
        is_up = state is SearchState.UP
        self.metrics.search_process_down.set(not is_up)
        if not is_up:
            self.metrics.search_process_ends.labels(state).inc()
        self._listener.report_searches(serving=is_up)

    @property
    def address(self) -> str:
        """The address on which gRPC listens."""
        return host_and_port(self._config.listen.host, self._listener.port)

    @property
    def http_url(self) -> str | None:
        """The URL on which HTTP listens; None if no port is configured."""
        return self._http.url if self._http else None


def _run_on_loop(loop: asyncio.AbstractEventLoop, probe: Callable[[], bool]) -> bool:
    """Run a probe on the event loop from another thread.

    Raises: TimeoutError if it does not answer in time.
    """

    async def ask() -> bool:
        return probe()

    answer = asyncio.run_coroutine_threadsafe(ask(), loop)
    try:
        return answer.result(PROBE_S)
    finally:
        answer.cancel()


def check(config: ServerConfig) -> None:
    """Check the ports, certificates, keys, indexes and the files of every ranker except its weights.

    It loads no model and does not start Java. Raises: ConfigError with every problem.
    """
    listen = config.listen
    endpoints = {
        "listen.port": listen.port,
        "listen.http.port": listen.http.port,
        "listen.metrics_port": listen.metrics_port,
    }
    ports = {key: port for key, port in endpoints.items() if port is not None}
    admin = {} if listen.admin.port is None else {"listen.admin.port": listen.admin.port}
    checks: list[Callable[[], object]] = [partial(_check_ports, {**ports, **admin})]
    checks.append(partial(check_admin, listen.admin))
    checks += [partial(check_port, key, listen.host, port) for key, port in ports.items()]
    if listen.tls is not None:
        checks.append(partial(read_certificates, listen.tls))
    if listen.keys is not None:
        checks.append(partial(read_keys, listen.keys))
    if listen.metrics_token_file is not None:
        checks.append(partial(read_token, listen.metrics_token_file))
    checks += [partial(check_indexes, config.first_stage, config.rankers), partial(check_rankers, config)]
    checks += [partial(_check_models, config), partial(_read_judgements, config)]
    if config.tracing.endpoint is not None:
        checks.append(_check_tracing)
    problems: list[str] = []
    for each in checks:
        try:
            each()
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)


def _check_tracing() -> None:
    """Check that the tracing packages are installed, without importing them. Raises: ConfigError."""
    for package in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise ConfigError(f"tracing.endpoint: needs the package {package}: pip install 'farrank[otel]'")


def _check_ports(ports: Mapping[str, int]) -> None:
    """Check that no two endpoints have the same port. 0 stands for any free port. Raises: ConfigError."""
    by_port: dict[int, str] = {}
    wrong = [
        f"{key}: {port} is also the port of {other}; each endpoint needs its own port"
        for key, port in ports.items()
        if port and (other := by_port.setdefault(port, key)) != key
    ]
    if wrong:
        raise ConfigError(*wrong)


def _read_judgements(config: ServerConfig) -> "JudgedSets":
    """Read the judged questions for the page. Raises: ConfigError with every problem."""
    if not config.listen.http.judgements:
        return {}
    # Imported here because a server without HTTP should not load its libraries.
    from farrank_server.http.judgements import read_judgements

    return read_judgements(config.listen.http, config.first_stage.indexes)


def _check_models(config: ServerConfig) -> None:
    known = ", ".join(config.rankers)
    wrong = [
        f"listen.http.models.{model}: no ranker {ranker!r} is configured; known are: {known}"
        for model, ranker in config.listen.http.models.items()
        if ranker and ranker not in config.rankers
    ]
    if wrong:
        raise ConfigError(*wrong)
