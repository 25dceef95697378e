"""One ranker's queue, and which of its inputs form the next batch.

Order: every input gets a due time, its request's arrival plus the time the device would need for the
inputs before it in the same request, had the request the device to itself (the virtual clock of L. Zhang,
SIGCOMM 1990). Small requests pass a large one that arrived before them, yet nothing starves: no input is
due before its request arrived, so what waits is overtaken only by requests that arrived before it was due.
That is the order within an account, and among accounts none of which had more than its share; the accounts
of several callers, and what can wait, are ordered by `fair_order`.

Batch: the input due first always goes. Where inputs are padded to their longest companion, others of like
length keep it company, chosen among the inputs due next, so that batches are full, hardly padded, and
shared by all requests. Where they are packed, lengths may differ as they like: those due next go along,
until the batch is full. Work that can wait does not make interactive work wait in one batch with it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, count
from typing import Generic, TypeVar

from sortedcontainers import SortedKeyList

from farrank_server.batching.fair_order import NOBODY, Account, FairOrder, Rank

# Batches in a row that fitted, before a larger one is tried again.
PATIENCE = 200

GROWTH = 1.5

# How far an account may be ahead of its share, in seconds of the device's work. Most calls take less: these
# are not interrupted.
QUANTUM_S = 0.5

# Where several accounts wait, a batch is chosen among so many, and what is not eligible joins only to fill
# one: of more to choose from, lengths and not shares would decide who goes.
FAIR_WINDOW_BATCHES = 8

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
    work_s: float = field(init=False, default=0.0)
    order: int = field(init=False, default=0)
    enqueued_s: float = field(init=False, default=0.0)


Q = TypeVar("Q", bound=Queued)


@dataclass(slots=True, eq=False)
class _Request:
    account: Account
    deadline_s: float
    next_due_s: float
    inputs: int = 0
    tokens: int = 0


@dataclass(slots=True, eq=False)
class _Lane:
    """The inputs of one account by their due times, some left over of requests that were closed.

    `waiting` counts those that are not.
    """

    account: Account
    queue: SortedKeyList
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Batch(Generic[Q]):
    """What runs next, and which requests were dropped because their deadline had passed."""

    items: tuple[Q, ...]
    expired: tuple[int, ...]


class Batcher(Generic[Q]):
    """The queue of one ranker. Not thread-safe; times are seconds of one clock of the caller's.

    Queues that share a device share the `order` among accounts.

    Closing a request only forgets it. Its inputs are left where they are until a batch is formed there, or
    until more are left over than wait: a large request is so given up at once.
    """

    def __init__(self, policy: BatchPolicy, order: FairOrder | None = None) -> None:
        self.policy = policy
        self.budget = TokenBudget(policy.max_batch_tokens)
        self.queued_tokens = 0
        self._waiting = 0
        self._order = FairOrder(QUANTUM_S) if order is None else order
        self._lanes: dict[Account, _Lane] = {}
        self._requests: dict[int, _Request] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return self._waiting

    def open(
        self, request_id: int, *, arrival_s: float, deadline_s: float, account: Account = NOBODY
    ) -> None:
        """Announce a request, so that inputs added to it in parts keep one place in the order."""
        self._requests[request_id] = _Request(account, deadline_s, arrival_s)

    def add(self, request_id: int, inputs: Iterable[Q], *, now_s: float, tokens_per_s: float) -> None:
        """Queue inputs of an open request; of a request no longer open, nothing."""
        request = self._requests.get(request_id)
        if request is None:
            return
        lane = self._lanes.get(request.account) or _Lane(request.account, _sorted([]))
        for item in inputs:
            item.request_id, item.order = request_id, next(self._numbers)
            item.due_s, item.enqueued_s = request.next_due_s, now_s
            item.work_s = item.tokens / tokens_per_s
            request.next_due_s += item.work_s
            lane.queue.add(item)
            self._count(request, lane, 1, item.tokens)

    def close(self, request_id: int) -> int:
        """Forget a request, finished or abandoned. Returns how many inputs were still waiting."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return 0
        left = request.inputs
        lane = self._lanes.get(request.account)
        if left and lane is not None:
            self._count(request, lane, -left, -request.tokens)
            if len(lane.queue) > 2 * lane.waiting + 64:
                lane.queue = _sorted(item for item in lane.queue if item.request_id in self._requests)
        return left

    def first(self) -> Q | None:
        """The input that goes next, None when nothing waits."""
        found = self._first()
        return None if found is None else found[1]

    def first_key(self) -> tuple[Rank, float] | None:
        """By what queues of several rankers compare: the first input's rank and due time."""
        found = self._first()
        return None if found is None else (found[0], found[1].due_s)

    def take(self, now_s: float) -> Batch[Q]:
        """Remove and return the next batch; empty when nothing waits.

        Requests found past their deadline are closed, none of their inputs runs.
        """
        expired: list[int] = []
        items = self._grouped(self._window(now_s, expired))
        for item in items:
            request = self._requests[item.request_id]
            lane = self._lanes[request.account]
            lane.queue.remove(item)
            self._order.charge(request.account, item.work_s)
            self._count(request, lane, -1, -item.tokens)
        return Batch(items, tuple(expired))

    def _count(self, request: _Request, lane: _Lane, inputs: int, tokens: int) -> None:
        """Count inputs of a request in, or (negative) out."""
        request.inputs += inputs
        request.tokens += tokens
        self._waiting += inputs
        self.queued_tokens += tokens
        if not lane.waiting:
            self._lanes[lane.account] = lane
            self._order.begin(lane.account)
        lane.waiting += inputs
        if not lane.waiting:
            # What is left over goes with it.
            del self._lanes[lane.account]
            self._order.end(lane.account)

    def _first(self) -> tuple[Rank, Q] | None:
        best: tuple[Rank, Q] | None = None
        for lane in self._lanes.values():
            while lane.queue[0].request_id not in self._requests:
                lane.queue.pop(0)
            rank, head = self._order.rank(lane.account), lane.queue[0]
            if best is None or (rank, head.due_s, head.order) < (best[0], best[1].due_s, best[1].order):
                best = rank, head
        return best

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
        """The inputs that go next: a batch is chosen among so many.

        Those that fill `window_batches` batches; packed, where there is nothing to choose, one.
        """
        window: list[Q] = []
        left_over: list[tuple[_Lane, Q]] = []
        tokens, one_batch = 0, self.policy.max_batch_tokens
        batches = 1 if self.policy.packed else self.policy.window_batches
        if len(self._lanes) > 1:
            batches = min(batches, FAIR_WINDOW_BATCHES)
        level: int | None = None
        for rank, lane, item in self._in_order():
            request = self._requests.get(item.request_id)
            if request is not None and request.deadline_s <= now_s:
                # Not `close`, which may sweep the queue: it is being walked through.
                expired.append(item.request_id)
                del self._requests[item.request_id]
                self._count(request, lane, -request.inputs, -request.tokens)
                request = None
            if request is None:
                left_over.append((lane, item))
                continue
            level = rank.level if level is None else level
            if rank.level != level or (rank.ahead_at_s and tokens >= one_batch):
                break
            window.append(item)
            tokens += item.tokens
            if tokens >= batches * one_batch:
                break
        for lane, item in left_over:
            if self._lanes.get(lane.account) is lane:
                lane.queue.remove(item)
        return window

    def _in_order(self) -> Iterator[tuple[Rank, _Lane, Q]]:
        """All inputs as they would go one by one, each with its account's rank then."""
        if len(self._lanes) == 1:
            (lane,) = self._lanes.values()
            rank = self._order.rank(lane.account)
            for item in lane.queue:
                yield rank, lane, item
            return
        heap: list[tuple[Rank, float, int, Q, _Lane, Iterator[Q], float]] = []
        for lane in self._lanes.values():
            rest = iter(lane.queue)
            item = next(rest)
            heap.append((self._order.rank(lane.account), item.due_s, item.order, item, lane, rest, 0.0))
        heapify(heap)
        while heap:
            rank, _, _, item, lane, rest, taken_s = heap[0]
            yield rank, lane, item
            if item.request_id in self._requests:
                taken_s += item.work_s
            following = next(rest, None)
            if following is None:
                heappop(heap)
                continue
            rank = self._order.rank(lane.account, taken_s)
            heapreplace(heap, (rank, following.due_s, following.order, following, lane, rest, taken_s))


def _sorted(items: Iterable[Queued]) -> SortedKeyList:
    return SortedKeyList(items, key=lambda item: (item.due_s, item.order))
