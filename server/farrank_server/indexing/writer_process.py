"""The indexing process seen from its parent: start, batches, end."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farrank_server.first_stage.frames import pack, read_frame
from farrank_server.first_stage.jvm import child_environment
from farrank_server.indexing.document import Document

_HEAP_MIB = 1536
_LAST_BYTES = 4000


class IndexingError(RuntimeError):
    """Lucene could not write the index: says why."""


class WriterProcess:
    """Writes documents into a Lucene index at `path`; a context manager that leaves no process behind.

    One batch is on its way while the caller collects the next: reading and indexing overlap.

    Raises: ConfigError if pyserini or Java is missing.
    """

    def __init__(self, path: Path) -> None:
        environment = child_environment()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed by __exit__)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "farrank_server.indexing.writer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C is for the parent to act on
        )
        self._in_flight = 0
        threads = min(os.cpu_count() or 1, 8)
        try:
            self._send(pack({"path": str(path), "threads": threads, "heap_mib": _HEAP_MIB}))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "WriterProcess":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what was left unsent has no reader any more
                pipe.close()

    def add(self, batch: Sequence[Document]) -> None:
        """Add documents.

        Raises: IndexingError, perhaps about the batch before.
        """
        texts = [document.text.encode() for document in batch]
        ids = [document.doc_id for document in batch]
        self._send(pack({"ids": ids, "sizes": [len(text) for text in texts]}, texts))
        if self._in_flight:
            self._receive()
        self._in_flight += 1

    def finish(self) -> int:
        """Commit the index and return how many documents it holds.

        Raises: IndexingError.
        """
        if self._in_flight:
            self._receive()
        self._send(pack({"finish": True}))
        return int(self._receive()["documents"])

    def last_lines(self) -> str:
        """Return the end of what Lucene had to say."""
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - _LAST_BYTES))
        return self._stderr.read().decode(errors="replace")

    def _send(self, frame: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(frame)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        frame = read_frame(self._process.stdout)
        if frame is None:
            raise self._died()
        if "failed" in frame[0]:
            raise IndexingError(f"Lucene cannot write the index: {frame[0]['failed']}")
        return frame[0]

    def _died(self) -> IndexingError:
        code = self._process.wait()
        return IndexingError(f"the indexing process ended with {code}; its last lines:\n{self.last_lines()}")
