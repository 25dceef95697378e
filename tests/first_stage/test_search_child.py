"""The search process's threads: each search gets an answer."""

import io
import os
import threading
from typing import Any

import pytest

from farrank_first_stage.search_child import SearchThreads
from farrank_lucene.frames import pack, read_frame
from farrank_lucene.heap_watch import Heap, HeapWatch


class Unspeakable(Exception):
    """An error whose formatting fails, too."""

    def __str__(self) -> str:
        raise RuntimeError("there is no message")


class FailingIndex:
    def search(self, request: Any, k: int, *, texts: bool) -> None:
        raise Unspeakable


def test_a_search_that_was_cancelled_is_answered_without_being_made() -> None:
    index: Any = FailingIndex()
    reading, writing = os.pipe()
    with open(reading, "rb") as answers, open(writing, "wb") as to_parent:
        threads = SearchThreads(
            {"it": index}, 1, to_parent, HeapWatch(Heap(in_use=lambda: 0, maximum=lambda: 1))
        )
        goes_on = threading.Event()
        threads._threads.submit(goes_on.wait, 60)
        asked = pack({"id": 7, "index": "it", "query": "q", "k": 1, "texts": True})
        threads.run(io.BytesIO(asked + pack({"cancel": 7})))
        goes_on.set()
        assert read_frame(answers) == ({"id": 7}, [])


def test_a_search_that_fails_in_an_unforeseen_way_is_answered_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    index: Any = FailingIndex()
    reading, writing = os.pipe()
    with open(reading, "rb") as answers, open(writing, "wb") as to_parent:
        heap = HeapWatch(Heap(in_use=lambda: 0, maximum=lambda: 1))
        threads = SearchThreads({"it": index}, 1, to_parent, heap)
        threads.run(io.BytesIO(pack({"id": 7, "index": "it", "query": "q", "k": 1, "texts": True})))
        assert read_frame(answers) == ({"id": 7, "error": "internal"}, [])
    (record,) = caplog.records
    assert record.message.startswith("a search was not answered: RuntimeError from Unspeakable\n")
    assert record.exc_info is None
