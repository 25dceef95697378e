"""The pid file of a running server: its process id and the outcome of its reloads.

The first line is the process id, as in any pid file. The second line is JSON: how many reloads have begun,
how many have finished, and why the last one failed. The server locks the file while it runs, so that a file
left by an ended server is not mistaken for a running one, or for another process with the same id.
"""

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

_POLL_S = 0.05


class NotRunning(Exception):
    """No server has locked the file."""


class ReloadFailed(Exception):
    """The server could not reload and serves what it served before. The message says why."""


@dataclass(frozen=True, slots=True)
class Reloads:
    """The numbers of reloads begun and finished. `problem` says why the last one failed, or is empty."""

    begun: int = 0
    finished: int = 0
    problem: str = ""


class PidFile:
    """A server's own pid file, locked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, reloads: Reloads) -> None:
        """Write the process id and the outcome of the reloads."""
        text = f"{os.getpid()}\n{json.dumps(asdict(reloads))}\n".encode()
        # Write in place, because a new file would not be locked. A reader that finds half a line reads again.
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))


@contextmanager
def locked_pid_file(path: Path) -> Iterator[PidFile]:
    """Lock the file while a server runs, and delete it afterwards.

    Raises: OSError if it cannot be written, or (BlockingIOError) if another server has locked it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file = PidFile(descriptor)
        file.write(Reloads())
        try:
            yield file
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def reload(path: Path, timeout_s: float) -> None:
    """Signal the server of a pid file to reload, and wait until it has finished.

    Raises: NotRunning; ReloadFailed; TimeoutError; OSError if the file cannot be read, or if the server
    belongs to another user.
    """
    until_s = time.monotonic() + timeout_s
    pid, before = _read(path)
    os.kill(pid, signal.SIGHUP)
    # A reload that was already running may have missed the latest changes.
    wanted = before.begun + 1
    while True:
        _, now = _read(path)
        if now.finished >= wanted:
            break
        if time.monotonic() > until_s:
            raise TimeoutError(f"the server had not reloaded after {timeout_s:g} s; it continues")
        time.sleep(_POLL_S)
    if now.problem:
        raise ReloadFailed(now.problem)


def _read(path: Path) -> tuple[int, Reloads]:
    while True:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                raise NotRunning(f"{path}: no running server uses it")
            lines = file.read().decode().splitlines()
        try:
            return int(lines[0]), Reloads(**json.loads(lines[1]))
        except (IndexError, ValueError):
            time.sleep(_POLL_S)
