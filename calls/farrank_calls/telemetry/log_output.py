"""The server's log: lines for people or for programs, on standard error.

A separate thread writes the lines, so that no call waits for a slow or absent reader of standard error. Up to
`MAX_WAITING` lines wait. Further ones are dropped, and a later line reports how many.
"""

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from farrank_calls.telemetry.call_record import logged_call
from farrank_calls.telemetry.config import LoggingConfig

STANDARD_ERROR = 2

# The number of lines that may wait: a few megabytes.
MAX_WAITING = 10_000

# Lines dropped since the process began: because too many waited, or because a write failed (a full disk).
dropped_lines = {"not_read": 0, "not_written": 0}

# How long the exit of the process waits for the last lines.
LAST_LINES_S = 2.0


def configure_logging(config: LoggingConfig, level: str | None = None) -> None:
    """Send the process's log to standard error, unless logging is configured already. `level` overrides."""
    writer = LineWriter(STANDARD_ERROR)
    writer.setFormatter(JsonLines() if config.format == "json" else TextLines())
    logging.basicConfig(level=(level or config.level).upper(), handlers=[writer])


def call_fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the values in a line in addition to its message: its `fields`, and the ids of its call."""
    fields = dict(getattr(record, "fields", {}))
    call = getattr(record, "call", None) or logged_call()
    if call.request_id:
        fields |= call.exemplar()
    return fields


class JsonLines(logging.Formatter):
    """One JSON object per line. Times are UTC in RFC 3339 format."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **call_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """Lines for people, with the additional values at the end as `name=value`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format a record without its exception."""
        return " ".join([super().formatMessage(record), *_pairs(call_fields(record))])


def _pairs(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        yield f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"


class LineWriter(logging.Handler):
    """Passes lines to a thread that writes them to a file descriptor.

    It does not use `sys.stderr`: a thread that hangs while it writes there keeps the interpreter from
    exiting.
    """

    def __init__(self, descriptor: int, max_waiting: int = MAX_WAITING) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[str] = queue.Queue(max_waiting)
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line. `logging` calls this while it holds the handler's lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="farrank-log", daemon=True)
            self._thread.start()
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1
            dropped_lines["not_read"] += 1
        except Exception:  # as every logging handler does
            self.handleError(record)

    def flush(self) -> None:
        """Wait until the queued lines are written, at most `LAST_LINES_S`."""
        end_s = time.monotonic() + LAST_LINES_S
        while self._lines.unfinished_tasks and time.monotonic() < end_s:
            time.sleep(0.001)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            if dropped := self._dropped:
                self._dropped -= dropped
                line += f"\n{self._dropped_line(dropped)}"
            rest = f"{line}\n".encode(errors="backslashreplace")
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                # If standard error has no reader any more, nothing can report it. A full disk may have room
                # later.
                self._dropped += dropped + 1
                dropped_lines["not_written"] += 1
            self._lines.task_done()

    def _dropped_line(self, count: int) -> str:
        message = "%d lines of the log were dropped: standard error was not read, or its disk was full"
        return self.format(logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, (count,), None))
