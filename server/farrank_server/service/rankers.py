"""The loaded rankers, and their changes without dropping a call."""

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from farrank_calls.errors import FailedPrecondition, NotFound
from farrank_server.config.schema import RankerConfig, ServerConfig
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.ranker import LoadedRanker, Scorer
from farrank_server.engine.ranker_metrics import (
    hide_ranker,
    hide_version,
    show_comparison,
    show_memory,
    show_ranker,
)
from farrank_server.engine.versions import Canary, Role
from farrank_server.metrics import Endpoint, Metrics
from farrank_server.service.comparison import Comparison, Trial, compare
from farrank_server.service.indexes import Indexes
from farrank_server.service.loading_beside import BesideLoader
from farrank_server.service.memory_budget import MemoryBudget
from farrank_settings.errors import ConfigError

log = logging.getLogger(__name__)

# The path, size, time and number of each file of a ranker.
Files = Collection[tuple[str, int, int, int]]
Source = tuple[RankerConfig, Files]

# The metrics of a removed ranker stay for several scrapes.
HIDE_AFTER_S = 120.0


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


class LoadedVersion(NamedTuple):
    """A version of a ranker that takes a share of the calls, and the entry from which it was loaded."""

    scorer: Scorer
    role: Role
    share: float
    entry: RankerConfig
    is_configured: bool


