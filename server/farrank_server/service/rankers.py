"""The loaded rankers, and their replacement without dropping a call."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from farrank_server.config.schema import RankerConfig
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.ranker import LoadedRanker
from farrank_server.engine.ranker_metrics import hide_version, show_ranker
from farrank_server.metrics import Endpoint, Metrics
from farrank_server.service.indexes import Indexes
from farrank_server.service.loading_beside import BesideLoader
from farrank_settings.errors import ConfigError

log = logging.getLogger(__name__)

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
        loaded_from: Mapping[str, Source],
        loader: BesideLoader,
        engine: Engine,
        indexes: Indexes,
        metrics: Metrics,
        endpoints: Collection[Endpoint],
    ) -> None:
        self._loaded_from = dict(loaded_from)
        self._loader, self._versions, self._indexes = loader, engine.versions, indexes
        self._metrics, self._endpoints = metrics, endpoints
        self._changing = asyncio.Lock()
        self._versions.on_free.append(self._freed)
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
        async with self._changing:
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
        scorer = await self._loader.load(name, source)
        before = self._versions.rankers[name].version
        self._versions.swap(scorer)
        show_ranker(self._metrics, scorer, self._endpoints)
        log.info("ranker %s: version %s has replaced %s", name, scorer.version, before)

    def _freed(self, ranker: LoadedRanker) -> None:
        self._indexes.remove(ranker)
        hide_version(self._metrics, ranker, self._versions.members())
        log.info("ranker %s: version %s is freed after its last call", ranker.name, ranker.version)
