"""The device's work: an inbox that any thread fills, and queues that the device thread owns.

The device thread empties the inbox before each turn. Only that thread changes the queues and the progress of
calls, so they need no locks. Abandoning a call of thousands of inputs costs the event loop one message.
"""

import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from farrank_calls.fairness.fair_order import QUANTUM_S, FairOrder, Rank
from farrank_runtimes.batcher import Batcher
from farrank_server.engine.call import ActiveCall, PendingDocument, QueuedInput
from farrank_server.engine.loaded.ranker import LoadedRanker

# The room for features that calls keep between two rounds. Only families that keep a vector of each token
# come near it; a document without room is encoded again if it is read on.
MAX_ROUND_BYTES = 2**29


@dataclass(frozen=True, slots=True)
class Open:
    """Enter a call in the order."""

    call: ActiveCall


@dataclass(frozen=True, slots=True)
class Inputs:
    """Some documents of a call were read at `at_s`. A document with no missing chunk needs no encoding."""

    call: ActiveCall
    at_s: float
    inputs: Sequence[QueuedInput]
    documents: Sequence[PendingDocument]


@dataclass(frozen=True, slots=True)
class Begin:
    """A round of a call begins: inputs of these documents, by their numbers, will come.

    `kept_bytes` is the device memory of their features from earlier rounds. `is_last`: no other one follows.
    """

    call: ActiveCall
    documents: Sequence[int]
    kept_bytes: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Close:
    """The caller no longer waits for this call."""

    call: ActiveCall


@dataclass(frozen=True, slots=True)
class Measure:
    """The measured speed of a ranker is in doubt: measure it again when the device is idle."""

    ranker: LoadedRanker


@dataclass(frozen=True, slots=True)
class InTurns:
    """Work beside calls: run a step when the device is idle, and now and then when it is busy.

    `done` is set after the last step, or has the error of one.
    """

    steps: Iterator[None]
    done: Future[None]

    def end(self, error: BaseException | None = None) -> None:
        """Set the outcome, unless there is one. Any thread may call it."""
        with suppress(InvalidStateError):
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


@dataclass(frozen=True, slots=True)
class Enter:
    """Calls of this ranker may come from now on. It is loaded and warm."""

    ranker: LoadedRanker


@dataclass(frozen=True, slots=True)
class Leave:
    """No call uses this ranker any more: free it."""

    ranker: LoadedRanker


@dataclass(frozen=True, slots=True)
class Stop:
    """End after the work that is on the device now."""


Message = Open | Inputs | Begin | Close | Measure | InTurns | Enter | Leave | Stop


class Inbox:
    """Messages to the device thread, taken in the order in which they were put. Thread-safe."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._changed = threading.Condition()

    def put(self, message: Message, *, wakes: bool = True) -> None:
        """Add a message. Without `wakes` the thread finds it only when the next message wakes it."""
        with self._changed:
            self._messages.append(message)
            if wakes:
                self._changed.notify()

    def take(self, *, wait: bool) -> list[Message]:
        """Take all messages. With `wait`, block until there is at least one."""
        with self._changed:
            while wait and not self._messages:
                self._changed.wait()
            taken, self._messages = self._messages, []
        return taken

    def holds_any(self, *, within_s: float) -> bool:
        """Whether there are messages now or within this time."""
        with self._changed:
            return bool(self._messages or self._changed.wait(within_s))

    def peek(self) -> list[Message]:
        """Return the messages that were not taken yet."""
        with self._changed:
            return list(self._messages)


_AT_ONCE = Rank(-sys.maxsize, 0.0), 0.0
_NEVER = Rank(sys.maxsize, 0.0), 0.0


@dataclass(slots=True, eq=False)
class RankerQueue:
    """One ranker's inputs that wait for the device, and its documents that are ready to be scored."""

    ranker: LoadedRanker
    batcher: Batcher[QueuedInput]
    ready: list[PendingDocument] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        """Whether any input or document waits."""
        return bool(self.ready or len(self.batcher))

    def key(self) -> tuple[Rank, float]:
        """The key that orders the rankers' queues: the lowest goes first.

        Documents that need no encoding go at once: they cost almost nothing.
        """
        return _AT_ONCE if self.ready else self.batcher.first_key() or _NEVER


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """The device's next work: a batch of one ranker, or documents of that ranker that can be scored."""

    queue: RankerQueue
    items: Sequence[QueuedInput]
    ready: Sequence[PendingDocument]


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue's state as the gauges show it."""

    tokens: int = 0
    first_queued_s: float | None = None


