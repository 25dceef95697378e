"""The loaded rankers, and their replacement without dropping a call."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

from farrank_server.config.schema import RankerConfig, ServerConfig
from farrank_server.engine.device.device_loop import DeviceThread
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.document_cache import DocumentCache
from farrank_server.engine.loaded.loading import load_ranker
from farrank_server.engine.loaded.ranker import LoadedRanker, Scorer
from farrank_server.engine.query_encoders import EngineEncoders
from farrank_server.engine.ranker_metrics import hide_version, show_ranker
from farrank_server.metrics import Endpoint, Metrics
from farrank_server.service.indexes import Indexes
from farrank_settings.errors import ConfigError

log = logging.getLogger(__name__)

# The niceness of the thread that loads a ranker while others serve.
NICENESS = 10

# A ranker's configuration, and the path, size, time and number of each of its files.
Source = tuple[RankerConfig, Collection[tuple[str, int, int, int]]]


def sources(rankers: Mapping[str, RankerConfig]) -> dict[str, Source]:
    """Note from which files each ranker is loaded, without reading them. May wait for files.

    A link to a folder counts as that folder, so that moving the link is a change. The name of a model on the
    hub has no files here.
    """
    return {name: (each, _files(Path(each.source))) for name, each in rankers.items()}


def _files(folder: Path) -> list[tuple[str, int, int, int]]:
    found = []
    for path in sorted(folder.resolve().rglob("*")) if folder.is_dir() else ():
        try:
            state = path.stat()
        except FileNotFoundError:  # it was replaced meanwhile, which the next look shows
            continue
        if not path.is_dir():
            found.append((str(path), state.st_size, state.st_mtime_ns, state.st_ino))
    return found


class Rankers:
    """The loaded rankers, which `reload` replaces. Calls in flight finish with those with which they began.

    `loaded_from` is what `sources` noted before the rankers were loaded. Belongs to the event loop.
    """

    def __init__(
        self,
        config: ServerConfig,
        loaded_from: Mapping[str, Source],
        engine: Engine,
        indexes: Indexes,
        encoders: EngineEncoders,
        cache: DocumentCache,
        metrics: Metrics,
        endpoints: Collection[Endpoint],
    ) -> None:
        self._config, self._cache = config, cache
        self._loaded_from = dict(loaded_from)
        self._engine, self._indexes, self._encoders = engine, indexes, encoders
        self._metrics, self._endpoints = metrics, endpoints
        self._numbers = count(2)
        self._reloading = asyncio.Lock()
        engine.on_free.append(self._freed)
        for name in loaded_from:
            for outcome in ("done", "failed"):
                metrics.ranker_swaps.labels(name, outcome)
        for scorer in engine.rankers.values():
            show_ranker(metrics, scorer, endpoints)

    async def reload(self, wanted: Mapping[str, RankerConfig]) -> None:
        """Replace each ranker whose configuration or files have changed, one after the other.

        A ranker that cannot be loaded stays as it is. Raises: ConfigError with the problems of all of them.
        """
        problems: list[str] = []
        async with self._reloading:
            now = await asyncio.to_thread(sources, wanted)
            if list(now) != list(self._loaded_from):
                log.warning("rankers that were added, removed or moved take effect after a restart")
            for name, source in now.items():
                if self._loaded_from.get(name, source) == source:
                    continue
                try:
                    await self._replace(name, source[0])
                except Exception as error:
                    self._metrics.ranker_swaps.labels(name, "failed").inc()
                    log.error("ranker %s was not replaced: %s", name, error)
                    problems += (
                        error.problems if isinstance(error, ConfigError) else [f"rankers.{name}: {error}"]
                    )
                else:
                    self._loaded_from[name] = source
                    self._metrics.ranker_swaps.labels(name, "done").inc()
        if problems:
            raise ConfigError(*problems)

    async def _replace(self, name: str, source: RankerConfig) -> None:
        """Load a ranker beside the one that serves, then give it all further calls. Raises: ConfigError."""
        config = replace(self._config, rankers={**self._config.rankers, name: source})
        # The device's thread goes on with its batches. OpenMP's team of this thread ends with it.
        loader = DeviceThread()
        try:
            loader.submit(_give_way)
            scorer = await asyncio.wrap_future(loader.submit(load_ranker, name, config, self._cache))
        finally:
            loader.shutdown(timeout_s=0.0)
        try:
            self._check_replaces(self._engine.rankers[name], scorer)
            number = next(self._numbers)
            for member in scorer.members:
                member.key = f"{member.name}#{number}"
                _measured_beside(member, self._engine.loaded[member.name])
            await self._indexes.add(scorer.members)
        except BaseException:
            await asyncio.to_thread(_release, scorer)
            raise
        before = self._engine.rankers[name].version
        self._engine.swap(scorer)
        show_ranker(self._metrics, scorer, self._endpoints)
        log.info("ranker %s: version %s has replaced %s", name, scorer.version, before)

    def _check_replaces(self, old: Scorer, new: Scorer) -> None:
        """Check that nothing refers to a part of a ranker that the new one lacks. Raises: ConfigError."""
        names = [member.name for member in old.members]
        if [member.name for member in new.members] != names:
            raise ConfigError(
                f"rankers.{old.name}: has other members than the ensemble that serves "
                f"({', '.join(names)}); restart the server to serve it"
            )
        for member in new.members:
            made_by = self._encoders.asked.get(member.name, member.encodings_version)
            if member.encodings_version != made_by:
                raise ConfigError(
                    f"rankers.{old.name}: an index holds vectors of version {made_by} of {member.name}, and "
                    f"the new version is {member.encodings_version}; encode the index again and restart the "
                    "server, or give the new version another name"
                )

    def _freed(self, ranker: LoadedRanker) -> None:
        self._indexes.remove(ranker)
        hide_version(self._metrics, ranker, self._engine.loaded[ranker.name])
        log.info("ranker %s: version %s is freed after its last call", ranker.name, ranker.version)


def _give_way() -> None:
    """Let the threads that serve calls go first. The OpenMP threads that this one starts inherit it."""
    if sys.platform == "linux":  # elsewhere a priority is that of the whole process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _measured_beside(new: LoadedRanker, old: LoadedRanker) -> None:
    """Take the speed of the old version for the new one if that seems slower.

    It was measured beside calls, from which it took as little as it could. Too low a speed would refuse calls
    at once; too high a one is corrected by the first batches.
    """
    new.speeds.encoding.replace(max(new.tokens_per_s(), old.tokens_per_s()))


def _release(scorer: Scorer) -> None:
    for member in scorer.members:
        member.release()
