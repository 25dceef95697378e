"""A Java child process for its parent: started, sent and received frames, logged and ended."""

import asyncio
import contextlib
import logging
import re
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Self

from farrank_lucene.frames import Frame, pack, receive_frame
from farrank_lucene.jvm import child_environment

_log = logging.getLogger(__name__)
_ALARMING = re.compile(r"\b(ERROR|FATAL|SEVERE|Traceback|Error:)|^# +\S")  # the last is a crash of the JVM
_STOP_TIMEOUT_S = 5.0
_PIPE_BYTES = 4 * 2**20  # of answers read ahead before the pipe is paused; 100 long documents fit
_LAST_LINES = 20


class ProcessEnded(Exception):
    """The child has ended, or closed its pipe."""


class JavaProcess:
    """A running child, created by `start`. Its standard error goes to the log, alarming lines as warnings."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._name = name
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._logging = asyncio.create_task(self._pass_on(process.stderr))

    @classmethod
    async def start(cls, module: str, name: str) -> Self:
        """Start `python -m module`; `name` stands for it in the log and in errors.

        Raises: ConfigError if pyserini or Java is missing.
        """
        environment = await asyncio.to_thread(child_environment)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_PIPE_BYTES,
            env=environment,
            start_new_session=True,  # only the parent reacts to a terminal's Ctrl-C
        )
        return cls(process, name)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def post(self, header: Mapping[str, Any], texts: Iterable[str] = ()) -> None:
        """Send a frame without waiting for the pipe.

        Raises: ProcessEnded.
        """
        if self._stdin.is_closing():
            raise ProcessEnded
        self._stdin.write(pack(header, texts))

    async def send(self, header: Mapping[str, Any], texts: Iterable[str] = ()) -> None:
        """Send a frame, and wait until the pipe has taken most of it.

        Raises: ProcessEnded.
        """
        self.post(header, texts)
        try:
            await self._stdin.drain()
        except ConnectionError as error:
            raise ProcessEnded from error

    async def receive(self) -> Frame:
        """Wait for the next frame.

        Raises: ProcessEnded.
        """
        frame = await receive_frame(self._stdout)
        if frame is None:
            raise ProcessEnded
        return frame

    async def ended(self) -> int:
        """Wait until the process has ended and all its lines are logged; return its exit code."""
        code = await self._process.wait()
        await asyncio.shield(self._logging)
        return code

    async def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Close the pipe, which ends the child; kill it if it has not ended within `timeout_s`."""
        self._stdin.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self.ended()
        except TimeoutError:
            await self.kill()

    def kill_now(self) -> None:
        """Kill the process at once, even if it is stopped; `ended` waits for its end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def kill(self) -> None:
        """Kill the process at once, and wait until it has ended."""
        self.kill_now()
        await self.ended()

    async def describe_end(self) -> str:
        """Wait for the process's end, and describe it: the exit code and the last lines."""
        code = await self.ended()
        return f"the {self._name} ended with {code}; its last lines:\n{self.last_lines}"

    @property
    def last_lines(self) -> str:
        """The last lines that the child printed on standard error."""
        return "\n".join(self._last_lines)

    async def _pass_on(self, stderr: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await stderr.read(2**16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._log_line(line)
        if rest:
            self._log_line(rest)

    def _log_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        self._last_lines.append(text)
        _log.log(logging.WARNING if _ALARMING.search(text) else logging.DEBUG, "%s: %s", self._name, text)
