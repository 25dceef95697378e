"""All first stages of a server by name: opened together, searched within limits."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from farrank_calls.errors import DeadlineExceeded, DroppedAt, NotFound, Reason, ResourceExhausted
from farrank_calls.fairness.shared_room import SharedRoom
from farrank_calls.telemetry.call_record import NO_CALL, CallRecord
from farrank_calls.telemetry.config import TracingConfig
from farrank_first_stage import Candidate, FirstStage, IndexDescription
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.kinds import (
    CheckContext,
    QueryEncoder,
    StageContext,
    key_of,
    kind_named,
    no_encoders,
)
from farrank_first_stage.lucene_host import HEAP_MIB, LuceneHost, SearchState, ignore_state
from farrank_settings.errors import ConfigError

Answer = TypeVar("Answer")

# Weight of the latest search in the mean search time, from which retry hints are made.
_LATEST = 0.1


class FirstStages:
    """The indexes that a server searches. `open_first_stages` creates it from a configuration.

    `stages` are the first stages by name; `room` has the places for searches with a waiting caller.
    """

    def __init__(
        self, stages: Mapping[str, FirstStage], config: FirstStageConfig, lucene: LuceneHost | None = None
    ) -> None:
        self.stages = stages
        self.lucene = lucene or LuceneHost(config)
        self._is_open = False
        self.room = SharedRoom(config.max_searches)
        self._search_s = 0.02

    async def start(self) -> None:
        """Open all first stages.

        Raises: ConfigError if one cannot be opened or a package is missing.
        """
        await self.lucene.start()
        starting = [asyncio.ensure_future(stage.start()) for stage in self.stages.values()]
        try:
            # The first failure cancels the others.
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
        self._is_open = True

    async def stop(self) -> None:
        """Close all first stages; pending searches get Unavailable."""
        try:
            await asyncio.gather(*(stage.stop() for stage in self.stages.values()))
        finally:
            await self.lucene.stop()

    def describe(self) -> tuple[IndexDescription, ...]:
        """Describe all indexes, in the order of the configuration; none before `start`."""
        return tuple(stage.describe() for stage in self.stages.values()) if self._is_open else ()

    def find(self, name: str, field: str = "index") -> IndexDescription:
        """Find an index by its name; an empty name means the only one.

        Raises: NotFound that names the field and lists the known names.
        """
        indexes = self.describe()
        for index in indexes:
            if index.name == name or (not name and len(indexes) == 1):
                return index
        if not indexes:
            raise NotFound(f"{field}: this server has no index; configure one, or send documents to Rerank")
        known = ", ".join(index.name for index in indexes)
        if not name:
            raise NotFound(f"{field}: is empty, and this server has several: {known}")
        raise NotFound(f"{field}: no index {name[:100]!r} here; known are: {known}")

    async def search(
        self,
        index: str,
        query: str,
        k: int,
        timeout_s: float,
        *,
        texts: bool = True,
        call: CallRecord = NO_CALL,
    ) -> list[Candidate]:
        """Return at most `k` candidates, best first, with their texts if requested.

        Raises: NotFound for an unknown index, DeadlineExceeded after `timeout_s`, ResourceExhausted if too
        many searches of all callers or of this caller are pending; the errors of the methods of `FirstStage`.
        """
        stage = self.stages[self.find(index).name]
        return await self._bounded(
            lambda: stage.search(query, k, timeout_s, texts=texts, call=call), timeout_s, call
        )

    async def texts(
        self, index: str, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> list[str]:
        """Return documents' texts, in the order given. Raises: Gone; as `search`."""
        stage = self.stages[index]
        return await self._bounded(lambda: stage.texts(doc_ids, timeout_s, call=call), timeout_s, call)

    async def locate(
        self, index: str, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> list[int | None]:
        """Return documents' places in the index's stores, in the order given. Raises: as `search`."""
        stage = self.stages[index]
        return await self._bounded(lambda: stage.locate(doc_ids, timeout_s, call=call), timeout_s, call)

    @property
    def searches_in_flight(self) -> int:
        """The number of searches with a waiting caller."""
        return self.room.held

    async def _bounded(
        self, ask: Callable[[], Awaitable[Answer]], timeout_s: float, call: CallRecord
    ) -> Answer:
        """Call a first stage within the limits of time and number."""
        room, account = self.room, call.account
        problem, reason = "", Reason.FIRST_STAGE_FULL
        if room.is_full_for(1):
            problem = f"{room.held} searches wait already; first_stage.max_searches is {room.size}"
        elif not room.shares(account, 1):
            problem = (
                f"{room.of(account)} searches of this caller wait already, its share of {room.size}, which "
                "first_stage.max_searches allows all callers together"
            )
            reason = Reason.SHARE
        if problem:
            # The measured time of a search includes its wait for others.
            raise ResourceExhausted(
                problem, reason=reason, retry_after_ms=max(1, round(self._search_s * 1000))
            )
        started_s = time.monotonic()
        room.take(1, account)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await ask()
        except TimeoutError:
            message = f"the first stage did not answer within {timeout_s:.3f} s"
            raise DeadlineExceeded(message, dropped_at=DroppedAt.FIRST_STAGE) from None
        finally:
            room.take(-1, account)
        self._search_s += _LATEST * (time.monotonic() - started_s - self._search_s)
        return answer


def open_first_stages(
    config: FirstStageConfig,
    encoder: Callable[[str], Awaitable[QueryEncoder]] = no_encoders,
    *,
    heap_mib: int = HEAP_MIB,
    on_state: Callable[[SearchState], None] = ignore_state,
    tracing: TracingConfig | None = None,
) -> FirstStages:
    """Create the configured first stages; `start` opens them.

    `encoder` finds the bi-encoders for queries' vectors (see `query_encoders`). `on_state` is called with
    each new state of the search process. `tracing` is where the search process sends its part of a trace.

    Raises: ConfigError with every problem that can be found before the start.
    """
    check_indexes(config)
    lucene = LuceneHost(config, heap_mib, on_state, tracing)
    stages: dict[str, FirstStage] = {}
    for name, index in config.indexes.items():
        context = StageContext(name, config, lucene, stages.__getitem__, encoder)
        stages[name] = kind_named(index.kind).open(index, context)
    return FirstStages(stages, config, lucene)


def check_indexes(config: FirstStageConfig, rankers: Collection[str] | None = None) -> None:
    """Check, without starting anything, that the indexes are there and their search is installed.

    `rankers` are the names of the configured rankers, or None without a server.

    Raises: ConfigError with every problem.
    """
    context = CheckContext(config.indexes, rankers)
    problems = [
        problem
        for name, index in config.indexes.items()
        for problem in kind_named(index.kind).check(key_of(name), index, context)
    ]
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
