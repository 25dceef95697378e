"""Python's `-m MODULE` and `-c CODE` in processes that have imported torch and transformers already.

Each saves 5 s of a core. They are forked from a process that was itself forked before any test ran, so that
they miss none of a test's threads. For the process that started one it is a normal child: it can be waited
for, signalled, and killed by its id. A test of imports or of a start needs `subprocess`.
"""

import atexit
import ctypes
import faulthandler
import fcntl
import json
import logging
import multiprocessing.util
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, AnyStr

import pytest

Completed = subprocess.CompletedProcess[str]

_PR_SET_CHILD_SUBREAPER = 36
_LARGEST_COMMAND = 1 << 17
# Standard input, output and error, and the files that multiprocessing passes.
_MOST_FILES = 16
_to_parent: socket.socket | None = None
# Without the lock, threads that start processes at the same time could read each other's ids, or leave their
# processes to be adopted by others.
_one_at_a_time = threading.Lock()


def fork_parent() -> None:
    """Fork the process that forks all others. Call it once, before any test starts a thread."""
    global _to_parent
    _to_parent, commands = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        try:
            _fork_on_demand(commands)
        finally:
            os._exit(1)
    commands.close()
    atexit.register(_to_parent.close)


class Popen(subprocess.Popen[AnyStr]):
    """`subprocess.Popen` of a command `[sys.executable, "-m", MODULE, …]` or `[…, "-c", CODE, …]`."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        # In the order of subprocess: executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
        # creationflags, shell, and a pair of ends for each of stdin, stdout, stderr.
        cwd, environment, ends = others[4], others[5], others[9:15]
        command = [os.fspath(each) for each in args]
        stdin, stdout, stderr = ends[0], ends[3], ends[5]
        files = [own if end == -1 else end for own, end in enumerate((stdin, stdout, stderr))]
        try:
            self.pid = _forked(command, files, cwd=cwd, environment=environment)
            self._child_created = True
        finally:
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]


def run(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Completed:
    """`subprocess.run`, with what the command prints."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with Popen(command, env=environment, text=True, **pipes) as process:
        out, err = process.communicate()
    return Completed(command, process.returncode, out, err)


@contextmanager
def spawning() -> Iterator[None]:
    """Let multiprocessing fork instead of spawning. The process has its parent's imported modules."""
    spawn: Callable[..., int] = multiprocessing.util.spawnv_passfds

    def forking(path: bytes, arguments: Sequence[str], passed: Sequence[int]) -> int:
        # Multiprocessing's other processes need no large imports.
        if arguments[-1] != "--multiprocessing-fork":
            return spawn(path, arguments, passed)
        return _forked([sys.executable, *arguments[arguments.index("-c") :]], [0, 1, 2], passed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing.util, "spawnv_passfds", forking)
        yield


def _forked(
    command: Sequence[str],
    files: Sequence[int],
    passed: Sequence[int] = (),
    *,
    cwd: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a command in its own process, and return its id.

    It has `files` as its standard input, output and error. The descriptors in `passed` have the same numbers
    as here.
    """
    interpreter, flag, *arguments = command
    assert interpreter == sys.executable
    assert flag in ("-m", "-c")
    assert _to_parent is not None
    given = {
        "flag": flag,
        "command": arguments,
        "cwd": os.fspath(cwd or os.getcwd()),
        "environment": dict(os.environ if environment is None else environment),
        "passed": list(passed),
    }
    with _one_at_a_time, _adopting():
        socket.send_fds(_to_parent, [json.dumps(given).encode()], [*files, *passed])
        return int(_to_parent.recv(20))


@contextmanager
def _adopting() -> Iterator[None]:
    """Become the parent of processes whose own parent ends."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _fork_on_demand(commands: socket.socket) -> None:
    """Fork a process for each command until the sender has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.disable()
    # This process must keep no pipe open: others wait for the end of its file.
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in range(3):
        os.dup2(nothing, file)
    os.closerange(3, commands.fileno())
    os.closerange(commands.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    while True:
        message, files, _, _ = socket.recv_fds(commands, _LARGEST_COMMAND, _MOST_FILES)
        if not message:
            os._exit(0)
        if any("serve" in each for each in json.loads(message)["command"]):
            _import_the_server()
        # The process in between ends before the caller gets the id, so that its child becomes the caller's.
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                commands.close()
                os.close(reading)
                os.close(writing)
                _run(files, **json.loads(message))
            os.write(writing, str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)
        commands.send(os.read(reading, 20))
        for file in (reading, writing, *files):
            os.close(file)


def _import_the_server() -> None:
    """Import what each server would import for itself, for seconds, once for all."""
    import transformers.models.bert.modeling_bert  # noqa: F401

    import farrank_runtimes.torch_runtime  # noqa: F401
    import farrank_server.http.application
    import farrank_server.http.listen
    import farrank_server.run  # noqa: F401


def _run(
    files: list[int], flag: str, command: list[str], cwd: str, environment: dict[str, str], passed: list[int]
) -> None:
    """Do what Python would do with the command, and end."""
    wanted = (0, 1, 2, *passed)
    # Copy the files above all wanted numbers first, so that none is overwritten before it is in its place.
    first = max(*wanted, *files) + 1
    copies = [fcntl.fcntl(each, fcntl.F_DUPFD, first) for each in files]
    os.closerange(3, first)
    for number, copy in zip(wanted, copies, strict=True):
        os.dup2(copy, number)
        os.close(copy)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout = os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    warnings.resetwarnings()
    warnings.simplefilter("ignore", DeprecationWarning)
    sys.argv = command if flag == "-m" else ["-c", *command[1:]]
    status = 0
    try:
        if flag == "-m":
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        else:
            exec(compile(command[0], "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
