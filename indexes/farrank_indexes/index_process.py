"""The parent's side of the indexing process, used by `index_builder`."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from farrank_lucene.process import JavaProcess, ProcessEnded

_HEAP_MIB = 1536


class IndexingError(RuntimeError):
    """Lucene could not write the index. The message says why."""


class IndexProcess:
    """The indexing process, used from outside any event loop.

    The process works on one frame while the next one is made, so that reading and indexing overlap. The
    private event loop runs only while something is awaited, so that Ctrl-C stops the reading at once.
    """

    def __init__(self, loop: asyncio.Runner) -> None:
        self._loop = loop
        self._process = loop.run(JavaProcess.start("farrank_indexes.index_child", "indexing process"))
        self._unanswered = 0

    @classmethod
    @contextmanager
    def running(cls, index: Path, places: int, chunks: int, before: Path | None) -> Iterator[Self]:
        """Run a process that writes into the folder `index`, until the block ends.

        `places` and `chunks` say how much of the folder stays. `before` is the index that is changed, if any.
        """
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as loop:
            made = cls(loop)
            try:
                threads = min(os.cpu_count() or 1, 8)
                setup = {"path": str(index), "threads": threads, "heap_mib": _HEAP_MIB}
                kept = {"places": places, "chunks": chunks, "before": None if before is None else str(before)}
                made.send({**setup, **kept}, ())
                yield made
            finally:
                loop.run(made._process.kill())

    @property
    def last_lines(self) -> str:
        """The last lines that the process printed."""
        return self._process.last_lines

    def send(self, header: Mapping[str, Any], texts: Sequence[str]) -> None:
        """Send a frame, and receive the answer to the previous one. Raises: IndexingError."""
        self._loop.run(self._send(header, texts))

    def ask(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Send a frame and receive its answer. Raises: IndexingError."""
        self.send(header, ())
        return self._loop.run(self._answer())

    def finish(self, *, merge: bool) -> dict[str, Any]:
        """Complete the index. Returns the numbers of documents and chunks that it holds."""
        return self.ask({"finish": True, "merge": merge})

    async def _send(self, header: Mapping[str, Any], texts: Sequence[str]) -> None:
        try:
            await self._process.send(header, texts)
        except ProcessEnded:
            raise IndexingError(await self._process.describe_end()) from None
        self._unanswered += 1
        while self._unanswered > 1:
            await self._answer()

    async def _answer(self) -> dict[str, Any]:
        try:
            header, _ = await self._process.receive()
        except ProcessEnded:
            raise IndexingError(await self._process.describe_end()) from None
        self._unanswered -= 1
        if "failed" in header:
            raise IndexingError(f"Lucene cannot write the index: {header['failed']}")
        return header
