"""Terminal output of commands: tables on stdout, progress on stderr."""

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
_BAR_WIDTH = 24


class Progress:
    """A command's progress: a bar with the time left on a terminal, occasional lines elsewhere.

    Call it with the count so far, then `end` it. `every_s` is the shortest interval between outputs.
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        *,
        lasts_s: float | None = None,
        every_s: float | None = None,
        stream: TextIO | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock_s = clock_s
        self._on_terminal = self._stream.isatty()
        usual_s = _TERMINAL_EVERY_S if self._on_terminal else _LOG_EVERY_S
        self._every_s = usual_s if every_s is None else every_s
        self.begin(what, total, lasts_s=lasts_s)

    def begin(
        self, what: str, total: int | None = None, *, done: int = 0, lasts_s: float | None = None
    ) -> None:
        """Begin to count `what`; `total`, or `lasts_s` if that is known, gives the time left.

        `done` of them were done before and do not count in the rate.
        """
        self._what, self._total, self._done, self._lasts_s = what, total, done, lasts_s
        self._began_s = self._shown_s = self._clock_s()

    def __call__(self, count: int, note: str = "", *, timed: bool = True) -> None:
        """Show the count so far, a note, and the time left if it is `timed`: if the rate so far tells it."""
        now_s = self._clock_s()
        if now_s - self._shown_s < self._every_s:
            return
        self._shown_s = now_s
        line = self._line(count, note, now_s - self._began_s, timed)
        self._stream.write(f"\r\x1b[K{line}" if self._on_terminal else f"{line}\n")
        self._stream.flush()

    def end(self) -> None:
        """Clear the progress line, so that further output begins at the left."""
        if self._on_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _line(self, count: int, note: str, passed_s: float, timed: bool) -> str:
        of = "" if self._total is None else f" of {self._total:,}"
        parts = [f"{count:,}{of} {self._what}"]
        if self._lasts_s is not None:
            parts.append(time_left(self._lasts_s - passed_s))
        elif timed and self._total and count > self._done:
            parts.append(time_left(passed_s / (count - self._done) * (self._total - count)))
        line = ", ".join([*parts, note] if note else parts)
        if self._total is None or not self._on_terminal:
            return line
        filled = _BAR_WIDTH * min(count, self._total) // max(self._total, 1)
        return f"[{'#' * filled:<{_BAR_WIDTH}}] {line}"


def time_left(seconds: float) -> str:
    """Write `45 s left`, `12 min left`, `3 h 05 min left`."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s left"
    minutes = round(whole / 60)
    return f"{minutes} min left" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min left"
