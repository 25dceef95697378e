"""The Lucene first stage: candidates by BM25 or BM25 and RM3, from a search process that is kept alive."""

import asyncio
import contextlib
import logging
import time

from farrank_server.config.schema import FirstStageConfig, IndexConfig
from farrank_server.errors import DeadlineExceeded, InvalidArgument, NotFound
from farrank_server.first_stage import Candidate, IndexDescription
from farrank_server.first_stage.search_process import SearchProcess, restarting

_log = logging.getLogger(__name__)

_HEAP_MIB = 1024
_FIRST_DELAY_S = 0.25
_LONGEST_DELAY_S = 30.0
_HEALTHY_AFTER_S = 60.0


class LuceneFirstStage:
    """Searches the configured indexes in a process of its own, and starts it again when it dies.

    With no index configured there is no process either.
    """

    def __init__(self, config: FirstStageConfig, *, heap_mib: int = _HEAP_MIB) -> None:
        self._config = config
        self._heap_mib = heap_mib
        self._worker: SearchProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._descriptions: tuple[IndexDescription, ...] = ()

    async def start(self) -> None:
        """Open the indexes.

        Raises: ConfigError if one cannot be opened or a package is missing.
        """
        if not self._config.indexes:
            return
        self._worker = worker = await SearchProcess.start(self._config, self._heap_mib)
        self._descriptions = tuple(
            IndexDescription(name, worker.documents[name], describe_ranking(index))
            for name, index in self._config.indexes.items()
        )
        self._keeping = asyncio.create_task(self._keep_alive(worker))

    async def stop(self) -> None:
        """End the search process; searches that still wait get Unavailable."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        if self._worker is not None:
            await self._worker.stop()
            self._worker = None

    def describe(self) -> tuple[IndexDescription, ...]:
        """Say which indexes can be searched; none before `start`."""
        return self._descriptions

    @property
    def worker_pid(self) -> int | None:
        """The search process's id, None while there is none."""
        return None if self._worker is None else self._worker.pid

    @property
    def searches_in_flight(self) -> int:
        """How many searches somebody waits for."""
        return 0 if self._worker is None else self._worker.searches_in_flight

    async def search(self, index: str, query: str, k: int, timeout_s: float) -> list[Candidate]:
        """Return at most `k` candidates, best first, equal scores in the order of doc_id.

        The whole query is plain text: Lucene's operators mean nothing in it. None of its terms in the
        index, or no term at all, finds nothing.

        Raises: NotFound, InvalidArgument, DeadlineExceeded, Unavailable, ResourceExhausted.
        """
        if index not in self._config.indexes:
            known = ", ".join(sorted(self._config.indexes)) or "none is configured"
            raise NotFound(f"no index is called {index!r}; known: {known}")
        if k < 1:
            raise InvalidArgument(f"k: {k} is not allowed; it must be at least 1")
        if self._worker is None:
            raise restarting()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._worker.search(index, query, k)
        except TimeoutError:
            message = f"the first stage did not answer within {timeout_s:.3f} s"
            raise DeadlineExceeded(message, reason="first_stage") from None

    async def _keep_alive(self, worker: SearchProcess) -> None:
        failures = 0
        while True:
            born = time.monotonic()
            code = await worker.ended()
            self._worker = None
            failures = 0 if time.monotonic() - born > _HEALTHY_AFTER_S else failures
            _log.error("the search process ended with %d; starting another", code)
            restarted = None
            while restarted is None:
                await asyncio.sleep(min(_FIRST_DELAY_S * 2**failures, _LONGEST_DELAY_S))
                failures += 1
                try:
                    restarted = await SearchProcess.start(self._config, self._heap_mib)
                except (ValueError, OSError) as exc:
                    _log.error("the search process does not start: %s", exc)
            self._worker = worker = restarted


def describe_ranking(index: IndexConfig) -> str:
    """Name how an index ranks and with which parameters."""
    ranking = f"bm25(k1={index.k1:g},b={index.b:g})"
    if index.rm3 is None:
        return ranking
    terms, documents = index.rm3.feedback_terms, index.rm3.feedback_documents
    weight = index.rm3.original_query_weight
    return f"{ranking}+rm3(terms={terms},documents={documents},weight={weight:g})"