class WorkQueue:
    """The queues of all rankers. Only `states` may be read by other threads. Times are of one clock.

    `order` is the order among accounts, for all rankers together. `started` holds the calls that have or
    had inputs on the device. `leaving` are the rankers to free. `beside` is work that takes turns with
    calls. `kept_bytes` is the device memory of the features of incomplete documents.
    """

    def __init__(self, rankers: Sequence[LoadedRanker]) -> None:
        self.order = FairOrder(QUANTUM_S)
        self.queues = {
            ranker.key: RankerQueue(ranker, Batcher(ranker.policy, self.order)) for ranker in rankers
        }
        self.leaving: list[LoadedRanker] = []
        self.doubted: list[LoadedRanker] = []
        self.beside = deque[InTurns]()
        self.started: set[ActiveCall] = set()
        self.kept_bytes = 0
        self.is_stopping = False
        # Replaced as a whole after every turn, so that any thread may read it.
        self.states = {name: QueueState() for name in self.queues}
        self._open: dict[int, ActiveCall] = {}
        # Bytes kept by this queue, by call id. They are not stored in the call, because the queue of a hung
        # thread may have counted features of the same call.
        self._kept: dict[int, int] = {}
        self._round_bytes: dict[int, int] = {}

    def apply(self, message: Message) -> None:
        """Execute a message. Inputs of a call that is not open change nothing."""
        match message:
            case Open(call):
                self._open[call.id] = call
                batcher = self.queues[call.ranker.key].batcher
                its = call.call
                batcher.open(call.id, arrival_s=its.arrival_s, deadline_s=its.deadline_s, account=its.account)
            case Inputs(call, at_s, inputs, documents):
                if call.id in self._open:
                    self._add(call, at_s, inputs)
                    for document in documents:
                        if document.missing == 0:
                            self.queues[call.ranker.key].ready += call.ready_with(document)
            case Begin(call, numbers, kept_bytes, is_last):
                if call.id in self._open:
                    call.unscored.update(numbers)
                    call.reads_on = not is_last
                    # Documents that are read no further let go of their features.
                    self._let_go(call)
                    self.count_kept(call, kept_bytes)
            case Close(call):
                self.forget(call)
            case Measure(ranker):
                if ranker.key in self.queues and ranker not in self.doubted:
                    self.doubted.append(ranker)
            case InTurns():
                self.beside.append(message)
            case Enter(ranker):
                self.queues[ranker.key] = RankerQueue(ranker, Batcher(ranker.policy, self.order))
            case Leave(ranker):
                if self.queues.pop(ranker.key, None) is not None:
                    self.leaving.append(ranker)
                self.doubted = [each for each in self.doubted if each is not ranker]
            case Stop():
                self.is_stopping = True

    def forget(self, call: ActiveCall) -> None:
        """Drop a call: none of its waiting inputs reaches the device."""
        self.started.discard(call)
        self._let_go(call)
        # The documents refer to the call. Break that cycle, or it keeps the features in memory.
        call.waiting_for_query.clear()
        if self._open.pop(call.id, None) is not None:
            self.queues[call.ranker.key].batcher.close(call.id)

    def keep_for_rounds(self, document: PendingDocument) -> None:
        """Keep the features of a scored document for the next round if there is room, or else drop them."""
        call, size = document.call, sum(each.nbytes for each in document.features if each is not None)
        if call.id not in self._open:
            return
        if sum(self._round_bytes.values()) + size <= MAX_ROUND_BYTES:
            self._round_bytes[call.id] = self._round_bytes.get(call.id, 0) + size
        else:
            self.count_kept(call, -document.kept_bytes)
            document.features, document.kept_bytes = [None] * len(document.features), 0

    def _add(self, call: ActiveCall, at_s: float, inputs: Sequence[QueuedInput]) -> None:
        per_s = call.ranker.speeds.encoding.per_s
        self.queues[call.ranker.key].batcher.add(call.id, inputs, now_s=at_s, tokens_per_s=per_s)

    def _let_go(self, call: ActiveCall) -> None:
        self.kept_bytes -= self._kept.pop(call.id, 0)
        self._round_bytes.pop(call.id, None)

    def count_kept(self, call: ActiveCall, nbytes: int) -> None:
        """Add the size of a call's features to the device's memory in use; a negative size is subtracted."""
        self._kept[call.id] = self._kept.get(call.id, 0) + nbytes
        self.kept_bytes += nbytes

    def is_open(self, call: ActiveCall) -> bool:
        """Whether the call is neither closed nor answered."""
        return call.id in self._open and call.is_wanted

    @property
    def has_work(self) -> bool:
        """Whether any queue has work."""
        return any(queue.has_work for queue in self.queues.values())

    def next_work(self, now_s: float) -> tuple[DeviceWork | None, list[ActiveCall]]:
        """Choose the next turn. Also returns the calls found past their deadline, which are now closed."""
        # All queues share one order and one clock, so their ranks and due times compare.
        queue = min(self.queues.values(), key=RankerQueue.key)
        work, late = None, list[ActiveCall]()
        if queue.ready:
            # The ready documents went first. A batch of the same ranker must not jump the queue with them.
            work = DeviceWork(queue, (), [each for each in queue.ready if self.is_open(each.call)])
            queue.ready = []
        elif queue.has_work:
            batch = queue.batcher.take(now_s)
            late = [self._open.pop(request_id) for request_id in batch.expired]
            self.started.difference_update(late)
            self.started.update(item.call for item in batch.items)
            work = DeviceWork(queue, batch.items, ())
        return work, late

    def publish(self) -> None:
        """Publish the lengths of the queues for other threads."""
        states = {}
        for name, queue in self.queues.items():
            first = queue.batcher.first()
            queued_s = None if first is None else first.enqueued_s
            states[name] = QueueState(queue.batcher.queued_tokens, queued_s)
        self.states = states