class Rankers:
    """The loaded rankers, and every change of them. Calls in flight finish with those with which they began.

    `loaded_from` is what `sources` noted before the rankers were loaded; their names are the configured ones.
    `show_names` is called after names have come or gone. Belongs to the event loop.
    """

    def __init__(
        self,
        config: ServerConfig,
        loaded_from: Mapping[str, Source],
        loader: BesideLoader,
        engine: Engine,
        indexes: Indexes,
        metrics: Metrics,
        endpoints: Collection[Endpoint],
        show_names: Callable[[Collection[str]], None] = lambda names: None,
    ) -> None:
        self._limits, self._default = config.limits, config.default_ranker
        self._loaded_from = dict(loaded_from)
        self._configured = frozenset(loaded_from)
        self._canaries_from: dict[str, Source] = {}
        self._loader, self._engine, self._versions, self._indexes = loader, engine, engine.versions, indexes
        self._budget = MemoryBudget(config.limits.max_ranker_bytes, engine.versions)
        self._metrics, self._endpoints, self._show_names = metrics, endpoints, show_names
        self._changing = asyncio.Lock()
        # The ranker whose new version is on trial. A trial lasts long and holds the lock, so a change that
        # ends it empties this before it waits for the lock.
        self._on_trial = ""
        self._versions.on_free.append(self._freed)
        for scorer in engine.rankers.values():
            show_ranker(metrics, scorer, endpoints)
        for name in loaded_from:
            self._show_new(name)
        show_memory(metrics, self._budget.total, config.limits.max_ranker_bytes)

    def describe(self) -> list[LoadedVersion]:
        """The versions that take calls: of each ranker the one that serves, then its canary."""
        found = []
        for name, (entry, _) in self._loaded_from.items():
            share, is_configured = 0.0, name in self._configured
            canary = self._versions.canaries.get(name)
            if canary is not None:
                share = canary.share
            serving = self._versions.rankers[name]
            found.append(LoadedVersion(serving, "serving", 1 - share, entry, is_configured))
            if canary is not None:
                beside, _ = self._canaries_from[name]
                found.append(LoadedVersion(canary.scorer, "canary", share, beside, is_configured))
        return found

    def weight_bytes(self) -> int:
        """The bytes of all loaded weights, also of versions that have only calls from before."""
        return self._budget.total()

    def version_of(self, name: str, role: Role = "serving") -> str:
        """The version of a ranker that has this role."""
        scorer = self._versions.rankers[name]
        return (scorer if role == "serving" else self._versions.canaries[name].scorer).version

    def entry(self, name: str) -> RankerConfig:
        """The entry from which a ranker's version that serves was loaded. Raises: NotFound."""
        self._check_loaded(name)
        return self._loaded_from[name][0]

    @property
    def entries(self) -> dict[str, RankerConfig]:
        """The entries from which the rankers are loaded now, by name, without those of canaries."""
        return {name: entry for name, (entry, _) in self._loaded_from.items()}

    async def reload(self, wanted: Mapping[str, RankerConfig]) -> None:
        """Return to the configuration: replace each ranker whose entry or files differ, one after the other.

        Canaries and a trial end. New rankers are loaded, and then those that the configuration lacks are
        removed. A ranker that cannot be loaded or removed stays as it is. If there is no room for one, none
        is added or removed.
        Raises: ConfigError with the problems of all of them.
        """
        problems: list[str] = []
        self._on_trial = ""
        async with self._changing:
            for name in list(self._canaries_from):
                self._end_canary(name)
            now = await asyncio.to_thread(sources, wanted)
            if next(iter(now)) != self._default:
                log.warning("another default ranker, which is the first one, takes effect after a restart")
            added: list[str] = []
            # The replaced ones come first, since they may need less than before.
            for name in sorted(now, key=lambda each: each not in self._loaded_from):
                try:
                    if name not in self._loaded_from:
                        await self._add(name, *now[name], wanted=now)
                        added.append(name)
                    elif self._loaded_from[name] != now[name]:
                        await self._replace(name, now[name], wanted=now)
                except FailedPrecondition as error:
                    self._give_up(added, now)
                    raise ConfigError(*problems, str(error)) from None
                except Exception as error:
                    if name not in self._loaded_from:
                        log.error("ranker %s was not loaded: %s", name, error)
                    problems += _problems(name, error)
            self._configured = frozenset(now)
            for name in [each for each in self._loaded_from if each not in now]:
                try:
                    self._check_unneeded(name)
                except FailedPrecondition as error:
                    problems.append(f"rankers.{name}: was not removed: {error}")
                else:
                    self._remove(name, "the configuration has it no longer")
        if problems:
            raise ConfigError(*problems)

    async def load(self, name: str, entry: RankerConfig) -> Scorer:
        """Load a ranker, warm it up, and serve it under a new name.

        Raises: ConfigError; FailedPrecondition if the name is taken or there is no room.
        """
        async with self._changing:
            if name in self._versions.rankers:
                raise FailedPrecondition(f"name: a ranker {name} is loaded; swap it, or unload it first")
            return await self._add(name, entry)

    async def unload(self, name: str) -> None:
        """Serve a ranker no longer. Calls that have come finish, and its memory is freed after the last.

        Raises: NotFound; FailedPrecondition if calls without a name or an index need it.
        """
        async with self._changing:
            self._check_loaded(name)
            self._check_unneeded(name)
            self._remove(name, "it was unloaded")

    async def swap(self, name: str, entry: RankerConfig, trial: Trial | None = None) -> Comparison | None:
        """Load a version, hold it to a trial, and give it all further calls.

        Raises: NotFound; ConfigError; FailedPrecondition if it is refused or there is a canary. The old one
        then serves.
        """
        async with self._changing:
            self._check_loaded(name)
            self._check_no_canary(name)
            source = await asyncio.to_thread(sources, {name: entry})
            return await self._replace(name, source[name], trial)

    async def begin_canary(
        self, name: str, entry: RankerConfig, share: float, trial: Trial | None = None
    ) -> Comparison | None:
        """Load a version, hold it to a trial, and give it a share of the calls.

        Raises: NotFound; ConfigError; FailedPrecondition if it is refused or there is a canary.
        """
        async with self._changing:
            self._check_loaded(name)
            self._check_no_canary(name)
            scorer, source = await self._loaded(name, entry)
            return await self._begin_canary(scorer, source, share, trial)

    async def change_share(self, name: str, share: float) -> None:
        """Give a canary another share of the calls. Raises: NotFound if there is none."""
        async with self._changing:
            self._check_canary(name)
            self._change_share(name, share)

    async def promote(self, name: str) -> None:
        """Give all further calls to the canary. Raises: NotFound if there is none."""
        async with self._changing:
            self._check_canary(name)
            self._promote(name)

    async def end_canary(self, name: str) -> None:
        """Give all further calls to the version that serves, and stop a trial that another one has.

        Raises: NotFound if there is no canary.
        """
        is_on_trial = self._on_trial == name
        if is_on_trial:
            self._on_trial = ""
        async with self._changing:
            if is_on_trial:  # the version has gone with its trial
                return
            self._check_canary(name)
            self._end_canary(name)

    async def _add(
        self,
        name: str,
        entry: RankerConfig,
        files: Files | None = None,
        wanted: Collection[str] | None = None,
    ) -> Scorer:
        scorer, source = await self._loaded(name, entry, files, wanted=wanted)
        self._versions.add(scorer)
        self._loaded_from[name] = source
        self._versions.gone.pop(name, None)
        show_ranker(self._metrics, scorer, self._endpoints)
        self._show_new(name)
        self._show_names(self._loaded_from)
        log.info("ranker %s: version %s is loaded", name, scorer.version)
        return scorer

    async def _replace(
        self, name: str, source: Source, trial: Trial | None = None, wanted: Collection[str] | None = None
    ) -> Comparison | None:
        """Load a version, then give it all further calls. Counts the outcome.

        Raises: as `swap`.
        """
        try:
            replaced = self._versions.rankers[name]
            scorer, source = await self._loaded(name, *source, replaced, wanted)
            found = await self._begin_canary(scorer, source, 0.0, trial)
        except Exception as error:
            self._metrics.ranker_swaps.labels(name, "failed").inc()
            log.error("ranker %s was not replaced: %s", name, error)
            raise
        self._promote(name)
        return found

    async def _loaded(
        self,
        name: str,
        entry: RankerConfig,
        files: Files | None = None,
        replaced: Scorer | None = None,
        wanted: Collection[str] | None = None,
    ) -> tuple[Scorer, Source]:
        """Load a version, and make room for it. Raises: ConfigError; FailedPrecondition.

        At a reload, `wanted` names the configuration's rankers: only these need room, and none leaves yet.
        """
        if files is None:
            _, files = (await asyncio.to_thread(sources, {name: entry}))[name]
        scorer = await self._loader.load(name, entry)
        try:
            if wanted is None:
                by_name = self._loaded_from.keys() - self._configured
                leaving = self._budget.leaving_for(scorer, replaced, by_name)
            else:
                leaving = []
                ending = {name, *self._ending(wanted)}
                beside = [each for each in self._loaded_from if each not in ending]
                self._budget.check([*self._serving(beside), scorer])
        except FailedPrecondition:
            await self._loader.release(scorer)
            raise
        for each in leaving:
            self._remove(each, f"it left to make room for {name} (limits.max_ranker_bytes)")
        return scorer, (entry, files)

    async def _begin_canary(
        self, scorer: Scorer, source: Source, share: float, trial: Trial | None
    ) -> Comparison | None:
        name = scorer.name
        self._versions.begin_canary(Canary(scorer, 0.0))
        self._canaries_from[name] = source
        show_ranker(self._metrics, scorer, self._endpoints)
        found = None
        try:
            if trial is not None:
                self._on_trial, old = name, self._versions.rankers[name]
                found = await compare(
                    self._engine, self._limits, old, scorer, trial.recorded, lambda: self._on_trial != name
                )
                show_comparison(self._metrics, name, found.tau, found.latency_ratio)
                trial.check(found)
        except BaseException:
            self._end_canary(name)
            raise
        finally:
            self._on_trial = ""
        self._change_share(name, share)
        return found

    def _change_share(self, name: str, share: float) -> None:
        self._versions.change_share(name, share)
        self._metrics.canary_share.labels(name).set(share)
        version = self._versions.canaries[name].scorer.version
        log.info("ranker %s: version %s gets %.4g of the calls", name, version, share)

    def _promote(self, name: str) -> None:
        before = self._versions.rankers[name].version
        self._versions.promote(name)
        self._loaded_from[name] = self._canaries_from.pop(name)
        self._metrics.canary_share.labels(name).set(0)
        self._metrics.ranker_swaps.labels(name, "done").inc()
        log.info("ranker %s: version %s has replaced %s", name, self._versions.rankers[name].version, before)

    def _end_canary(self, name: str) -> None:
        del self._canaries_from[name]
        self._metrics.canary_share.labels(name).set(0)
        log.info("ranker %s: canary %s ends", name, self._versions.canaries[name].scorer.version)
        self._versions.end_canary(name)

    def _remove(self, name: str, why: str) -> None:
        if name in self._canaries_from:
            self._end_canary(name)
        del self._loaded_from[name]
        self._versions.remove(name, why)
        self._show_names(self._loaded_from)
        log.info("ranker %s is served no longer: %s", name, why)

    def _give_up(self, added: Collection[str], wanted: Collection[str]) -> None:
        """Remove what a reload has added, since there is no room for all of it."""
        for each in added:
            self._remove(each, "the new configuration has no room for it (limits.max_ranker_bytes)")
        try:
            self._budget.check(self._serving(self._loaded_from))
        except FailedPrecondition:  # a ranker that was replaced has grown
            for each in self._ending(wanted):
                self._remove(each, "the configuration has it no longer")

    def _serving(self, names: Iterable[str]) -> list[Scorer]:
        return [self._versions.rankers[each] for each in names]

    def _ending(self, wanted: Collection[str]) -> list[str]:
        """The rankers that a reload removes."""
        return [each for each in self._loaded_from if each not in wanted and not self._need_of(each)]

    def _check_loaded(self, name: str) -> None:
        if name not in self._loaded_from:
            why = f", {gone}" if (gone := self._versions.gone.get(name)) else ""
            loaded = ", ".join(self._loaded_from)
            raise NotFound(f"name: no ranker {name[:100]!r} is loaded{why}; loaded are: {loaded}")

    def _check_unneeded(self, name: str) -> None:
        if need := self._need_of(name):
            raise FailedPrecondition(f"name: {need}")

    def _need_of(self, name: str) -> str:
        """Why a ranker cannot be removed. Empty: it can."""
        if name == self._default:
            return f"{name} is the default ranker; calls that name none get it"
        if self._loader.is_asked_for(self._versions.rankers[name]):
            return f"an index encodes its queries with {name}"
        return ""

    def _check_no_canary(self, name: str) -> None:
        if name in self._canaries_from:
            version = self._versions.canaries[name].scorer.version
            raise FailedPrecondition(
                f"name: ranker {name} has the canary {version}; give it all calls, or end it first"
            )

    def _check_canary(self, name: str) -> None:
        self._check_loaded(name)
        if name not in self._canaries_from:
            raise NotFound(f"name: ranker {name} has no canary; name a source to begin one")

    def _show_new(self, name: str) -> None:
        for outcome in ("done", "failed"):
            self._metrics.ranker_swaps.labels(name, outcome)
        self._metrics.canary_share.labels(name).set(0)
        show_comparison(self._metrics, name, math.nan, math.nan)

    def _freed(self, ranker: LoadedRanker) -> None:
        self._indexes.remove(ranker)
        hide_version(self._metrics, ranker, self._versions.members())
        log.info("ranker %s: version %s is freed after its last call", ranker.name, ranker.version)
        if ranker.name not in self._versions.rankers:
            # The counts of the last calls are read before.
            asyncio.get_running_loop().call_later(HIDE_AFTER_S, self._hide, ranker.name)

    def _hide(self, name: str) -> None:
        if name not in self._versions.rankers:
            hide_ranker(self._metrics, name)


def _problems(name: str, error: Exception) -> Sequence[str]:
    return error.problems if isinstance(error, ConfigError) else [f"rankers.{name}: {error}"]
