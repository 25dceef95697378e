"""One replica from start to end: load, warm up, serve, drain."""

import asyncio
import gc
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from farrank_server.config.schema import ServerConfig
from farrank_server.engine.device.device_loop import DeviceState, DeviceThread
from farrank_server.engine.engine import Engine
from farrank_server.engine.rankers.document_cache import DocumentCache
from farrank_server.engine.rankers.loading import check_rankers, load_rankers
from farrank_server.errors import ConfigError
from farrank_server.first_stage.query_encoders import EngineEncoders
from farrank_server.first_stage.stages import check_indexes, open_first_stages
from farrank_server.listen import GrpcListener, MetricsPage, check_port, check_tls, host_and_port
from farrank_server.metrics import Door, Metrics
from farrank_server.service.guard import Guard
from farrank_server.service.indexes import Indexes
from farrank_server.service.methods import RerankService
from farrank_server.wire.handlers import handlers

if TYPE_CHECKING:
    from farrank_server.http.listen import HttpListener

log = logging.getLogger(__name__)

# What calls that outlived the drain get to send their refusals.
CUT_GRACE_S = 1.0

# Python's own is 10.
MIDDLE_COLLECTIONS_BEFORE_FULL = 1000


class Replica:
    """An async context manager: healthy when entered, drained when left."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self.metrics = Metrics()
        self.metrics_url: str | None = None
        self._cache = DocumentCache(config.cache_bytes)
        self._http: HttpListener | None = None
        self._opened = AsyncExitStack()
        self._reporting: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> "Replica":
        """Bind, load, warm up, then report healthy.

        Raises: ConfigError if the configuration cannot be served; nothing is left open then.
        """
        async with AsyncExitStack() as opened:
            await self._open(opened)
            self._opened = opened.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Report not serving, refuse new calls, answer the admitted ones, then end."""
        await self._door.report_not_serving()
        if self._http:
            self._http.report(serving=False)
        timeout_s = self._config.listen.drain_timeout_s
        if not await self.engine.drain(timeout_s):
            log.warning("calls were still in flight after draining for %.0f s; they are refused", timeout_s)
            # Searches in flight are refused with it.
            await self.indexes.stop()
        await self._opened.aclose()
        log.info("drained and ended")

    async def _open(self, opened: AsyncExitStack) -> None:
        """Open everything; what is opened first is closed last."""
        config = self._config
        # First what takes no time, all of it: a wrong path is not to be found after a model has loaded.
        await asyncio.to_thread(check, config)
        if config.listen.metrics_port is not None:
            page = MetricsPage(config.listen.host, config.listen.metrics_port, self.metrics)
            opened.callback(page.close)
            self.metrics_url = page.url
        encoders = EngineEncoders()
        opening = partial(open_first_stages, config.first_stage, encoders)
        first_stages = opening()
        # Until `indexes` has them, which stops them, too, and lets go of them when it has others.
        unowned = await opened.enter_async_context(AsyncExitStack())
        unowned.push_async_callback(first_stages.stop)
        device = DeviceThread()
        self._door = GrpcListener(config.listen, config.limits)
        # Opening indexes waits for another process: rankers load meanwhile.
        searching = asyncio.create_task(first_stages.start())
        engine: Engine | None = None
        try:
            if config.listen.http.port is not None:
                # Imported here: a server without HTTP spends no time and memory on its libraries.
                from farrank_server.http.listen import HttpListener

                self._http = HttpListener(config.listen)
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
            await self._door.close(0)
            if self._http:
                await self._http.close(0)
            if engine is None:
                device.shutdown(timeout_s=1.0)
            raise
        opened.push_async_callback(self._door.close, CUT_GRACE_S)
        if self._http:
            opened.push_async_callback(self._http.close, CUT_GRACE_S)
        self.metrics.name_limits(config.limits, config.cache_bytes)
        doors = [Door.GRPC, Door.HTTP] if self._http else [Door.GRPC]
        for ranker in self.engine.rankers.values():
            self.metrics.show_ranker(ranker, doors)
        self.indexes = Indexes(first_stages, opening, self.engine, self.metrics)
        opened.push_async_callback(self.indexes.stop)
        unowned.pop_all()
        service = RerankService(config, self.engine, self.indexes, self.metrics)
        names = self.engine.rankers.keys()
        guard = partial(Guard, metrics=self.metrics, rankers=names, default_ranker=config.default_ranker)
        # What was loaded stays: a collection need not go through it again, 0.3 s during which no call moves.
        gc.collect()
        gc.freeze()
        opened.callback(gc.unfreeze)
        # Nor the calls in flight: with 1,000 that takes tens of milliseconds. What they leave needs none.
        young, middle, full = gc.get_threshold()
        gc.set_threshold(young, middle, MIDDLE_COLLECTIONS_BEFORE_FULL)
        opened.callback(gc.set_threshold, young, middle, full)
        await self._door.open(handlers(service, guard(Door.GRPC), config.limits))
        if self._http:
            from farrank_server.http.door import HttpDoor

            await self._http.open(HttpDoor(config, service, guard(Door.HTTP)))
        self.engine.device.on_change.append(self._report_health)

    def _report_health(self, state: DeviceState) -> None:
        """Let load balancers send calls elsewhere while the device is not ready."""
        ready = state is DeviceState.READY
        if self._http:
            self._http.report(serving=ready)
        reporting = asyncio.ensure_future(self._door.report(serving=ready))
        self._reporting.add(reporting)
        reporting.add_done_callback(self._reporting.discard)

    @property
    def address(self) -> str:
        """Where gRPC listens."""
        return host_and_port(self._config.listen.host, self._door.port)

    @property
    def http_url(self) -> str | None:
        """Where HTTP listens; None if none is configured."""
        return self._http.url if self._http else None


def check(config: ServerConfig) -> None:
    """Check the ports, the certificates, the indexes and every ranker's files, but not its weights.

    Neither a model is loaded nor Java started. Raises: ConfigError with every problem.
    """
    listen = config.listen
    checks: list[Callable[[], object]] = [partial(check_port, "listen.port", listen.host, listen.port)]
    if listen.http.port is not None:
        checks.append(partial(check_port, "listen.http.port", listen.host, listen.http.port))
    if listen.metrics_port is not None:
        checks.append(partial(check_port, "listen.metrics_port", listen.host, listen.metrics_port))
    if listen.tls is not None:
        checks.append(partial(check_tls, listen.tls))
    checks += [partial(check_indexes, config.first_stage, config.rankers), partial(check_rankers, config)]
    checks.append(partial(_check_models, config))
    problems: list[str] = []
    for each in checks:
        try:
            each()
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)


def _check_models(config: ServerConfig) -> None:
    known = ", ".join(config.rankers)
    wrong = [
        f"listen.http.models.{model}: no ranker {ranker!r} is configured; known are: {known}"
        for model, ranker in config.listen.http.models.items()
        if ranker and ranker not in config.rankers
    ]
    if wrong:
        raise ConfigError(*wrong)
