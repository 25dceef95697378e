"""`farrank serve` with a device and tokenizer threads that fail as standard input orders.

With FARRANK_SMALL_HEAP set, the heap of its search process is small and can be filled (`sick_search_child`).

Each line of input is a failure that happens once, with the next batch or text:

    lost          the runtime reports that its device is lost
    exits         a library in the runtime ends the thread with SystemExit
    ends          like `lost`, and restarting the device fails, too: the thread ends
    memory        the batch does not fit into memory
    hangs S       a call into the device does not return for S seconds
    loads S       like `lost`, and loading the rankers again does not return for S seconds
    tokenizer S   a tokenizer thread hangs for S seconds

When a failure happens, a line `struck NAME AT` appears on standard output, with a monotonic time.
"""

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from farrank_calls.fairness import reader_threads
from farrank_cli.main import main
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.choose import ServableRanker
from farrank_runtimes.runtime import DeviceLost, Encoding, OutOfMemory
from farrank_server.config.schema import RankerConfig, ServerConfig
from farrank_server.engine import tokenization
from farrank_server.engine.device.device_loop import DeviceLoop
from farrank_server.engine.loaded import loading
from support import sick_search_child
from support.engine_bench import Wrapped

# The time after which a tokenizer thread counts as hung. The default of 30 s is too long for a short run.
READER_HANGS_AFTER_S = "FARRANK_READER_HANGS_AFTER_S"
SMALL_HEAP = "FARRANK_SMALL_HEAP"


class Sicknesses:
    """The failures that were ordered and have not happened yet."""

    def __init__(self) -> None:
        self._armed: dict[str, float] = {}
        self._lock = threading.Lock()

    def read(self) -> None:
        """Read orders until standard input ends."""
        for line in sys.stdin:
            name, _, seconds = line.strip().partition(" ")
            with self._lock:
                self._armed[name] = float(seconds or 0)

    def strike(self, *names: str) -> tuple[str, float] | None:
        """Return which of these failures happens now, if any."""
        with self._lock:
            for name in names:
                if name in self._armed:
                    seconds = self._armed.pop(name)
                    print("struck", name, time.monotonic(), flush=True)
                    return name, seconds
        return None


ORDERED = Sicknesses()


class SickRuntime(Wrapped):
    """A runtime that causes the ordered failure before it encodes."""

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoding:
        match ORDERED.strike("lost", "exits", "ends", "memory", "hangs", "loads"):
            case ("exits", _):
                raise SystemExit(3)
            case ("memory", _):
                raise OutOfMemory("ordered: the batch does not fit")
            case ("hangs", seconds):
                time.sleep(seconds)
            case (name, seconds):
                if name == "ends":
                    ENDS.append(True)
                if name == "loads":
                    LOADS_FOR_S.append(seconds)
                raise DeviceLost("ordered: the device is gone")
        return self.inner.encode(inputs)


_recover = DeviceLoop._recover
_open = loading._open
_turn = tokenization._turn


# Whether the thread ends where it would restart the device.
ENDS: list[bool] = []

# The seconds for which loading the rankers again hangs.
LOADS_FOR_S: list[float] = []


def _recover_or_end(loop: DeviceLoop, error: BaseException) -> bool:
    if ENDS:
        ENDS.clear()
        raise RuntimeError("ordered: the thread ends")
    return _recover(loop, error)


def _open_sick(name: str, source: RankerConfig, config: ServerConfig) -> ServableRanker:
    if LOADS_FOR_S:
        time.sleep(LOADS_FOR_S.pop())
    served = _open(name, source, config)
    return replace(served, runtime=SickRuntime(served.runtime))


def _sick_turn(steps: Any) -> Any:
    if (struck := ORDERED.strike("tokenizer")) is not None:
        time.sleep(struck[1])
    return _turn(steps)


def serve(arguments: Sequence[str]) -> None:
    """Run `farrank serve` with these arguments."""
    reader_threads.HANG_AFTER_S = float(os.environ.get(READER_HANGS_AFTER_S, reader_threads.HANG_AFTER_S))
    if SMALL_HEAP in os.environ:
        sick_search_child.use_it()
    DeviceLoop._recover = _recover_or_end  # type: ignore[method-assign,assignment]
    loading._open = _open_sick
    tokenization._turn = _sick_turn
    threading.Thread(target=ORDERED.read, daemon=True).start()
    sys.exit(main(["serve", *arguments]))
