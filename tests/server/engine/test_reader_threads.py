"""Tokenizer threads that hang are detected, replaced and reported, and the process can still end."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from farrank_calls.errors import Internal
from farrank_calls.fairness import reader_threads
from farrank_calls.fairness.fair_order import NOBODY, Account
from farrank_calls.fairness.reader_threads import ReaderHung, ReaderThreads
from farrank_rankers.errors import ReadingStopped
from farrank_server.engine import tokenization
from farrank_server.engine.tokenization import Steps, _turn
from support.engine_bench import POISON, TEXTS, Bench, Faulty, OpenBench, scores, until


class HangingReader:
    """Hangs at poison until it is released. Reads everything else as the reader does."""

    def __init__(self, bench: Bench[Faulty]) -> None:
        self.released = threading.Event()
        # The number of threads that have reached poison.
        self.reached = 0
        reader = bench.engine.loaded["maxp"].reader
        self._steps = reader.document_steps
        reader.document_steps = self.document_steps  # type: ignore[method-assign]

    def document_steps(self, text: str, *rest: Any, **named: Any) -> Generator[int, None, Any]:
        if text == POISON:
            self.reached += 1
            self.released.wait(60)
        return self._steps(text, *rest, **named)


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenization, "TICK_S", 0.05)


@contextmanager
def short_patience() -> Iterator[None]:
    """Shorten the time after which a thread counts as hung. Only while all texts are poison."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_threads, "HANG_AFTER_S", 0.2)
        yield


