"""The indexes that calls search and read, and their replacement without dropping a call."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from farrank_first_stage.stages import FirstStages
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.ranker import LoadedRanker
from farrank_server.engine.stored import NOTHING, Sources
from farrank_server.metrics import Metrics

log = logging.getLogger(__name__)


class OpenIndexes:
    """All indexes as they were opened at one time, and the stored data that the loaded rankers read.

    Create it on a thread that may wait for files. `calls` counts the calls that use these indexes now.
    """

    def __init__(self, first_stages: FirstStages, engine: Engine) -> None:
        self.first_stages = first_stages
        self.calls = 0
        self._rankers = engine.loaded
        self._sources = {
            name: Sources.found(stage.stores, engine.versions.members())
            for name, stage in first_stages.stages.items()
            if stage.stores is not None
        }
        self._why_not = {
            (index, ranker.name): sources.stores.why_no_tokens(ranker.reader)
            for index, sources in self._sources.items()
            for ranker in self._rankers.values()
        }

    @property
    def names(self) -> Collection[str]:
        """The names of all indexes, in the order of the configuration."""
        return self.first_stages.stages.keys()

    def sources(self, index: str) -> Sources | None:
        """The data stored with an index; None if there is none."""
        return self._sources.get(index)

    def add(self, ranker: LoadedRanker) -> None:
        """Find the stored data that a further ranker can read. May wait for files."""
        for index, sources in self._sources.items():
            self._why_not[index, ranker.name] = sources.stores.why_no_tokens(ranker.reader)
            sources.add(ranker)

    def remove(self, ranker: LoadedRanker) -> None:
        """Forget a ranker that is no longer loaded."""
        for sources in self._sources.values():
            sources.remove(ranker)

    def show(self, metrics: Metrics) -> None:
        """Export which ranker reads which store, and log which ranker reads none, and why."""
        for gauge in (metrics.stored_for, metrics.index_generation):
            gauge.clear()
        for index in self.first_stages.describe():
            metrics.index_generation.labels(index.name).set(index.generation)
            # This makes the metric start at 0.
            metrics.first_stage_seconds.labels(index.name)
            for ranker in self._rankers.values():
                self._show(metrics, index.name, ranker)

    def _show(self, metrics: Metrics, index: str, ranker: LoadedRanker) -> None:
        sources = self.sources(index)
        source = NOTHING if sources is None else sources.source(ranker.key)
        metrics.stored_for.labels(index, ranker.name, "tokens").set(source.tokens is not None)
        if ranker.is_dual:
            metrics.stored_for.labels(index, ranker.name, "encodings").set(source.encodings is not None)
        if why := self._why_not.get((index, ranker.name)):
            log.warning("index %s: ranker %s tokenizes its documents: %s", index, ranker.name, why)
        if sources is None or ranker.spec.similarity is None:
            return
        if why := sources.stores.why_no_encodings(ranker.encodings_version, ranker.spec.chunking):
            log.warning(
                "index %s: ranker %s encodes its documents for each call: %s", index, ranker.name, why
            )


class Indexes:
    """The open indexes, which `reload` replaces. Calls in flight finish with those with which they began.

    `opening` creates the configured first stages without starting them, on a thread that may wait for files.
    """

    def __init__(
        self, now: OpenIndexes, opening: Callable[[], FirstStages], engine: Engine, metrics: Metrics
    ) -> None:
        self._opening, self._engine, self._metrics = opening, engine, metrics
        self._now = now
        self._reloading = asyncio.Lock()
        self._closing: set[asyncio.Future[None]] = set()
        self._stopped = False
        self._old: set[OpenIndexes] = set()
        self._now.show(metrics)

    @contextmanager
    def held(self) -> Iterator[OpenIndexes]:
        """Hold the current indexes open for the duration of one call."""
        held = self._now
        held.calls += 1
        try:
            yield held
        finally:
            held.calls -= 1
            if held is not self._now and not held.calls:
                self._close(held)

    async def add(self, rankers: Iterable[LoadedRanker]) -> None:
        """Find the stored data that further rankers can read, on another thread."""
        async with self._reloading:
            for ranker in rankers:
                await asyncio.to_thread(self._now.add, ranker)

    def remove(self, ranker: LoadedRanker) -> None:
        """Forget a ranker that is no longer loaded."""
        for each in (self._now, *self._old):
            each.remove(ranker)
        self._now.show(self._metrics)

    async def reload(self) -> None:
        """Open all indexes again while the old ones serve, then switch calls to the new ones.

        Raises: ConfigError, or another error of a first stage, if they cannot be opened; the old ones stay.
        """
        async with self._reloading:
            try:
                # Opening runs on another thread: it must not block calls in flight.
                fresh = await asyncio.to_thread(self._opening)
                # Until the switch, health and metrics report the old Lucene process.
                fresh.lucene.stop_reporting()
                try:
                    await fresh.start()
                    opened = await asyncio.to_thread(OpenIndexes, fresh, self._engine)
                except BaseException:
                    await fresh.stop()
                    raise
            except Exception as error:
                self._metrics.reloads.labels("failed").inc()
                log.error("the indexes were not reloaded: %s", error)
                raise
            if self._stopped:
                await fresh.stop()
                return
            old, self._now = self._now, opened
            old.first_stages.lucene.stop_reporting()
            fresh.lucene.start_reporting()
            opened.show(self._metrics)
            self._metrics.reloads.labels("done").inc()
            log.info("reloaded the indexes")
            if old.calls:
                self._old.add(old)
            else:
                self._close(old)

    async def stop(self) -> None:
        """Close all indexes; pending searches get Unavailable."""
        self._stopped = True
        for each in (self._now, *self._old):
            await each.first_stages.stop()
        await asyncio.gather(*self._closing)

    def _close(self, old: OpenIndexes) -> None:
        self._old.discard(old)
        closing = asyncio.ensure_future(old.first_stages.stop())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
