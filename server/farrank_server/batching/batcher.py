"""One ranker's queue, and which of its inputs form the next batch.

Order: every input gets a due time, its request's arrival plus the time the device would need for the
inputs before it in the same request, had the request the device to itself (the virtual clock of L. Zhang,
SIGCOMM 1990). Small requests pass a large one that arrived before them, yet nothing starves: no input is
due before its request arrived, so what waits is overtaken only by requests that arrived before it was due.

Batch: the input due first always goes. Where inputs are padded to their longest companion, others of like
length keep it company, chosen among the inputs due next, so that batches are full, hardly padded, and
shared by all requests. Where they are packed, lengths may differ as they like: those due next go along,
until the batch is full.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import Generic, TypeVar

from sortedcontainers import SortedKeyList

# Batches in a row that fitted, before a larger one is tried again.
PATIENCE = 200

GROWTH = 1.5

# What is below this share of the configured budget is no lasting want of memory but a moment's.
FLOOR = 1 / 16


def longest_prefix(lengths: Sequence[int], max_tokens: int) -> int:
    """Count the inputs that a batch without padding holds when they go in their order; one always fits."""
    return max(1, bisect_right(list(accumulate(lengths)), max_tokens))


def longest_run(lengths: Sequence[int], anchor: int, max_tokens: int, max_padding_ratio: float) -> range:
    """Find the run of neighbours in length that holds the anchor and the most real tokens.

    `lengths` ascend. A run of n inputs whose longest has l tokens costs n·l padded tokens; it fits when
    that is at most `max_tokens` and at most `max_padding_ratio` times its real tokens. The anchor alone
    always fits. A run ends only where a length ends: inputs of equal length cost no padding, so which of
    them is left out is decided at the run's lower edge alone.

    Returns the run as positions in `lengths`.
    """
    sums = [0, *accumulate(lengths)]
    best = range(anchor, anchor + 1)
    best_tokens = lengths[anchor]
    end = bisect_right(lengths, lengths[anchor])
    while True:
        longest = lengths[end - 1]
        lowest = max(0, end - max_tokens // longest)
        if lowest > anchor:
            return best
        # A run that starts lower has a smaller mean length, so its padding only grows: bisect for the
        # lowest start that keeps the ratio. It may lie above the anchor, and below it for a longer run.
        start = bisect_left(
            range(end),
            True,
            lo=lowest,
            key=lambda i: (end - i) * longest <= max_padding_ratio * (sums[end] - sums[i]),
        )
        if start <= anchor and sums[end] - sums[start] > best_tokens:
            best, best_tokens = range(start, end), sums[end] - sums[start]
        if end == len(lengths):
            return best
        end = bisect_right(lengths, lengths[end], lo=end)


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Bounds of a batch. See `config.BatchingConfig`.

    `packed`: inputs lie end to end on the device, and only `max_batch_tokens` bounds them.
    """

    max_batch_tokens: int
    max_padding_ratio: float
    window_batches: int
    packed: bool = False

    def positions(self, tokens: Sequence[int]) -> list[int]:
        """Say how many positions each input of a batch takes on the device."""
        return list(tokens) if self.packed else [max(tokens, default=0)] * len(tokens)


