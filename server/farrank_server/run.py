"""Run a server until it is told to end: what `farrank serve` calls."""

import asyncio
import logging
import os
import signal
import sys

from prometheus_client import disable_created_metrics

from farrank_server.config.schema import ServerConfig
from farrank_server.errors import ConfigError
from farrank_server.listen import host_and_port
from farrank_server.replica import Replica

log = logging.getLogger(__name__)

# The device thread and the event loop share one interpreter lock. Python's default lets a holder keep it
# for 5 ms, which would be most of a small request's time.
SWITCH_INTERVAL_S = 0.0001

EXIT_OK = 0
EXIT_DEVICE_LOST = 1
EXIT_CONFIG = 2


def run(config: ServerConfig) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Returns the process's exit status.

    0 after a drain, 1 if the device was lost (a supervisor should start the process anew), 2 if the
    configuration cannot be served; the reason then stands on standard error.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # The tokenizer pool's threads are the parallelism; a second pool within would take the device's cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # transformers imports scikit-learn, where it is installed, for a kind of text generation: two seconds of
    # every start. The server generates no text.
    sys.modules.setdefault("sklearn", None)  # type: ignore[arg-type]  # None: an import fails
    # A `_created` sample beside every counter doubles the metrics page, and nothing reads it.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        return asyncio.run(_serve(config))
    except ConfigError as error:
        for problem in error.problems:
            print(f"farrank serve: {problem}", file=sys.stderr)
        return EXIT_CONFIG


async def _serve(config: ServerConfig) -> int:
    told_to_end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_end.set)
    ending = asyncio.create_task(told_to_end.wait())
    replica = Replica(config)
    starting = asyncio.create_task(replica.__aenter__())
    await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        log.info("told to end before healthy; nothing was admitted, nothing is left to drain")
        logging.shutdown()
        # Loading runs native code on a thread that cannot be interrupted, for minutes perhaps. The search
        # process ends with the pipe that it hangs on.
        os._exit(EXIT_OK)
    await starting
    try:
        # For programs that started this one, perhaps with port 0. Logs go to standard error.
        print(f"healthy grpc={replica.address} metrics={_metrics_url(replica)}", flush=True)
        lost = asyncio.create_task(replica.engine.lost.wait())
        await asyncio.wait((lost, ending), return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            log.error("the device is lost; ending, so that a supervisor can start anew")
            ending.cancel()
            return EXIT_DEVICE_LOST
        lost.cancel()
        log.info("told to end; draining")
        return EXIT_OK
    finally:
        await replica.__aexit__(None, None, None)


def _metrics_url(replica: Replica) -> str:
    if replica.metrics_port is None:
        return "none"
    return f"http://{host_and_port(replica.host, replica.metrics_port)}/metrics"
