"""Runs a replica until a signal ends it. `farrank serve` calls this."""

import asyncio
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

from prometheus_client import disable_created_metrics

from farrank_server.config.schema import ServerConfig
from farrank_server.pid_file import PidFile, Reloads, locked_pid_file
from farrank_server.replica import Replica
from farrank_server.watch import Watched, watch
from farrank_settings.errors import ConfigError

log = logging.getLogger(__name__)

# The device thread and the event loop share Python's interpreter lock. By default one thread may hold it for
# 5 ms while another waits, which is most of the time that a small request takes.
SWITCH_INTERVAL_S = 0.0001

ENOUGH_FILES = 65_536

# How long the process may take to end after a drain before it is ended by force. The last lines of the log
# take up to 2 seconds more.
END_AFTER_DRAIN_S = 3.0

EXIT_OK = 0
EXIT_DEVICE_LOST = 1
EXIT_CONFIG = 2


def run(
    config: ServerConfig,
    pid_file: Path | None = None,
    reread: Callable[[], ServerConfig] | None = None,
    look: Callable[[], object] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Returns the exit status of the process.

    SIGHUP reloads keys, certificates, the objective, the rankers and the indexes. `pid_file` is a file that
    reports the outcome (see there). `reread` reads the current configuration. With `look`, which returns
    another value after each change of the configuration's file, its changes and those of the rankers' files
    cause a reload, too.

    The status is 0 after a drain, 1 if the device was lost (a supervisor should restart the process), and 2
    if the configuration cannot be served; standard error then says why.
    """
    set_up_process()
    try:
        with hold_pid_file(pid_file) as file:
            return asyncio.run(_serve(config, file, reread, look))
    except ConfigError as error:
        for problem in error.problems:
            print(f"farrank serve: {problem}", file=sys.stderr)
        return EXIT_CONFIG


def set_up_process() -> None:
    """Set the limits and switches that a serving process needs, before it loads anything."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Each connection and each file of an index's stores takes a descriptor. The soft limit is low for old
    # programs.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        allowed = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    # The tokenizer threads already run in parallel. A thread pool in each of them would take cores from the
    # device.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Otherwise every counter gets an unused `_created` sample, which doubles the metrics page.
    disable_created_metrics()  # type: ignore[no-untyped-call]


@contextmanager
def hold_pid_file(path: Path | None) -> Iterator[PidFile | None]:
    """Hold the pid file, if one is configured. Raises: ConfigError if it cannot be held."""
    if path is None:
        yield None
        return
    with ExitStack() as opened:
        try:
            file = opened.enter_context(locked_pid_file(path))
        except BlockingIOError:
            raise ConfigError(f"--pid-file: another running server uses {path}") from None
        except OSError as error:
            raise ConfigError(f"--pid-file: {path}: {error.strerror}") from error
        yield file


async def _serve(
    config: ServerConfig,
    pid_file: PidFile | None,
    reread: Callable[[], ServerConfig] | None,
    look: Callable[[], object] | None,
) -> int:
    end_requested, reload_requested = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end_requested.set)
    loop.add_signal_handler(signal.SIGHUP, reload_requested.set)
    ending = asyncio.create_task(end_requested.wait())
    background: list[asyncio.Task[NoReturn]] = []
    if look is not None and reread is not None:
        # Before the rankers are read, so that a change while they load is seen, too.
        watched = await asyncio.to_thread(Watched, look, reread)
        background.append(asyncio.create_task(watch(watched, reload_requested.set)))
    replica = Replica(config, reread)
    starting = asyncio.create_task(replica.__aenter__())
    await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        log.info("ending before the server was healthy; no call was admitted")
        logging.shutdown()
        # Models load in native code on another thread, which cannot be interrupted and may take minutes. The
        # search process ends by itself when its pipe closes.
        os._exit(EXIT_OK)
    await starting
    background.append(asyncio.create_task(_reload(replica, reload_requested, pid_file)))
    try:
        # A program that starts the server reads the ports here. Logs go to standard error.
        addresses = {"grpc": replica.address, "metrics": replica.metrics_url, "http": replica.http_url}
        print("healthy", *(f"{name}={each or 'none'}" for name, each in addresses.items()), flush=True)
        if replica.http_url and config.listen.http.page:
            print(f"the evidence page, in a browser: {replica.http_url}/", flush=True)
        lost = asyncio.create_task(replica.engine.lost.wait())
        await asyncio.wait((lost, ending), return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            log.error(
                "the device is lost, or too many threads hang; ending, so that a supervisor can restart the "
                "process"
            )
            ending.cancel()
            _force_end_after(config.listen.drain_timeout_s + END_AFTER_DRAIN_S, EXIT_DEVICE_LOST)
            return EXIT_DEVICE_LOST
        lost.cancel()
        log.info("received a signal to end; draining")
        _force_end_after(config.listen.drain_timeout_s + END_AFTER_DRAIN_S, EXIT_OK)
        return EXIT_OK
    finally:
        for each in background:
            each.cancel()
        await asyncio.wait(background)
        await replica.__aexit__(None, None, None)


def _force_end_after(seconds: float, status: int) -> None:
    """End the process after `seconds` if it has not ended by then.

    A thread that hangs in native code or waits for a dead disk cannot be ended otherwise, and Python waits
    for some threads.
    """

    def end() -> None:
        log.error("the process has not ended after %.1f s; ending it by force", seconds)
        logging.shutdown()
        os._exit(status)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


async def _reload(replica: Replica, requested: asyncio.Event, pid_file: PidFile | None) -> NoReturn:
    """Reload whenever `requested` is set, and write the outcome to the pid file."""
    number = 0
    problem = ""
    while True:
        await requested.wait()
        requested.clear()
        _write(pid_file, Reloads(number + 1, number, problem))
        number += 1
        try:
            await replica.reload()
            problem = ""
        except ConfigError as error:  # the old state still serves
            log.error("the reload failed in part: %s", error)
            problem = str(error)
        except Exception as error:
            # A bug in one reload must not prevent later reloads.
            log.exception("the reload failed")
            problem = str(error) or type(error).__name__
        _write(pid_file, Reloads(number, number, problem))


def _write(pid_file: PidFile | None, reloads: Reloads) -> None:
    """Write the outcome of reloads to the pid file. A failure, such as a full disk, is only logged."""
    try:
        if pid_file is not None:
            pid_file.write(reloads)
    except OSError as error:
        log.warning("the pid file cannot be written: %s", error)
