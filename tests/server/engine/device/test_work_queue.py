"""Messages in any order and queues that one thread owns: nothing is lost, duplicated, or run for no call."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from farrank_indexes.stored_documents import Cut
from farrank_runtimes.batcher import BatchPolicy
from farrank_server.config.schema import DepthConfig
from farrank_server.engine.admission.estimates import Speeds
from farrank_server.engine.admission.reservations import Reservation
from farrank_server.engine.call import ActiveCall, PendingDocument, QueuedInput, RerankCall, text_documents
from farrank_server.engine.device.work_queue import (
    Close,
    Inbox,
    Inputs,
    Measure,
    Message,
    Open,
    Stop,
    WorkQueue,
)
from farrank_server.engine.loaded.document_cache import KnownDocuments
from farrank_server.engine.loaded.ranker import LoadedRanker

CALLS = 5
TOKENS = 40


def make_ranker(name: str) -> LoadedRanker:
    """Make the parts of a ranker that queues use."""
    policy = BatchPolicy(max_batch_tokens=100, max_padding_ratio=1.1, window_batches=2)
    speeds, depth = Speeds.measured(1000.0), DepthConfig()
    ranker = SimpleNamespace(name=name, key=name, policy=policy, speeds=speeds, is_dual=False, depth=depth)
    return cast("LoadedRanker", ranker)


class Bench:
    """A queue of two rankers and some calls of each, on an event loop that does not run."""

    def __init__(self) -> None:
        self.rankers = [make_ranker("a"), make_ranker("b")]
        self.work = WorkQueue(self.rankers)
        self.loop = asyncio.new_event_loop()
        self.calls = [self.make_call(number) for number in range(CALLS)]

    def make_call(self, number: int, deadline_s: float = 1e9) -> ActiveCall:
        ranker = self.rankers[number % 2]
        call = RerankCall(ranker.name, "q", text_documents(["x"]), None, number * 0.01, deadline_s)
        reservation, finished = Reservation((), 0, 0, 0.0, 0.0), self.loop.create_future()
        return ActiveCall(number, call, ranker, reservation, KnownDocuments(), finished)

    def inputs(self, call: ActiveCall, count: int) -> Inputs:
        document = PendingDocument(
            call, 0, np.empty((0, 2), dtype=np.uint32), Cut(), [None] * count, count, 0
        )
        queued = [QueuedInput(TOKENS, call, None, document, n) for n in range(count)]  # type: ignore[arg-type]
        return Inputs(call, 0.0, queued, [document])

    def drain(self) -> list[QueuedInput]:
        taken: list[QueuedInput] = []
        while self.work.has_work:
            turn, late = self.work.next_work(0.0)
            assert turn is not None
            assert not late
            taken += turn.items
        return taken


steps = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, CALLS - 1)),
        st.tuples(st.integers(0, 6), st.integers(0, CALLS - 1)),
        st.tuples(st.just("close"), st.integers(0, CALLS - 1)),
        st.tuples(st.just("answered"), st.integers(0, CALLS - 1)),
        st.tuples(st.just("turn"), st.just(0)),
    ),
    max_size=50,
)


@given(steps)
def test_each_input_of_an_open_call_runs_once_in_any_order_of_messages(
    sequence: list[tuple[str | int, int]],
) -> None:
    bench = Bench()
    opened: set[int] = set()
    expected: dict[int, list[QueuedInput]] = {}
    taken: list[QueuedInput] = []
    for what, number in sequence:
        call = bench.calls[number]
        if what == "open":
            if number not in opened:
                opened.add(number)
                expected[number] = []
                bench.work.apply(Open(call))
        elif what == "close":
            bench.work.apply(Close(call))
            # A closed id is never used again.
            opened.add(number)
            expected.pop(number, None)
            taken = [each for each in taken if each.call is not call]
        elif what == "answered":
            call.finished.cancel()
            assert not bench.work.is_open(call)
        elif what == "turn":
            turn, _ = bench.work.next_work(0.0)
            taken += turn.items if turn is not None else ()
        else:
            message = bench.inputs(call, int(what))
            bench.work.apply(message)
            if number in expected:
                expected[number] += message.inputs
        bench.work.publish()
        waiting = [each for inputs in expected.values() for each in inputs if each not in taken]
        assert sum(state.tokens for state in bench.work.states.values()) == TOKENS * len(waiting)
    taken += bench.drain()
    assert sorted(map(id, taken)) == sorted(id(each) for inputs in expected.values() for each in inputs)
    bench.loop.close()


def test_late_calls_are_reported_once_and_forgotten() -> None:
    bench = Bench()
    late = bench.make_call(7, deadline_s=1.0)
    bench.work.apply(Open(late))
    bench.work.apply(bench.inputs(late, 3))
    turn, expired = bench.work.next_work(2.0)
    assert turn is not None
    assert not turn.items
    assert expired == [late]
    assert not bench.work.has_work
    assert bench.work.next_work(2.0) == (None, [])
    bench.loop.close()


def test_a_speed_that_is_doubted_twice_is_measured_once() -> None:
    bench = Bench()
    for _ in range(2):
        bench.work.apply(Measure(bench.rankers[0]))
    assert bench.work.doubted == [bench.rankers[0]]
    bench.loop.close()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(0, 3))
def test_messages_of_several_threads_arrive_once_each_and_in_each_ones_order(
    counts: list[int], pauses: int
) -> None:
    bench = Bench()
    inbox = Inbox()
    sent = [
        [Measure(make_ranker(f"{thread}/{number}")) for number in range(count)]
        for thread, count in enumerate(counts)
    ]

    def send(messages: list[Measure]) -> None:
        for number, message in enumerate(messages):
            inbox.put(message)
            if pauses and number % pauses == 0:
                time.sleep(0)

    threads = [threading.Thread(target=send, args=(messages,)) for messages in sent]
    for thread in threads:
        thread.start()
    received: list[Message] = []
    while len(received) < sum(counts):
        received += inbox.take(wait=True)
    for thread in threads:
        thread.join()
    for messages in sent:
        assert [each for each in received if each in messages] == messages
    inbox.put(Stop())
    assert inbox.peek() == inbox.take(wait=True) == [Stop()]
    bench.loop.close()


def test_a_message_without_a_wake_up_comes_with_the_next_one() -> None:
    bench, inbox, taken = Bench(), Inbox(), list[Message]()
    thread = threading.Thread(target=lambda: taken.extend(inbox.take(wait=True)))
    thread.start()
    while not inbox._changed._waiters:  # type: ignore[attr-defined]  # what threading calls them
        time.sleep(0)
    inbox.put(Open(bench.calls[0]), wakes=False)
    assert thread.is_alive()
    assert len(inbox._changed._waiters) == 1  # type: ignore[attr-defined]
    inbox.put(Stop())
    thread.join()
    assert taken == [Open(bench.calls[0]), Stop()]
    bench.loop.close()
