"""What commands show on a terminal: tables on stdout, progress on stderr."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO


def counted(count: int, what: str) -> str:
    """Write `1 document`, `2,000 documents`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def print_columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their heads, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


_TERMINAL_EVERY_S = 0.1
_LOG_EVERY_S = 10.0


class Progress:
    """Counts of `what`, shown no more often than a reader or a log can bear. Call it, then `end` it."""

    def __init__(
        self, what: str, stream: TextIO | None = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._stream = sys.stderr if stream is None else stream
        self._clock_s = clock_s
        self._on_terminal = self._stream.isatty()
        self._every_s = _TERMINAL_EVERY_S if self._on_terminal else _LOG_EVERY_S
        self._shown_s = clock_s()

    def __call__(self, count: int) -> None:
        """Tell the count so far."""
        now_s = self._clock_s()
        if now_s - self._shown_s < self._every_s:
            return
        self._shown_s = now_s
        line = f"{count:,} {self._what}"
        self._stream.write(f"\r\x1b[K{line}" if self._on_terminal else f"{line}\n")
        self._stream.flush()

    def end(self) -> None:
        """Clear the changing line, so that what follows begins at the left."""
        if self._on_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
