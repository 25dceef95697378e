"""Loads a version of a ranker while others serve, and checks that it fits in."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from farrank_server.config.schema import RankerConfig, ServerConfig
from farrank_server.engine.device.device_loop import DeviceThread
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.document_cache import DocumentCache
from farrank_server.engine.loaded.loading import load_beside
from farrank_server.engine.loaded.ranker import LoadedRanker, Scorer
from farrank_server.engine.loaded.warm_up import warm_up_in_turns
from farrank_server.engine.query_encoders import EngineEncoders
from farrank_server.service.indexes import Indexes
from farrank_settings.errors import ConfigError


class BesideLoader:
    """Loads rankers on a thread of its own. Belongs to the event loop.

    It is one thread for all, because a new thread would take further memory: the C library's allocator has an
    arena for each, and OpenMP a team.
    """

    def __init__(
        self,
        config: ServerConfig,
        engine: Engine,
        indexes: Indexes,
        encoders: EngineEncoders,
        cache: DocumentCache,
    ) -> None:
        self._config, self._cache = config, cache
        self._engine, self._indexes, self._encoders = engine, indexes, encoders
        self._numbers = count(2)
        self._thread = DeviceThread("farrank-loader")

    def close(self) -> None:
        """End the thread, after a ranker that it loads now."""
        self._thread.shutdown(timeout_s=0.0)

    async def load(self, name: str, source: RankerConfig) -> Scorer:
        """Load a ranker, or a further version of one, and warm it up. It gets no calls yet.

        Raises: ConfigError naming the ranker and the problem; nothing of it then stays in memory.
        """
        config = replace(self._config, rankers={**self._config.rankers, name: source})
        scorer = await asyncio.wrap_future(self._thread.submit(load_beside, name, config, self._cache))
        try:
            for member in scorer.members:
                if member.capabilities.device == "cpu":
                    await self._engine.device.in_turns(warm_up_in_turns(member))
            versions = self._engine.versions
            if name in versions.rankers:
                self._check_replaces(versions.rankers[name], scorer)
            else:
                _check_new(scorer, versions.rankers)
            number = next(self._numbers)
            for member in scorer.members:
                member.key = f"{member.name}#{number}"
                if (old := versions.loaded.get(member.name)) is not None:
                    _measured_beside(member, old)
            await self._indexes.add(scorer.members)
        except BaseException:
            await self.release(scorer)
            raise
        return scorer

    def is_asked_for(self, scorer: Scorer) -> bool:
        """Whether an index encodes its queries with a ranker."""
        return any(member.name in self._encoders.asked for member in scorer.members)

    async def release(self, scorer: Scorer) -> None:
        """Free a loaded ranker that never got calls."""
        for member in scorer.members:
            self._indexes.remove(member)
        await asyncio.to_thread(_release, scorer)

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


def _check_new(scorer: Scorer, names: Iterable[str]) -> None:
    """Check that no member of a further ranker has the name of another. Raises: ConfigError."""
    if taken := {member.name for member in scorer.members} & {*names}:
        raise ConfigError(f"rankers.{scorer.name}: its member {min(taken)} has the name of another ranker")


def _measured_beside(new: LoadedRanker, old: LoadedRanker) -> None:
    """Take the speed of the old version for the new one if that seems slower.

    It was measured beside calls, from which it took as little as it could. Too low a speed would refuse calls
    at once; too high a one is corrected by the first batches.
    """
    new.speeds.encoding.replace(max(new.tokens_per_s(), old.tokens_per_s()))


def _release(scorer: Scorer) -> None:
    for member in scorer.members:
        member.release()
