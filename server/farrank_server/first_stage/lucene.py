"""The Lucene first stage: candidates by BM25, or BM25 and RM3, from a search process that is kept running."""

import asyncio
import contextlib
import itertools
import logging
import time
from dataclasses import asdict
from typing import NoReturn

from farrank_server.config.schema import FirstStageConfig, IndexConfig
from farrank_server.errors import (
    ConfigError,
    DeadlineExceeded,
    DroppedAt,
    FarrankError,
    Internal,
    InvalidArgument,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from farrank_server.first_stage import Candidate, IndexDescription, find_index
from farrank_server.java_process.jvm import child_environment
from farrank_server.java_process.process import JavaProcess, ProcessEnded

_log = logging.getLogger(__name__)
_HEAP_MIB = 1024

_FIRST_DELAY_S = 0.25
_LONGEST_DELAY_S = 30.0
_HEALTHY_AFTER_S = 60.0

# Weight of the latest search in the mean time of one, from which retry hints are made.
_LATEST = 0.1


class LuceneFirstStage:
    """Searches the configured indexes in a process of its own, and starts it again when it dies.

    With no index configured there is no process either.
    """

    def __init__(self, config: FirstStageConfig, *, heap_mib: int = _HEAP_MIB) -> None:
        self._config = config
        self._heap_mib = heap_mib
        self._process: SearchProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._descriptions: tuple[IndexDescription, ...] = ()
        self._search_s = 0.02

    async def start(self) -> None:
        """Open the indexes.

        Raises: ConfigError if one cannot be opened or a package is missing.
        """
        if not self._config.indexes:
            return
        check_indexes(self._config)
        self._process = process = await SearchProcess.open(self._config, self._heap_mib)
        self._descriptions = tuple(
            IndexDescription(name, ranking=describe_ranking(self._config.indexes[name]), **opened)
            for name, opened in process.opened.items()
        )
        self._keeping = asyncio.create_task(self._keep_running(process))

    async def stop(self) -> None:
        """End the search process; searches that still wait get Unavailable."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        if self._process is not None:
            await self._process.stop()
            self._process = None

    def describe(self) -> tuple[IndexDescription, ...]:
        """Say which indexes can be searched, in the order of the configuration; none before `start`."""
        return self._descriptions

    @property
    def process_id(self) -> int | None:
        """The search process's id, None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def searches_in_flight(self) -> int:
        """How many searches have a caller who waits."""
        return 0 if self._process is None else len(self._process.pending)

    async def search(self, index: str, query: str, k: int, timeout_s: float) -> list[Candidate]:
        """Return at most `k` candidates, best first, equal scores in the order of doc_id.

        The whole query is plain text: Lucene's operators mean nothing in it. None of its terms in the
        index, or no term at all, finds nothing. Raises: as `FirstStage.search`.
        """
        found = find_index(self._descriptions, index)
        if self._process is None:
            raise _restarting()
        if self.searches_in_flight >= self._config.max_searches:
            raise ResourceExhausted(
                f"{self.searches_in_flight} searches wait already; "
                f"first_stage.max_searches is {self._config.max_searches}",
                reason=Reason.FIRST_STAGE_FULL,
                # The measured time of a search includes its wait behind the others.
                retry_after_ms=max(1, round(self._search_s * 1000)),
            )
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                candidates = await self._process.search(found.name, query, k)
        except TimeoutError:
            message = f"the first stage did not answer within {timeout_s:.3f} s"
            raise DeadlineExceeded(message, dropped_at=DroppedAt.FIRST_STAGE) from None
        self._search_s += _LATEST * (time.monotonic() - started_s - self._search_s)
        return candidates

    async def _keep_running(self, process: "SearchProcess") -> NoReturn:
        """Start another process whenever one ends, with growing delays."""
        failures = 0
        while True:
            born_s = time.monotonic()
            code = await process.ended()
            self._process = None
            if time.monotonic() - born_s > _HEALTHY_AFTER_S:
                failures = 0
            _log.error("the search process ended with %d; starting another", code)
            while self._process is None:
                await asyncio.sleep(restart_delay_s(failures))
                failures += 1
                try:
                    self._process = process = await SearchProcess.open(self._config, self._heap_mib)
                except Exception as error:  # whatever it is, the next start may work
                    _log.error("the search process does not start: %s", error)


def restart_delay_s(failures: int) -> float:
    """How long to wait before the next start: doubled with each failure, up to half a minute."""
    # Bounded before the power is taken: 2.0**1024 is no float.
    return min(_FIRST_DELAY_S * 2.0 ** min(failures, 10), _LONGEST_DELAY_S)


class SearchProcess(JavaProcess):
    """One life of the search process; made by `open`. When it ends, all that wait for it get Unavailable.

    `opened` is what each index holds, `pending` the searches that have a caller who waits.
    """

    opened: dict[str, dict[str, int]]
    _reading: asyncio.Task[None]

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        super().__init__(process, name)
        self.pending: dict[int, asyncio.Future[list[Candidate]]] = {}
        self._ids = itertools.count()

    @classmethod
    async def open(cls, config: FirstStageConfig, heap_mib: int) -> "SearchProcess":
        """Start a process and wait until it has opened every index.

        Raises: ConfigError if one cannot be opened, something is not installed or the time is up.
        """
        process = await cls.start("farrank_server.first_stage.search_child", "search process")
        indexes = {name: asdict(index) | {"path": str(index.path)} for name, index in config.indexes.items()}
        try:
            async with asyncio.timeout(config.start_timeout_s):
                try:
                    await process.send(asdict(config) | {"indexes": indexes, "heap_mib": heap_mib})
                    header, _ = await process.receive()
                except ProcessEnded:
                    raise ConfigError(f"first_stage: {await process.last_words()}") from None
            if "failed" in header:
                raise ConfigError(*header["failed"])
        except BaseException as error:
            await process.kill()
            if isinstance(error, TimeoutError):
                waited = f"the indexes were not open after {config.start_timeout_s:g} s"
                raise ConfigError(f"first_stage.start_timeout_s: {waited}") from None
            raise
        process.opened = header["ready"]
        process._reading = asyncio.create_task(process._read_answers(config.max_query_terms))
        return process

    async def search(self, index: str, query: str, k: int) -> list[Candidate]:
        """Search; a caller that stops waiting takes its search back. Raises: as `FirstStage.search`."""
        if self._reading.done():
            raise _restarting()
        search_id = next(self._ids)
        answer: asyncio.Future[list[Candidate]] = asyncio.get_running_loop().create_future()
        self.pending[search_id] = answer
        try:
            await self.send({"id": search_id, "index": index, "query": query, "k": k})
            return await answer
        except ProcessEnded:
            if not answer.cancel():
                answer.exception()  # read, or asyncio warns that it never was
            raise _restarting() from None
        finally:
            if self.pending.pop(search_id, None) is not None and not self._reading.done():
                with contextlib.suppress(ProcessEnded):
                    self.post({"cancel": search_id})

    async def stop(self) -> None:
        """End the process; searches that still wait get Unavailable."""
        await super().stop()
        await self._reading

    async def _read_answers(self, max_query_terms: int) -> None:
        try:
            while True:
                header, texts = await self.receive()
                answer = self.pending.pop(header["id"], None)
                if answer is None or answer.done():
                    continue
                if "error" in header:
                    answer.set_exception(_error_of(header["error"], max_query_terms))
                else:
                    found = zip(header["doc_ids"], texts, header["scores"], strict=True)
                    answer.set_result([Candidate(*one) for one in found])
        except ProcessEnded:
            pass
        finally:
            for answer in self.pending.values():
                if not answer.done():
                    answer.set_exception(_restarting())
            self.pending.clear()


def _error_of(kind: str, max_query_terms: int) -> FarrankError:
    match kind:
        case "terms":
            problem = f"query: has more than {max_query_terms} distinct terms, too many to search for; "
            return InvalidArgument(problem + "shorten it, or send the documents to Rerank")
        case "memory":
            problem = "the candidates' texts do not fit the search process's memory; ask for fewer"
            return ResourceExhausted(problem, reason=Reason.FIRST_STAGE_MEMORY)
        case _:
            return Internal("the first stage failed on this query")


def _restarting() -> Unavailable:
    return Unavailable("the first stage restarts", reason=Reason.FIRST_STAGE_DOWN, retry_after_ms=5000)


def check_indexes(config: FirstStageConfig) -> None:
    """Check, without starting anything, that the indexes are there and what searches them is installed.

    Raises: ConfigError with every problem.
    """
    if not config.indexes:
        return
    problems: list[str] = []
    try:
        child_environment()
    except ConfigError as error:
        problems += error.problems
    for name, index in config.indexes.items():
        if not any(index.path.glob("segments_*")):
            problems.append(f"first_stage.indexes.{name}.path: {index.path}: there is no Lucene index here")
    if problems:
        raise ConfigError(*problems)


def describe_ranking(index: IndexConfig) -> str:
    """Name how an index ranks and with which parameters."""
    ranking = f"bm25(k1={index.k1:g},b={index.b:g})"
    if index.rm3 is None:
        return ranking
    terms, documents = index.rm3.feedback_terms, index.rm3.feedback_documents
    weight = index.rm3.original_query_weight
    return f"{ranking}+rm3(terms={terms},documents={documents},weight={weight:g})"