class TokenBudget:
    """How many tokens a batch may hold, learned from batches that did not fit.

    Starts at what was configured, shrinks when a batch runs out of memory, and grows back in time.
    """

    def __init__(self, configured: int) -> None:
        self._configured = configured
        self._fitted = 0
        self.tokens = configured

    def failed(self, padded_tokens: int) -> None:
        """Halve what failed, for the batches to come."""
        self._fitted = 0
        self.tokens = max(1, round(self._configured * FLOOR), min(self.tokens, padded_tokens // 2))

    def fitted(self) -> None:
        """Count a batch that ran; after many of them, dare more."""
        if self.tokens == self._configured:
            return
        self._fitted += 1
        if self._fitted >= PATIENCE:
            self._fitted = 0
            self.tokens = min(self._configured, round(self.tokens * GROWTH) + 1)


@dataclass(slots=True, eq=False)
class Queued:
    """One encoder input in the queue; whoever queues it derives a class that says what it belongs to.

    `tokens` counts the padding inside a query, too. Packed it costs nothing, but what admission, due times
    and callers are told is one number, and a budget held with it is held without. The batcher sets the other
    fields when it takes the input in.
    """

    tokens: int
    request_id: int = field(init=False, default=0)
    due_s: float = field(init=False, default=0.0)
    order: int = field(init=False, default=0)
    enqueued_s: float = field(init=False, default=0.0)


Q = TypeVar("Q", bound=Queued)


@dataclass(slots=True, eq=False)
class _Request:
    deadline_s: float
    next_due_s: float
    inputs: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Batch(Generic[Q]):
    """What runs next, and which requests were dropped because their deadline had passed."""

    items: tuple[Q, ...]
    expired: tuple[int, ...]


class Batcher(Generic[Q]):
    """The queue of one ranker. Not thread-safe; times are seconds of one clock of the caller's.

    Closing a request only forgets it. Its inputs are left where they are until a batch is formed there, or
    until more are left over than wait: a large request is so given up at once.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self.budget = TokenBudget(policy.max_batch_tokens)
        self.queued_tokens = 0
        self._waiting = 0
        self._queue = _sorted([])
        self._requests: dict[int, _Request] = {}
        self._order = count()

    def __len__(self) -> int:
        return self._waiting

    def open(self, request_id: int, *, arrival_s: float, deadline_s: float) -> None:
        """Announce a request, so that inputs added to it in parts keep one place in the order."""
        self._requests[request_id] = _Request(deadline_s, arrival_s)

    def add(self, request_id: int, inputs: Iterable[Q], *, now_s: float, tokens_per_s: float) -> None:
        """Queue inputs of an open request; of a request no longer open, nothing."""
        request = self._requests.get(request_id)
        if request is None:
            return
        for item in inputs:
            item.request_id, item.order = request_id, next(self._order)
            item.due_s, item.enqueued_s = request.next_due_s, now_s
            request.next_due_s += item.tokens / tokens_per_s
            self._queue.add(item)
            self._count(request, 1, item.tokens)

    def close(self, request_id: int) -> int:
        """Forget a request, finished or abandoned. Returns how many inputs were still waiting."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return 0
        left = request.inputs
        self._count(request, -left, -request.tokens)
        if len(self._queue) > 2 * self._waiting + 64:
            self._queue = _sorted(item for item in self._queue if item.request_id in self._requests)
        return left

    def first(self) -> Q | None:
        """The input that is due first, None when nothing waits: queues of several rankers compare by it."""
        while self._queue and self._queue[0].request_id not in self._requests:
            self._queue.pop(0)
        first: Q | None = self._queue[0] if self._queue else None
        return first

    def take(self, now_s: float) -> Batch[Q]:
        """Remove and return the next batch; empty when nothing waits.

        Requests found past their deadline are closed, none of their inputs runs.
        """
        expired: list[int] = []
        items = self._grouped(self._window(now_s, expired))
        for item in items:
            self._queue.remove(item)
            self._count(self._requests[item.request_id], -1, -item.tokens)
        return Batch(items, tuple(expired))

    def _count(self, request: _Request, inputs: int, tokens: int) -> None:
        """Count inputs of a request in, or (negative) out."""
        request.inputs += inputs
        request.tokens += tokens
        self._waiting += inputs
        self.queued_tokens += tokens

    def _grouped(self, window: list[Q]) -> tuple[Q, ...]:
        """Choose the batch: the first of the window, and those that go with it."""
        if not window:
            return ()
        if self.policy.packed:
            return tuple(window[: longest_prefix([item.tokens for item in window], self.budget.tokens)])
        # Among equals the older stands higher: a run that cannot hold all of them leaves out the younger.
        by_length = sorted(window, key=lambda item: (item.tokens, -item.due_s, -item.order))
        run = longest_run(
            [item.tokens for item in by_length],
            by_length.index(window[0]),
            self.budget.tokens,
            self.policy.max_padding_ratio,
        )
        return tuple(by_length[position] for position in run)

    def _window(self, now_s: float, expired: list[int]) -> list[Q]:
        """The inputs due first: a batch is chosen among so many.

        Those that fill `window_batches` batches; packed, where there is nothing to choose, one.
        """
        window: list[Q] = []
        left_over: list[Q] = []
        room = self.policy.max_batch_tokens * (1 if self.policy.packed else self.policy.window_batches)
        for item in self._queue:
            request = self._requests.get(item.request_id)
            if request is not None and request.deadline_s <= now_s:
                # Not `close`, which may sweep the queue: it is being walked through.
                expired.append(item.request_id)
                del self._requests[item.request_id]
                self._count(request, -request.inputs, -request.tokens)
                request = None
            if request is None:
                left_over.append(item)
                continue
            window.append(item)
            room -= item.tokens
            if room <= 0:
                break
        for item in left_over:
            self._queue.remove(item)
        return window


def _sorted(items: Iterable[Queued]) -> SortedKeyList:
    return SortedKeyList(items, key=lambda item: (item.due_s, item.order))
