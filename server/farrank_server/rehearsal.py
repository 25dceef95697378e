"""A rehearsed start: loads and opens everything as `farrank serve` would, and then releases it.

A real start stops at the first ranker or index that cannot be loaded. A rehearsal tries each of them, so that
one run reports every problem.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from farrank_first_stage import IndexDescription
from farrank_first_stage.config import FirstStageConfig, IndexConfig
from farrank_first_stage.kinds import CheckContext, QueryEncoder, key_of, kind_named
from farrank_first_stage.stages import open_first_stages
from farrank_runtimes.runtime import DeviceLost, OutOfMemory
from farrank_server.access.keys import Keys
from farrank_server.config.schema import ServerConfig
from farrank_server.engine.device.device_loop import DeviceThread
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.document_cache import DocumentCache
from farrank_server.engine.loaded.loading import check_names, load_rankers
from farrank_server.engine.loaded.ranker import Scorer
from farrank_server.engine.query_encoders import EngineEncoders
from farrank_server.metrics import Metrics
from farrank_server.replica import check
from farrank_server.run import hold_pid_file
from farrank_settings.errors import ConfigError

Encoders = Callable[[str], Awaitable[QueryEncoder]]


@dataclass(frozen=True, slots=True)
class RehearsalResult:
    """The rankers and indexes that a server of a configuration would serve. The runtimes are closed."""

    rankers: tuple[Scorer, ...]
    indexes: tuple[IndexDescription, ...]


async def rehearse(config: ServerConfig, pid_file: Path | None = None) -> RehearsalResult:
    """Check the configuration, load every ranker, score a text with it, and open every index.

    Nothing listens. It needs as much memory as a server, and downloads whatever the configuration allows.
    Raises: ConfigError with every problem, one per line.
    """
    problems = _Problems()
    with problems.collected(), hold_pid_file(pid_file):
        pass
    with problems.collected():
        await asyncio.to_thread(check, config)
    async with AsyncExitStack() as opened:
        device, cache = DeviceThread(), DocumentCache(config.cache_bytes)
        # The engine waits a second at most for the thread. The process would abort if the interpreter ended
        # while the thread frees a model.
        opened.push_async_callback(asyncio.to_thread, device.shutdown)
        scorers: list[Scorer] = []
        for name in config.rankers:
            # Problems of its files are known already.
            if not any(problem.startswith(f"rankers.{name}: ") for problem in problems):
                with problems.collected(f"rankers.{name}"):
                    only = replace(config, rankers={name: config.rankers[name]})
                    scorers += await asyncio.wrap_future(device.submit(load_rankers, only, cache))
        with problems.collected():
            check_names({each.name: [member.name for member in each.members] for each in scorers})
        if config.listen.keys is not None:
            # An unknown name in a key's lists is only logged, as at a real start.
            members = {member.name for scorer in scorers for member in scorer.members}
            held = {"rankers": members | {*config.rankers}, "indexes": {*config.first_stage.indexes}}
            with problems.collected():
                Keys(config.listen.keys, Metrics(), held)
        encoders = EngineEncoders()
        if scorers:
            engine = Engine(config, scorers, device, cache, Metrics())
            opened.push_async_callback(asyncio.to_thread, engine.close)
            encoders.provide(engine)
        loaded = {each.name for each in scorers}

        async def encoder(ranker: str) -> QueryEncoder:
            if ranker.partition("/")[0] not in loaded:
                raise ConfigError(f"the ranker {ranker!r} cannot be loaded")
            return await encoders(ranker)

        indexes = await _open_indexes(config.first_stage, config.rankers, encoder, problems)
        for scorer in scorers:
            for member in scorer.members:
                device.submit(member.release)
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    return RehearsalResult(tuple(scorers), indexes)


class _Problems(list[str]):
    """The problems found so far, each on one line."""

    @contextmanager
    def collected(self, key: str = "device") -> Iterator[None]:
        """Collect the errors of the block and continue. A failed device is reported under `key`."""
        try:
            yield
        except ConfigError as error:
            self += [" ".join(problem.splitlines()) for problem in error.problems]
        except (OutOfMemory, DeviceLost) as error:
            self.append(f"{key}: " + " ".join(str(error).splitlines()))


async def _open_indexes(
    config: FirstStageConfig, rankers: Collection[str], encoder: Encoders, problems: _Problems
) -> tuple[IndexDescription, ...]:
    """Open each sound index and its stores. Returns their descriptions if there is no problem."""
    left = _sound(config.indexes, rankers)
    while True:
        stages = open_first_stages(replace(config, indexes=left), encoder)
        try:
            found = len(problems)
            with problems.collected():
                await stages.lucene.start()
            if len(problems) == found:
                for stage in stages.stages.values():
                    with problems.collected():
                        await stage.start()
                return () if problems else tuple(each.describe() for each in stages.stages.values())
        finally:
            await stages.stop()
        # The search process opens all of its indexes or none: try again without the damaged ones.
        damaged = tuple(problem.partition(".path: ")[0] for problem in problems[found:])
        sound = {name: index for name, index in left.items() if key_of(name) not in damaged}
        if len(sound) == len(left):
            return ()
        left = _sound(sound, rankers)


def _sound(indexes: Mapping[str, IndexConfig], rankers: Collection[str]) -> Mapping[str, IndexConfig]:
    """Leave out indexes with wrong files or settings, and indexes that are made of them."""
    while True:
        context = CheckContext(indexes, rankers)
        sound = {
            name: index
            for name, index in indexes.items()
            if not any(kind_named(index.kind).check(key_of(name), index, context))
        }
        if len(sound) == len(indexes):
            return sound
        indexes = sound
