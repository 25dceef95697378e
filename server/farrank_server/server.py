"""One replica from start to end: load, warm up, serve, drain."""

import asyncio
import logging
from types import TracebackType

from farrank_server.config import ServerConfig
from farrank_server.engine.cache import DocumentCache
from farrank_server.engine.engine import Engine
from farrank_server.engine.loading import load_lanes
from farrank_server.first_stage.lucene import LuceneFirstStage
from farrank_server.listen import GrpcDoor, MetricsDoor
from farrank_server.metrics import Metrics
from farrank_server.wire.guard import Guard
from farrank_server.wire.servicer import RerankServicer

log = logging.getLogger(__name__)

# What calls that outlived the drain get to send their refusals.
CUT_GRACE_S = 1.0


class Server:
    """A replica as an async context manager: healthy when entered, drained when left."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self.metrics = Metrics()
        self._cache = DocumentCache(config.cache_bytes)

    async def __aenter__(self) -> "Server":
        """Bind, load, warm up, then report healthy.

        Raises: ConfigError if the configuration cannot be served.
        """
        config = self._config
        default_ranker = next(iter(config.rankers))
        self._door = GrpcDoor(
            config.listen, config.limits, Guard(self.metrics, config.rankers.keys(), default_ranker)
        )
        self._first_stage = LuceneFirstStage(config.first_stage)
        try:
            self._metrics_door = MetricsDoor(config.listen, self.metrics)
            # Opening indexes waits for another process: rankers load meanwhile.
            lanes, _ = await asyncio.gather(
                asyncio.to_thread(load_lanes, config, self._cache), self._first_stage.start()
            )
        except BaseException:
            await self._first_stage.stop()
            await self._door.close(0)
            raise
        self.engine = Engine(config, lanes, self._cache, self.metrics)
        for lane in lanes:
            capabilities = lane.runtime.capabilities()
            self.metrics.ranker_info.labels(
                lane.name,
                lane.version,
                lane.spec.family,
                capabilities.runtime,
                capabilities.device,
                capabilities.precision,
            ).set(1)
        await self._door.open(RerankServicer(config, self.engine, self._first_stage, self.metrics))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Report not serving, refuse new calls, answer the admitted ones, then end."""
        await self._door.report_not_serving()
        timeout_s = self._config.listen.drain_timeout_s
        if not await self.engine.drain(timeout_s):
            log.warning("calls were still in flight after draining for %.0f s; they are refused", timeout_s)
        await self._door.close(CUT_GRACE_S)
        await asyncio.to_thread(self.engine.close)
        await self._first_stage.stop()
        self._metrics_door.close()
        log.info("drained and ended")

    @property
    def host(self) -> str:
        """The interface that both doors listen on."""
        return self._config.listen.host

    @property
    def port(self) -> int:
        """Where gRPC listens."""
        return self._door.port

    @property
    def metrics_port(self) -> int | None:
        """Where Prometheus' page is."""
        return self._metrics_door.port
