"""The Lucene first stage: candidates by BM25, or BM25 and RM3, from a search process that is kept running."""

import asyncio
import contextlib
import dataclasses
import itertools
import time
from typing import Any

from farrank_server.config.schema import FirstStageConfig, IndexConfig
from farrank_server.errors import (
    ConfigError,
    DeadlineExceeded,
    DroppedAt,
    Internal,
    InvalidArgument,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from farrank_server.first_stage import Candidate, IndexDescription, find_index
from farrank_server.java_process.frames import cut_texts
from farrank_server.java_process.jvm import child_environment
from farrank_server.java_process.process import JavaProcess, ProcessEnded, keep_running

_HEAP_MIB = 1024
_NAME = "search process"

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
        self._process = process = await self._start_process()
        self._descriptions = tuple(
            IndexDescription(
                name,
                opened["documents"],
                describe_ranking(self._config.indexes[name]),
                opened["mean_characters"],
            )
            for name, opened in process.opened.items()
        )
        self._keeping = asyncio.create_task(
            keep_running(process, self._start_process, self._replace_process, _NAME)
        )

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
        """Say which indexes can be searched; none before `start`."""
        return self._descriptions

    @property
    def process_id(self) -> int | None:
        """The search process's id, None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def searches_in_flight(self) -> int:
        """How many searches have a caller who waits."""
        return 0 if self._process is None else self._process.searches_in_flight

    async def search(self, index: str, query: str, k: int, timeout_s: float) -> list[Candidate]:
        """Return at most `k` candidates, best first, equal scores in the order of doc_id.

        The whole query is plain text: Lucene's operators mean nothing in it. None of its terms in the
        index, or no term at all, finds nothing.

        Raises: NotFound, InvalidArgument, DeadlineExceeded, Unavailable, ResourceExhausted.
        """
        found = find_index(self._descriptions, index)
        if k < 1:
            raise InvalidArgument(f"k: is {k}; it must be at least 1")
        if self._process is None:
            raise _restarting()
        self._check_room(self._process.searches_in_flight)
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                candidates = await self._process.search(found.name, query, k)
        except TimeoutError:
            message = f"the first stage did not answer within {timeout_s:.3f} s"
            raise DeadlineExceeded(message, dropped_at=DroppedAt.FIRST_STAGE) from None
        self._search_s += _LATEST * (time.monotonic() - started_s - self._search_s)
        return candidates

    def _check_room(self, waiting: int) -> None:
        if waiting < self._config.max_searches:
            return
        # The measured time of a search includes its wait behind the others.
        raise ResourceExhausted(
            f"{waiting} searches wait already; first_stage.max_searches is {self._config.max_searches}",
            reason=Reason.FIRST_STAGE_FULL,
            retry_after_ms=max(1, round(self._search_s * 1000)),
        )

    async def _start_process(self) -> "SearchProcess":
        return await SearchProcess.start(self._config, self._heap_mib)

    def _replace_process(self, process: "SearchProcess | None") -> None:
        self._process = process


class SearchProcess:
    """One life of the search process; made by `start`. When it ends, all that wait for it get Unavailable."""

    def __init__(self, process: JavaProcess, opened: dict[str, dict[str, int]], max_query_terms: int) -> None:
        self.opened = opened
        self._process = process
        self._max_query_terms = max_query_terms
        self._pending: dict[int, asyncio.Future[list[Candidate]]] = {}
        self._ids = itertools.count()
        self._reading = asyncio.create_task(self._read_answers())

    @classmethod
    async def start(cls, config: FirstStageConfig, heap_mib: int) -> "SearchProcess":
        """Start a process and wait until it has opened every index.

        Raises: ConfigError if one cannot be opened, something is not installed or the time is up.
        """
        process = await JavaProcess.start("farrank_server.first_stage.search_child", _NAME)
        try:
            async with asyncio.timeout(config.start_timeout_s):
                opened = await _open_indexes(process, config, heap_mib)
                return cls(process, opened, config.max_query_terms)
        except BaseException as error:
            await process.kill()
            if isinstance(error, TimeoutError):
                waited = f"the indexes were not open after {config.start_timeout_s:g} s"
                raise ConfigError(f"first_stage.start_timeout_s: {waited}") from None
            raise

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def searches_in_flight(self) -> int:
        """How many searches have a caller who waits."""
        return len(self._pending)

    async def search(self, index: str, query: str, k: int) -> list[Candidate]:
        """Search; a caller that stops waiting takes its search back.

        Raises: Unavailable if the process ends meanwhile; InvalidArgument for too many terms;
        ResourceExhausted if the texts outgrow its heap.
        """
        if self._reading.done():
            raise _restarting()
        search_id = next(self._ids)
        answer: asyncio.Future[list[Candidate]] = asyncio.get_running_loop().create_future()
        self._pending[search_id] = answer
        try:
            await self._process.send({"id": search_id, "index": index, "query": query, "k": k})
            return await answer
        except ProcessEnded:
            if not answer.cancel():
                answer.exception()  # read, or asyncio warns that it never was
            raise _restarting() from None
        finally:
            if self._pending.pop(search_id, None) is not None and not self._reading.done():
                with contextlib.suppress(ProcessEnded):
                    self._process.post({"cancel": search_id})

    async def ended(self) -> int:
        """Wait until the process has ended; return its exit code."""
        return await self._process.ended()

    async def stop(self) -> None:
        """End the process; searches that still wait get Unavailable."""
        await self._process.stop()
        await self._reading

    async def _read_answers(self) -> None:
        try:
            while True:
                header, body = await self._process.receive()
                answer = self._pending.pop(header["id"], None)
                if answer is not None and not answer.done():
                    _settle(answer, header, body, self._max_query_terms)
        except ProcessEnded:
            pass
        finally:
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(_restarting())
            self._pending.clear()


async def _open_indexes(
    process: JavaProcess, config: FirstStageConfig, heap_mib: int
) -> dict[str, dict[str, int]]:
    indexes = {
        name: dataclasses.asdict(index) | {"path": str(index.path)} for name, index in config.indexes.items()
    }
    try:
        await process.send(
            {
                "heap_mib": heap_mib,
                "threads": config.search_threads,
                "max_query_terms": config.max_query_terms,
                "indexes": indexes,
            }
        )
        header, _ = await process.receive()
    except ProcessEnded:
        raise ConfigError(f"first_stage: {await process.last_words()}") from None
    if "failed" in header:
        raise ConfigError(*header["failed"])
    opened: dict[str, dict[str, int]] = header["ready"]
    return opened


def _settle(
    answer: asyncio.Future[list[Candidate]], header: dict[str, Any], body: bytes, max_query_terms: int
) -> None:
    match header.get("error"):
        case None:
            texts = cut_texts(body, header["sizes"])
            found = zip(header["doc_ids"], texts, header["scores"], strict=True)
            answer.set_result([Candidate(*one) for one in found])
        case "terms":
            problem = f"query: has more than {max_query_terms} distinct terms, too many to search for; "
            answer.set_exception(InvalidArgument(problem + "shorten it, or send the documents to Rerank"))
        case "memory":
            problem = "the candidates' texts do not fit the search process's memory; ask for fewer"
            answer.set_exception(ResourceExhausted(problem, reason=Reason.FIRST_STAGE_MEMORY))
        case _:
            answer.set_exception(Internal("the first stage failed on this query"))


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
