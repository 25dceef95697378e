"""Runs the process that searches all Lucene indexes, and restarts it when it ends."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from farrank_calls.errors import (
    FarrankError,
    Gone,
    Internal,
    InvalidArgument,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from farrank_calls.fairness.fair_order import Account
from farrank_calls.fairness.fair_queue import FairSlots
from farrank_calls.telemetry.call_record import CallRecord
from farrank_calls.telemetry.config import TracingConfig
from farrank_first_stage.config import FirstStageConfig
from farrank_indexes.index_manifest import MANIFEST, read_manifest
from farrank_lucene.frames import Frame
from farrank_lucene.process import JavaProcess, ProcessEnded
from farrank_settings.errors import ConfigError

if TYPE_CHECKING:
    from farrank_indexes.index_stores import IndexStores

_log = logging.getLogger(__name__)
HEAP_MIB = 1024

_FIRST_DELAY_S = 0.25
_LONGEST_DELAY_S = 30.0
# A process that ran this long did not fail at its start: its successor starts with the shortest delay.
_HEALTHY_AFTER_S = 5.0


# Requests that may be in flight beyond one per thread: a thread that has answered can start on the next
# request while the event loop sends another.
SPARE_SLOTS = 1

# Seconds of searching by which a caller may exceed its share. Most searches take less.
QUANTUM_S = 0.02

# Time between two checks of whether the process answers.
TICK_S = 1.0

# The process has nothing to save. One that has not ended after this time hangs, and is killed.
STOP_TIMEOUT_S = 2.0

# All threads may be busy for this many times `hang_after_s` without finishing a search: the disk may be slow.
STUCK_AFTER_HANGS = 6.0


class SearchState(StrEnum):
    """The state of the search process: it answers, ended, or was killed for a hang or a full heap."""

    UP = "up"
    ENDED = "ended"
    HUNG = "hung"
    HEAP_FULL = "heap_full"


def ignore_state(state: SearchState) -> None:
    """Ignore the state."""


class LuceneHost:
    """One process for all Lucene indexes of a server, restarted when it dies or hangs.

    Without an index there is no process. `opened` has the content of each index. `on_state` is called with
    each new state of the process.
    """

    def __init__(
        self,
        config: FirstStageConfig,
        heap_mib: int = HEAP_MIB,
        on_state: Callable[[SearchState], None] = ignore_state,
        tracing: TracingConfig | None = None,
    ) -> None:
        self._config = config
        self._tracing = tracing
        self._on_state = on_state
        self._is_reporting = True
        self._heap_mib = heap_mib
        self._indexes: dict[str, Mapping[str, Any]] = {}
        self._process: SearchProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.opened: Mapping[str, Mapping[str, Any]] = {}
        self._stores: dict[Path, asyncio.Task[IndexStores | None]] = {}

    def add(self, name: str, path: Path, ranks: Mapping[str, Any]) -> None:
        """Add an index to open at the start; `ranks` is its way to rank, as `lucene_rankings` reads it."""
        self._indexes[name] = {"path": str(path), "ranks": ranks}

    async def start(self) -> None:
        """Open the indexes.

        Raises: ConfigError if one cannot be opened or a package is missing.
        """
        if not self._indexes:
            return
        self._process = process = await self._open()
        self.opened = process.opened
        self._report(SearchState.UP)
        self._keeping = asyncio.create_task(self._keep_running(process))

    async def stop(self) -> None:
        """End the process; pending searches get Unavailable."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        if self._process is not None:
            await self._process.stop()
            self._process = None
        # Python collects reference cycles late or never, and the files would stay mapped as long.
        self._stores.clear()

    def stop_reporting(self) -> None:
        """Stop reporting the state of this process, since another host's process is the current one."""
        self._is_reporting = False

    def start_reporting(self) -> None:
        """Report the state of the process now, and each later change."""
        self._is_reporting = True
        if self._indexes:
            self._report(SearchState.ENDED if self._process is None else SearchState.UP)

    def _report(self, state: SearchState) -> None:
        if self._is_reporting:
            self._on_state(state)

    @property
    def process_id(self) -> int | None:
        """The process's id; None while there is no process."""
        return None if self._process is None else self._process.pid

    @property
    def requests_in_flight(self) -> int:
        """The number of requests with a waiting caller."""
        return 0 if self._process is None else self._process.requests

    async def ask(self, index: str, request: Mapping[str, Any], call: CallRecord) -> Frame:
        """Send a request of the kinds in `search_child`, for a call.

        Raises: as the methods of `FirstStage`.
        """
        process = self._process
        if process is None:
            raise _restarting()
        asked = {"index": index, **request}
        if call.trace is not None:
            asked["traceparent"] = call.trace.traceparent()
        header, texts = await process.ask(asked, call.account)
        if "places" in header and not self._is_same(process.opened[index], self.opened[index]):
            # The stored data belong to the build of the index that was there at the start.
            header["places"] = [-1] * len(header["places"])
        return header, texts

    def _log_replaced_indexes(self, process: "SearchProcess") -> None:
        for name, opened in process.opened.items():
            if not self._is_same(opened, self.opened[name]):
                _log.warning(
                    "the index %s was replaced while the server ran; its stores are not read until the "
                    "indexes are reloaded",
                    name,
                )

    @staticmethod
    def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Whether both are the same build of an index with the same changes."""
        return all(one[name] == other[name] for name in ("id", "generation"))

    async def stores(self, index: str, path: Path) -> "IndexStores | None":
        """Open the data stored with an index, once for all that rank in it; None if there are none.

        Raises: ConfigError if they are damaged, or belong to another index.
        """
        if path not in self._stores:
            verify = self._config.verify_stores
            self._stores[path] = asyncio.ensure_future(asyncio.to_thread(_open_stores, path, verify))
        stores = await asyncio.shield(self._stores[path])
        opened = self.opened[index]
        if stores and (stores.index_id, stores.generation) != (opened["id"], opened["generation"]):
            raise ConfigError(f"{path}: was replaced while it was opened; open it again")
        return stores

    async def _open(self) -> "SearchProcess":
        return await SearchProcess.open(self._indexes, self._config, self._heap_mib, self._tracing)

    async def _keep_running(self, process: "SearchProcess") -> NoReturn:
        """Start another process each time one ends, with growing delays."""
        failures = 0
        while True:
            born_s = time.monotonic()
            code = await process.ended()
            self._process = None
            self._report(process.ends_as)
            if time.monotonic() - born_s > _HEALTHY_AFTER_S:
                failures = 0
            _log.error("the search process ended with %d; restarting it", code)
            while self._process is None:
                await asyncio.sleep(restart_delay_s(failures))
                failures += 1
                try:
                    self._process = process = await self._open()
                    self._log_replaced_indexes(process)
                    self._report(SearchState.UP)
                except Exception as error:  # after any error the next start may work
                    _log.error("the search process does not start: %s", error)


def restart_delay_s(failures: int) -> float:
    """The time to wait before the next start: doubled with each failure, up to 30 s."""
    # The exponent is limited first: 2.0**1024 overflows.
    return min(_FIRST_DELAY_S * 2.0 ** min(failures, 10), _LONGEST_DELAY_S)


class SearchProcess(JavaProcess):
    """One run of the search process, created by `open`. When it ends, all waiting callers get Unavailable.

    `opened` has the content of each index, `requests` is the number with a waiting caller. `ends_as` is the
    reason why the process was killed, if it was.

    A request is sent when it gets one of the slots. It keeps the slot until the process answers, even if its
    caller no longer waits: a thread continues the search of a caller that has left.

    A request is written once the pipe has taken the one before. A request that is cancelled before that is
    never written: otherwise a process that no longer reads would be sent all requests that callers make and
    give up.
    """

    opened: dict[str, dict[str, Any]]
    ends_as: SearchState = SearchState.ENDED
    _reading: asyncio.Task[None]
    _writing: asyncio.Task[None]
    _watching: asyncio.Task[None]
    _slots: FairSlots

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        super().__init__(process, name)
        self.requests = 0
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._give_back: dict[int, Callable[[], None]] = {}
        self._ids = itertools.count()
        self._unwritten: dict[int, Mapping[str, Any]] = {}
        self._has_unwritten = asyncio.Event()
        self._heard_of = False
        self._stuck_s = 0.0

    @classmethod
    async def open(
        cls,
        indexes: Mapping[str, Mapping[str, Any]],
        config: FirstStageConfig,
        heap_mib: int,
        tracing: TracingConfig | None = None,
    ) -> "SearchProcess":
        """Start a process and wait until it has opened every index.

        Raises: ConfigError if an index cannot be opened, a package is missing or the time is up.
        """
        process = await cls.start("farrank_first_stage.search_child", "search process")
        setup = {
            "indexes": indexes,
            "search_threads": config.search_threads,
            "max_query_terms": config.max_query_terms,
            "heap_mib": heap_mib,
            "tracing": None if tracing is None or tracing.endpoint is None else asdict(tracing),
        }
        try:
            async with asyncio.timeout(config.start_timeout_s):
                try:
                    await process.send(setup)
                    header, _ = await process.receive()
                except ProcessEnded:
                    raise ConfigError(f"first_stage: {await process.describe_end()}") from None
            if "failed" in header:
                raise ConfigError(*header["failed"])
        except BaseException as error:
            await process.kill()
            if isinstance(error, TimeoutError):
                waited = f"the indexes were not open after {config.start_timeout_s:g} s"
                raise ConfigError(f"first_stage.start_timeout_s: {waited}") from None
            raise
        process.opened = header["ready"]
        process._slots = FairSlots(config.search_threads + SPARE_SLOTS, QUANTUM_S)
        process._reading = asyncio.create_task(process._read_answers(config.max_query_terms))
        process._writing = asyncio.create_task(process._write_requests())
        process._watching = asyncio.create_task(process._watch(config.hang_after_s))
        return process

    async def ask(self, request: Mapping[str, Any], account: Account) -> Frame:
        """Send a request, and cancel it if the caller stops waiting. Raises: as `LuceneHost.ask`."""
        self.requests += 1
        try:
            return await self._ask(request, await self._slots.take(account))
        finally:
            self.requests -= 1

    async def _ask(self, request: Mapping[str, Any], give_back: Callable[[], None]) -> Frame:
        if self._reading.done():
            give_back()
            raise _restarting()
        request_id = next(self._ids)
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._pending[request_id], self._give_back[request_id] = answer, give_back
        self._unwritten[request_id] = request
        self._has_unwritten.set()
        try:
            return await answer
        finally:
            self._pending.pop(request_id, None)
            if self._unwritten.pop(request_id, None) is not None:
                self._end(request_id)
            elif request_id in self._give_back:
                with contextlib.suppress(ProcessEnded):
                    self.post({"cancel": request_id})

    def _end(self, request_id: int) -> None:
        """Give back the slot of a request that the process has finished."""
        if (give_back := self._give_back.pop(request_id, None)) is not None:
            give_back()

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the process; pending requests get Unavailable."""
        self._watching.cancel()
        await super().stop(timeout_s)
        await self._reading

    async def _write_requests(self) -> None:
        while await self._has_unwritten.wait():
            while self._unwritten:
                request_id = next(iter(self._unwritten))
                try:
                    await self.send({"id": request_id, **self._unwritten.pop(request_id)})
                except ProcessEnded:
                    return  # `_read_answers` ends all pending requests
            self._has_unwritten.clear()

    async def _watch(self, hang_after_s: float) -> None:
        """Kill the process if it hangs. A suspension of the machine counts only as a short silence."""
        silent_s, looked_s, is_asked = 0.0, time.monotonic(), False
        while True:
            await asyncio.sleep(TICK_S)
            elapsed_s, looked_s = time.monotonic() - looked_s, time.monotonic()
            silent_s = 0.0 if self._heard_of else silent_s + min(elapsed_s, 2 * TICK_S)
            is_asked, self._heard_of = is_asked and not self._heard_of, False
            problem = ""
            if silent_s > hang_after_s:
                problem = f"has not answered for {silent_s:.0f} s"
            elif self._stuck_s > STUCK_AFTER_HANGS * hang_after_s:
                problem = f"has finished no search for {self._stuck_s:.0f} s, and all its threads are busy"
            if problem:
                self._give_up(SearchState.HUNG, f"{problem} (first_stage.hang_after_s)")
                return
            if not is_asked:
                is_asked = True
                with contextlib.suppress(ProcessEnded):
                    self.post({"ping": True})

    def _give_up(self, state: SearchState, problem: str) -> None:
        _log.error("the search process %s; killing it", problem)
        self.ends_as = state
        self.kill_now()

    async def _read_answers(self, max_query_terms: int) -> None:
        try:
            while True:
                header, texts = await self.receive()
                self._heard_of = True
                if "stuck_s" in header:
                    self._stuck_s = header["stuck_s"]
                    continue
                if "heap_full" in header:
                    self._give_up(SearchState.HEAP_FULL, f"keeps Java's heap full: {header['heap_full']}")
                    continue
                self._end(header["id"])
                answer = self._pending.get(header["id"])
                if answer is None or answer.done():
                    continue
                if "gone" in header:
                    answer.set_exception(Gone(header["gone"]))
                elif "error" in header:
                    answer.set_exception(_error_of(header["error"], max_query_terms))
                else:
                    answer.set_result((header, texts))
        except ProcessEnded:
            pass
        finally:
            self._watching.cancel()
            self._writing.cancel()
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(_restarting())
            for request_id in [*self._give_back]:
                self._end(request_id)


def _open_stores(index: Path, verify: bool) -> "IndexStores | None":
    """Open the data stored with an index; None if there are none. Raises: as `IndexStores`."""
    # Imported here, so that the configuration can be read without torch.
    from farrank_indexes.index_stores import STORE_FOLDERS, IndexStores

    manifest = read_manifest(index)
    if manifest is None and any((index / folder).is_dir() for folder in STORE_FOLDERS):
        raise ConfigError(
            f"{index / MANIFEST}: is missing, but the index has stores; index the collection again"
        )
    if manifest is None or not manifest.stores:
        return None
    stores = IndexStores(index, manifest, verify=verify)
    if read_manifest(index) != manifest:
        raise ConfigError(f"{index}: was replaced while it was opened; open it again")
    return stores


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
