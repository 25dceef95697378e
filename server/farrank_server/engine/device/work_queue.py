"""What the device has to do: an inbox that any thread fills, and queues that the device's thread owns.

The device's thread empties the inbox before each turn. Queues, and how far calls are, change only there: none
of it needs a lock, and giving up a call of thousands of inputs costs the event loop a message.
"""

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from farrank_server.batching.batcher import QUANTUM_S, Batcher
from farrank_server.batching.fair_order import FairOrder, Rank
from farrank_server.engine.call import ActiveCall, PendingDocument, QueuedInput
from farrank_server.engine.rankers.loaded import LoadedRanker


@dataclass(frozen=True, slots=True)
class Open:
    """A call takes its place in the order."""

    call: ActiveCall


@dataclass(frozen=True, slots=True)
class Inputs:
    """Some documents of a call were read by `at_s`; those of them that miss nothing came from the cache."""

    call: ActiveCall
    at_s: float
    inputs: Sequence[QueuedInput]
    documents: Sequence[PendingDocument]


@dataclass(frozen=True, slots=True)
class Close:
    """Nobody waits for a call any more."""

    call: ActiveCall


@dataclass(frozen=True, slots=True)
class Measure:
    """A ranker's speed is doubted: measure it when there is nothing else to do."""

    ranker: LoadedRanker


@dataclass(frozen=True, slots=True)
class Stop:
    """End after what is on the device now."""


Message = Open | Inputs | Close | Measure | Stop


class Inbox:
    """Messages to the device's thread, taken out in the order they were put in. Thread-safe."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._changed = threading.Condition()

    def put(self, message: Message, *, wakes: bool = True) -> None:
        """Leave a message; without `wakes` it is found when the next one comes."""
        with self._changed:
            self._messages.append(message)
            if wakes:
                self._changed.notify()

    def take(self, *, wait: bool) -> list[Message]:
        """Take out all messages; with `wait`, at least one."""
        with self._changed:
            while wait and not self._messages:
                self._changed.wait()
            taken, self._messages = self._messages, []
        return taken

    def holds_any(self, *, within_s: float) -> bool:
        """Whether there are messages, or one comes within this time."""
        with self._changed:
            return bool(self._messages or self._changed.wait(within_s))

    def peek(self) -> list[Message]:
        """Look at the messages that were not taken yet."""
        with self._changed:
            return list(self._messages)


_AT_ONCE = Rank(-sys.maxsize, 0.0), 0.0
_NEVER = Rank(sys.maxsize, 0.0), 0.0


@dataclass(slots=True, eq=False)
class RankerQueue:
    """One ranker's inputs that wait for the device, and its documents that wait to be scored."""

    ranker: LoadedRanker
    batcher: Batcher[QueuedInput]
    ready: list[PendingDocument] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        """Whether anything waits."""
        return bool(self.ready or len(self.batcher))

    def key(self) -> tuple[Rank, float]:
        """By what it compares with other rankers' queues: the lowest goes first.

        What needs no encoding goes at once: it costs next to nothing.
        """
        return _AT_ONCE if self.ready else self.batcher.first_key() or _NEVER


@dataclass(frozen=True, slots=True)
class Turn:
    """What the device does next: a batch of one ranker, or documents of it that can be scored."""

    queue: RankerQueue
    items: Sequence[QueuedInput]
    ready: Sequence[PendingDocument]


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as gauges show it."""

    tokens: int = 0
    first_queued_s: float | None = None


class WorkQueue:
    """All rankers' queues. Belongs to the device's thread, except for `states`; times are of one clock.

    `order` is that among the accounts of callers, for all rankers together. `started`: the calls that have
    something on the device, or had. `kept_bytes`: what features of incomplete documents take of the device's
    memory.
    """

    def __init__(self, rankers: Sequence[LoadedRanker]) -> None:
        self.order = FairOrder(QUANTUM_S)
        self.queues = {
            ranker.name: RankerQueue(ranker, Batcher(ranker.policy, self.order)) for ranker in rankers
        }
        self.doubted: list[LoadedRanker] = []
        self.started: set[ActiveCall] = set()
        self.kept_bytes = 0
        self.is_stopping = False
        # Replaced as a whole after every turn: any thread may read it.
        self.states = {name: QueueState() for name in self.queues}
        self._open: dict[int, ActiveCall] = {}
        # By call. Not the call's own: it may have been kept by another queue, whose thread has hung.
        self._kept: dict[int, int] = {}

    def apply(self, message: Message) -> None:
        """Do what a message says. Messages of a call that is not open change nothing."""
        match message:
            case Open(call):
                self._open[call.id] = call
                batcher = self.queues[call.ranker.name].batcher
                its = call.call
                batcher.open(call.id, arrival_s=its.arrival_s, deadline_s=its.deadline_s, account=its.account)
            case Inputs(call, at_s, inputs, documents):
                if call.id in self._open:
                    queue, per_s = self.queues[call.ranker.name], call.ranker.speeds.encoding.per_s
                    queue.batcher.add(call.id, inputs, now_s=at_s, tokens_per_s=per_s)
                    for document in documents:
                        if document.missing == 0:
                            queue.ready += call.ready_with(document)
            case Close(call):
                self.forget(call)
            case Measure(ranker):
                if ranker not in self.doubted:
                    self.doubted.append(ranker)
            case Stop():
                self.is_stopping = True

    def forget(self, call: ActiveCall) -> None:
        """Let nothing more of a call reach the device."""
        self.started.discard(call)
        self.kept_bytes -= self._kept.pop(call.id, 0)
        # They know their call: the two would keep each other, and features with them.
        call.waiting_for_query.clear()
        if self._open.pop(call.id, None) is not None:
            self.queues[call.ranker.name].batcher.close(call.id)

    def count_kept(self, call: ActiveCall, nbytes: int) -> None:
        """Count features of a call into the device's memory, or (negative) out of it."""
        self._kept[call.id] = self._kept.get(call.id, 0) + nbytes
        self.kept_bytes += nbytes

    def is_open(self, call: ActiveCall) -> bool:
        """Whether a call was neither closed nor answered."""
        return call.id in self._open and call.is_wanted

    @property
    def has_work(self) -> bool:
        """Whether anything waits."""
        return any(queue.has_work for queue in self.queues.values())

    def next_turn(self, now_s: float) -> tuple[Turn | None, list[ActiveCall]]:
        """Choose what goes next, and say which calls were found past their deadline; they are closed."""
        # Ranks are of one order, and due times of all rankers are times of one clock.
        queue = min(self.queues.values(), key=RankerQueue.key)
        turn, late = None, list[ActiveCall]()
        if queue.ready:
            # What is ready jumped the queue; a batch of the same ranker must not do so with it.
            turn = Turn(queue, (), [each for each in queue.ready if self.is_open(each.call)])
            queue.ready = []
        elif queue.has_work:
            batch = queue.batcher.take(now_s)
            late = [self._open.pop(request_id) for request_id in batch.expired]
            self.started.difference_update(late)
            self.started.update(item.call for item in batch.items)
            turn = Turn(queue, batch.items, ())
        return turn, late

    def publish(self) -> None:
        """Show other threads how long the queues are."""
        states = {}
        for name, queue in self.queues.items():
            first = queue.batcher.first()
            queued_s = None if first is None else first.enqueued_s
            states[name] = QueueState(queue.batcher.queued_tokens, queued_s)
        self.states = states
