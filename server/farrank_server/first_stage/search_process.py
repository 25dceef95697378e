"""One life of the search process, seen from the server: start, searches by id, end."""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import re
import sys
from collections import deque
from typing import Any

from farrank_server.config.schema import FirstStageConfig
from farrank_server.errors import ConfigError, Internal, Reason, ResourceExhausted, Unavailable
from farrank_server.first_stage import Candidate
from farrank_server.java_process.frames import cut_texts, pack, receive_frame
from farrank_server.java_process.jvm import child_environment

_log = logging.getLogger(__name__)
_ALARMING = re.compile(r"\b(ERROR|FATAL|SEVERE|Traceback|Error:)")
_STOP_TIMEOUT_S = 5.0
_PIPE_BYTES = 4 * 2**20  # of answers read ahead before the pipe is paused; 100 long documents fit
_LAST_LINES = 20


class SearchProcess:
    """A running search process; made by `start`. When it ends, all that wait for it get Unavailable."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._pending: dict[int, asyncio.Future[list[Candidate]]] = {}
        self._ids = itertools.count()
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._logging = asyncio.create_task(self._pass_on_stderr())
        self._reading: asyncio.Task[None] | None = None
        self.documents: dict[str, int] = {}

    @classmethod
    async def start(cls, config: FirstStageConfig, heap_mib: int) -> "SearchProcess":
        """Start a process and wait until it has opened every index.

        Raises: ConfigError if one cannot be opened, something is not installed or the time is up.
        """
        environment = child_environment()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "farrank_server.first_stage.search_child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_PIPE_BYTES,
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C is for the parent to act on
        )
        worker = cls(process)
        try:
            async with asyncio.timeout(config.start_timeout_s):
                await worker._shake_hands(config, heap_mib)
        except BaseException as exc:
            await worker.kill()
            if isinstance(exc, TimeoutError):
                waited = f"the indexes were not open after {config.start_timeout_s:g} s"
                raise ConfigError(f"first_stage.start_timeout_s: {waited}") from None
            raise
        worker._reading = asyncio.create_task(worker._read_answers())
        return worker

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def searches_in_flight(self) -> int:
        """How many searches somebody waits for."""
        return len(self._pending)

    async def search(self, index: str, query: str, k: int) -> list[Candidate]:
        """Search; a caller that stops waiting takes its search back.

        Raises: Unavailable if the process ends meanwhile, ResourceExhausted if the texts outgrow its heap.
        """
        if self._reading is None or self._reading.done():
            raise restarting()
        search_id = next(self._ids)
        answer: asyncio.Future[list[Candidate]] = asyncio.get_running_loop().create_future()
        self._pending[search_id] = answer
        try:
            await self._send({"id": search_id, "index": index, "query": query, "k": k})
            return await answer
        finally:
            if self._pending.pop(search_id, None) is not None and not self._reading.done():
                with contextlib.suppress(Unavailable):
                    self._write({"cancel": search_id})

    async def ended(self) -> int:
        """Wait until the process has ended; return its exit code."""
        if self._reading is not None:
            await asyncio.shield(self._reading)
        code = await self._process.wait()
        await asyncio.shield(self._logging)
        return code

    async def stop(self) -> None:
        """Close the pipe, which ends the process; kill it if it does not follow."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self.ended()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End the process at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self.ended()

    async def _shake_hands(self, config: FirstStageConfig, heap_mib: int) -> None:
        indexes = {
            name: {
                "path": str(index.path),
                "k1": index.k1,
                "b": index.b,
                "rm3": None if index.rm3 is None else dataclasses.asdict(index.rm3),
            }
            for name, index in config.indexes.items()
        }
        with contextlib.suppress(Unavailable):  # what went wrong stands in the last lines
            await self._send({"heap_mib": heap_mib, "threads": config.search_threads, "indexes": indexes})
        assert self._process.stdout is not None
        frame = await receive_frame(self._process.stdout)
        if frame is None:
            code = await self.ended()
            lines = "\n".join(self._last_lines)
            raise ConfigError(f"the search process ended with {code} before it was ready:\n{lines}")
        if "failed" in frame[0]:
            raise ConfigError(frame[0]["failed"])
        self.documents = frame[0]["ready"]

    async def _read_answers(self) -> None:
        assert self._process.stdout is not None
        try:
            while (frame := await receive_frame(self._process.stdout)) is not None:
                header, body = frame
                answer = self._pending.pop(header["id"], None)
                if answer is not None and not answer.done():
                    _settle(answer, header, body)
        finally:
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(restarting())
            self._pending.clear()

    async def _send(self, header: dict[str, Any]) -> None:
        self._write(header)
        assert self._process.stdin is not None
        try:
            await self._process.stdin.drain()
        except ConnectionError as exc:
            raise restarting() from exc

    def _write(self, header: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.is_closing():
            raise restarting()
        self._process.stdin.write(pack(header))

    async def _pass_on_stderr(self) -> None:
        assert self._process.stderr is not None
        rest = b""
        while chunk := await self._process.stderr.read(2**16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._log_line(line)
        if rest:
            self._log_line(rest)

    def _log_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        self._last_lines.append(text)
        _log.log(logging.WARNING if _ALARMING.search(text) else logging.DEBUG, "search process: %s", text)


def _settle(answer: asyncio.Future[list[Candidate]], header: dict[str, Any], body: bytes) -> None:
    if header.get("error") == "memory":
        problem = "the candidates' texts do not fit the search process's memory; ask for fewer"
        answer.set_exception(ResourceExhausted(problem, reason=Reason.FIRST_STAGE_MEMORY))
    elif "error" in header:
        answer.set_exception(Internal("the first stage failed on this query"))
    else:
        texts = cut_texts(body, header["sizes"])
        found = zip(header["doc_ids"], texts, header["scores"], strict=True)
        answer.set_result([Candidate(*one) for one in found])


def restarting() -> Unavailable:
    """Make the error of a search that met no search process, or lost it."""
    return Unavailable("the first stage restarts", reason=Reason.FIRST_STAGE_DOWN, retry_after_ms=5000)