async def test_a_hung_thread_costs_its_call_and_is_replaced(
    open_bench: OpenBench, wanted: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    async with open_bench() as bench:
        hanging = HangingReader(bench)
        # As many as there are threads, so that no thread is left to read.
        with short_patience():
            bad = await asyncio.gather(*(bench.rerank((POISON,)) for _ in range(2)), return_exceptions=True)
        for each in bad:
            assert isinstance(each, Internal)
            assert "a tokenizer thread has worked on one piece of text for" in each.message
        assert scores(await bench.rerank()) == pytest.approx(wanted, abs=1e-5)
        assert bench.count("farrank_tokenizer_hangs_total") == 2
        assert "tokenizer threads hang, and were replaced" in caplog.text
        assert bench.count("farrank_admitted_tokens", ranker="maxp") == 0
        assert bench.count("farrank_held_characters") == 0
        pool = bench.engine._tokenizers.pool
        assert pool.hung == 2
        assert not bench.engine.lost.is_set()
        # They return after all, and end.
        hanging.released.set()
        await until(lambda: pool.hung == 0)
        assert scores(await bench.rerank()) == pytest.approx(wanted, abs=1e-5)


async def test_a_caller_who_left_a_hung_thread_behind_gets_its_place_back(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        hanging = HangingReader(bench)
        call = asyncio.create_task(bench.rerank((POISON,)))
        await until(lambda: hanging.reached == 1)
        call.cancel()
        with short_patience():
            await until(lambda: bench.count("farrank_held_characters") == 0)
        assert bench.count("farrank_tokenizer_hangs_total") == 1
        hanging.released.set()


async def test_more_hung_threads_than_there_are_to_be_end_the_server(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        hanging = HangingReader(bench)
        with short_patience():
            bad = await asyncio.gather(*(bench.rerank((POISON,)) for _ in range(3)), return_exceptions=True)
            assert {type(each) for each in bad} == {Internal}
            await until(bench.engine.lost.is_set)
        hanging.released.set()


async def test_slow_reading_in_pieces_is_no_hang(
    open_bench: OpenBench, wanted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenization, "TICK_S", 3600.0)
    # Each piece is a turn of its own.
    monkeypatch.setattr(tokenization, "READING_TURN_S", 0.0)
    async with open_bench() as bench:
        reader, pool = bench.engine.loaded["maxp"].reader, bench.engine._tokenizers.pool
        steps = reader.document_steps

        def others_are_idle() -> bool:
            others = (each for each in pool._readers if each.thread is not threading.current_thread())
            return all(each._at is None for each in others)

        def slow(*given: Any, **named: Any) -> Generator[int, None, Any]:
            for _ in range(4):
                # A busy machine may have stopped another thread, which would seem to hang.
                while not others_are_idle():
                    time.sleep(0.001)
                # As if the thread had been observed for so long: all pieces together take longer than a hang.
                for _ in range(10):
                    assert pool.give_up_hung(1.0) == 0
                yield 0
            return (yield from steps(*given, **named))

        monkeypatch.setattr(reader, "document_steps", slow)
        assert scores(await bench.rerank(TEXTS[:1])) == pytest.approx(wanted[:1], abs=1e-5)
        assert bench.count("farrank_tokenizer_hangs_total") == 0


def test_pending_readings_are_cancelled_and_running_ones_end() -> None:
    threads, begun, go_on = ReaderThreads(1, 0.05), threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        assert go_on.wait(30)
        return 7

    first, second = threads.submit(work), threads.submit(work)
    assert begun.wait(30)
    ending = threading.Thread(target=threads.shutdown, kwargs={"cancel_futures": True})
    ending.start()
    with pytest.raises(CancelledError):
        second.result(30)
    go_on.set()
    assert first.result(30) == 7
    ending.join()
    with pytest.raises(RuntimeError, match="shut down"):
        threads.submit(work)


def test_a_result_that_comes_after_its_thread_was_given_up_is_dropped() -> None:
    threads, go_on = ReaderThreads(1, 0.05), threading.Event()
    hung: Future[bool] = threads.submit(go_on.wait, 60)
    while not threads.give_up_hung(1.0):
        pass
    with pytest.raises(ReaderHung):
        hung.result(0)
    assert threads.submit(int, "3").result(30) == 3
    go_on.set()
    threads.shutdown()
    assert threads.hung in (0, 1)
    assert isinstance(hung.exception(), ReaderHung)


def test_a_hung_thread_keeps_no_process_from_ending() -> None:
    code = (
        "import threading; from farrank_calls.fairness.reader_threads import ReaderThreads\n"
        "threads = ReaderThreads(1, 0.05); begun = threading.Event()\n"
        "threads.submit(lambda: (begun.set(), threading.Event().wait(600))); begun.wait()\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=240, check=True)


def test_one_accounts_work_waits_behind_its_own_and_not_before_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, go_on = ReaderThreads(1, 0.05), threading.Event()
    done: list[str] = []
    # Each piece takes ten milliseconds of this clock, however long the machine needs.
    monkeypatch.setattr(reader_threads, "perf_counter", lambda: len(done) * 0.01)

    def read(name: str) -> None:
        done.append(name)

    try:
        threads.submit(go_on.wait, 60)
        greedy = [threads.submit_for(Account("greedy"), partial(read, f"greedy {n}")) for n in range(60)]
        modest = [threads.submit_for(Account("modest"), partial(read, f"modest {n}")) for n in range(3)]
        go_on.set()
        for each in (*greedy, *modest):
            each.result(timeout=60)
    finally:
        go_on.set()
        threads.shutdown()
    for name, count in (("greedy", 60), ("modest", 3)):
        assert [each for each in done if each.startswith(name)] == [f"{name} {n}" for n in range(count)]
    # In the order of arrival it would be 60. By then the greedy caller is a quantum, or five turns, ahead.
    assert done.index("modest 2") < 40


async def test_when_one_thread_fails_a_call_what_another_still_reads_is_held(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slice is one document: one thread hangs in the second while another fails at the third."""
    bad = "never to be read " * 2000
    hangs = POISON * 3000
    async with open_bench() as bench:
        reader, at_it, released = bench.engine.loaded["maxp"].reader, threading.Event(), threading.Event()
        steps = reader.document_steps

        def document_steps(text: str, *rest: Any, **named: Any) -> Generator[int, None, Any]:
            if text is hangs:
                at_it.set()
                released.wait(60)
            if text is bad:
                at_it.wait(60)
                raise ZeroDivisionError("a bug")
            return (yield from steps(text, *rest, **named))

        reader.document_steps = document_steps  # type: ignore[method-assign]
        # Longer than this test on any machine.
        monkeypatch.setattr(reader_threads, "HANG_AFTER_S", 3600.0)
        with pytest.raises(ZeroDivisionError):
            await bench.rerank((TEXTS[0] * 1000, hangs, bad))
        assert bench.count("farrank_held_characters") > 0
        released.set()
        await until(lambda: bench.count("farrank_held_characters") == 0)


class Text:
    """The text of a step."""


def failing(text: Text) -> Steps[None]:
    yield
    raise ReadingStopped(f"stopped in {text}")


@contextmanager
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_a_failed_turn_without_a_waiter_keeps_nothing_of_its_call() -> None:
    """An error in a reference cycle with its future would keep the texts until a full collection."""
    text = Text()
    kept = weakref.ref(text)
    threads = ReaderThreads(1, 0.05)
    with no_collection():
        turn = threads.submit_for(NOBODY, partial(_turn, failing(text)))
        del text
        assert isinstance(await asyncio.to_thread(turn.exception, timeout=60), ReadingStopped)
        del turn
        await until(lambda: kept() is None)
    threads.shutdown()


async def test_an_error_of_a_reading_keeps_nothing_of_its_call(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        text = Text()
        kept = weakref.ref(text)
        with no_collection():
            reading = bench.engine._tokenizers._in_turns(NOBODY, failing(text))
            with pytest.raises(ReadingStopped) as raised:
                await reading
            del text, raised, reading
            await until(lambda: kept() is None)
