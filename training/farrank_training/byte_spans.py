"""Spans of bytes that stay in their files until they are read: training data may exceed the memory."""

import os
import tempfile
import weakref
from array import array
from collections.abc import Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from farrank_trec.errors import InputError
from farrank_trec.lines import STDIN


class ByteSpans:
    """Numbered spans of the sources' bytes, 18 bytes of memory each.

    Spans of a plain file are read from that file. Spans of a packed file, a pipe or standard input are copied
    to a temporary file without a name, which the system removes however the process ends. Threads and
    processes, forked or spawned, may share spans.
    Raises: InputError if a file cannot be opened. The first reader of a missing file reports it.
    """

    def __init__(self, sources: Sequence[Path | str]) -> None:
        self._names = [str(source) for source in sources]
        self._sources, self._offsets, self._sizes = array("H"), array("q"), array("q")
        self._copied = [_must_be_copied(name) for name in self._names]
        self._end_of_copies = 0
        files = [
            -1 if copied else _opened(name) for name, copied in zip(self._names, self._copied, strict=True)
        ]
        self._hold(files, _temporary_file() if any(self._copied) else -1)

    def _hold(self, files: list[int], copies: int) -> None:
        """Keep files open until the spans are garbage-collected."""
        self._files, self._copies = files, copies
        self._closing = weakref.finalize(self, _close, [*files, copies])

    def __getstate__(self) -> dict[str, Any]:
        # A spawned process inherits the open descriptors: a temporary file has no name to open it by.
        handles = [DupFd(each) if each >= 0 else None for each in (*self._files, self._copies)]
        return self.__dict__ | {"_files": handles, "_copies": None, "_closing": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        *files, copies = (-1 if each is None else each.detach() for each in state["_files"])
        self._hold(files, copies)

    def __len__(self) -> int:
        return len(self._offsets)

    def keep(self, source: int, offset: int, content: bytes) -> None:
        """Add the content at an offset of a source, given by its number, as the next span.

        Raises: InputError if the content must be copied and the disk is full.
        """
        if self._copied[source]:
            offset = self._end_of_copies
            self._copy(content)
        self._sources.append(source)
        self._offsets.append(offset)
        self._sizes.append(len(content))

    def read(self, number: int) -> bytes:
        """Read a span again.

        Raises: InputError if its file cannot be read, or has become shorter.
        """
        source, offset, size = self._sources[number], self._offsets[number], self._sizes[number]
        file = self._copies if self._copied[source] else self._files[source]
        content = b""
        try:
            # Linux returns at most 2 GiB a call.
            while len(content) < size and (
                more := os.pread(file, size - len(content), offset + len(content))
            ):
                content += more
        except OSError as error:
            raise InputError(f"{self._names[source]}: {error.strerror or error}") from error
        if len(content) < size:
            raise InputError(f"{self.place(number)}: the file was changed after it had been read")
        return content

    def place(self, number: int) -> str:
        """Say where a span begins, for messages."""
        return f"{self._names[self._sources[number]]}: byte {self._offsets[number]}"

    def _copy(self, content: bytes) -> None:
        written = 0
        try:
            while written < len(content):
                written += os.pwrite(self._copies, content[written:], self._end_of_copies + written)
        except OSError as error:
            raise InputError(
                f"temporary file in {tempfile.gettempdir()}: {error.strerror or error}"
            ) from error
        self._end_of_copies += written


def _must_be_copied(name: str) -> bool:
    """Tell whether a span cannot be read again at its offset. A missing file fails when it is read."""
    return name == STDIN or name.endswith(".gz") or not os.path.isfile(name)


def _opened(name: str) -> int:
    try:
        return os.open(name, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from error


def _temporary_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _close(files: Sequence[int]) -> None:
    for each in files:
        if each >= 0:
            os.close(each)
