"""The file by which a running server is found and told to reload: its process id, and how reloads went.

The first line is the process id, as in any such file. The second says in JSON how many reloads were begun
and how many are finished, and why the last one failed. The server holds a lock on the file as long as it
runs: an id that is left of another life names nobody, or somebody else.
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
    """No server holds the file."""


class ReloadFailed(Exception):
    """The server could not reload, and serves what it served before; the message says why."""


@dataclass(frozen=True, slots=True)
class Reloads:
    """How many reloads were begun and are finished; `problem` is why the last one failed, empty if not."""

    begun: int = 0
    finished: int = 0
    problem: str = ""


class PidFile:
    """A server's own file, held."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, reloads: Reloads) -> None:
        """Say how reloads went."""
        text = f"{os.getpid()}\n{json.dumps(asdict(reloads))}\n".encode()
        # In place: another file would not be locked. Who reads half a line reads again.
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))


@contextmanager
def held(path: Path) -> Iterator[PidFile]:
    """Hold the file while a server runs; it is gone afterwards.

    Raises: OSError if it cannot be written, or (BlockingIOError) another server holds it.
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
    """Tell the server of a file to reload, and wait until it has.

    Raises: NotRunning; ReloadFailed; TimeoutError; OSError if the file cannot be read, or the server is
    another user's.
    """
    until_s = time.monotonic() + timeout_s
    pid, before = _read(path)
    os.kill(pid, signal.SIGHUP)
    # One that was running already may not have seen what is new.
    wanted = before.begun + 1
    while True:
        _, now = _read(path)
        if now.finished >= wanted:
            break
        if time.monotonic() > until_s:
            raise TimeoutError(f"the server had not reloaded after {timeout_s:g} s; it goes on with it")
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
                raise NotRunning(f"{path}: no server holds it")
            lines = file.read().decode().splitlines()
        try:
            return int(lines[0]), Reloads(**json.loads(lines[1]))
        except (IndexError, ValueError):
            time.sleep(_POLL_S)
