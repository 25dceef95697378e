"""The real search process in a small heap, which SIGUSR1 fills for good.

It runs as `python -m support.sick_search_child`; `use_it` makes hosts start it instead of the shipped one.
"""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farrank_first_stage import search_child
from farrank_first_stage.lucene_host import SearchProcess
from farrank_first_stage.lucene_rankings import ranked
from farrank_lucene import heap_watch
from farrank_lucene.heap_watch import Heap, HeapWatch
from farrank_lucene.jvm import start_jvm

HEAP_MIB = 64

# The free rest of a full heap, and the temporary need of each search, in bytes of Java's heap.
LEFT_BYTES = 4 * 2**20
SEARCH_BYTES = 8 * 2**20

# Ten pieces and their headers fit into a region of the heap.
PIECE_BYTES = 100 * 2**10

_start = SearchProcess.start.__func__  # type: ignore[attr-defined]


async def _start_sick(kind: type[SearchProcess], module: str, name: str) -> SearchProcess:
    process: SearchProcess = await _start(kind, __name__, name)
    return process


def use_it(monkeypatch: Any = None) -> None:
    """Make hosts of this process start it. A given fixture undoes this."""
    tests = str(Path(__file__).parent.parent)
    paths = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    if monkeypatch is None:
        os.environ["PYTHONPATH"] = paths
        SearchProcess.start = classmethod(_start_sick)  # type: ignore[assignment,method-assign]
    else:
        monkeypatch.setenv("PYTHONPATH", paths)
        monkeypatch.setattr(SearchProcess, "start", classmethod(_start_sick))


def _buffers() -> Any:
    from jnius import autoclass

    return autoclass("java.nio.ByteBuffer")


class HungryIndex:
    """An index whose searches need this much memory, however little they find."""

    def __init__(self, *arguments: Any) -> None:
        self._index, self._buffers = ranked(*arguments), _buffers()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def search(self, request: Mapping[str, Any], k: int, *, texts: bool) -> Any:
        """Search if there is room."""
        self._buffers.allocate(SEARCH_BYTES)
        return self._index.search(request, k, texts=texts)


class Fillable(HeapWatch):
    """Fills the heap on request, while no search runs."""

    def __init__(self, heap: Heap) -> None:
        super().__init__(heap)
        self._kept: list[Any] = []
        signal.signal(signal.SIGUSR1, self.fill)

    def fill(self, *_: Any) -> None:
        """Leave only `LEFT_BYTES` free."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
            pieces = (self._heap.maximum() - self._heap.in_use() - LEFT_BYTES) // PIECE_BYTES
            buffers = _buffers()
            self._kept += [buffers.allocate(PIECE_BYTES) for _ in range(pieces)]


if __name__ == "__main__":
    sick: Any = search_child
    sick.start_jvm = lambda heap_mib: start_jvm(HEAP_MIB)
    sick.ranked, sick.HeapWatch = HungryIndex, Fillable
    heap_watch.CHECK_EVERY_S = 0.0
    search_child.main()
