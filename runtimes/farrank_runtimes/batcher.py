"""One ranker's queue, and the choice of the inputs that form the next batch.

Order: every input gets a due time: its request's arrival plus the time that the device would need for the
inputs before it in the same request if it served this request alone (the virtual clock of L. Zhang, SIGCOMM
1990). Small requests pass a large one that arrived before them, yet nothing starves. No input is due before
its request arrived, so a waiting input is passed only by requests that arrived before it was due. This is the
order within an account, and among accounts that have had no more than their share. `fair_order` orders
accounts that have had more, and batch work.

Batch: the input due first always runs. If inputs are padded to the longest in their batch, inputs of similar
length join it, chosen among those due next. So batches are full, have little padding, and serve all requests.
If inputs are packed, lengths do not matter: the inputs due next join until the batch is full. Batch work does
not make interactive work wait by sharing a batch with it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, count
from typing import Generic, TypeVar

from sortedcontainers import SortedKeyList

from farrank_calls.fairness.fair_order import NOBODY, QUANTUM_S, Account, FairOrder, Rank

# The number of batches in a row that must fit before a larger one is tried again.
PATIENCE = 200

GROWTH = 1.5

# If several accounts wait, a batch is chosen among this many batches of inputs, and inputs of accounts that
# are not eligible only fill it up. With a larger choice, lengths instead of shares would decide who is
# served.
FAIR_WINDOW_BATCHES = 8

# The budget never falls below this share of the configured one: a larger lack of memory does not last.
FLOOR = 1 / 16


def longest_prefix(lengths: Sequence[int], max_tokens: int) -> int:
    """Count the inputs, in order, that fit into a batch without padding. The first one always fits."""
    return max(1, bisect_right(list(accumulate(lengths)), max_tokens))


def longest_run(lengths: Sequence[int], anchor: int, max_tokens: int, max_padding_ratio: float) -> range:
    """Find the run of neighbours in length that contains the anchor and has the most real tokens.

    `lengths` are in ascending order. A run of n inputs whose longest has l tokens costs n·l padded tokens. It
    fits when this is at most `max_tokens` and at most `max_padding_ratio` times its real tokens. The anchor
    alone always fits. A run ends only where a length ends: inputs of equal length cost no padding, so that
    the run's lower edge alone decides which of them is left out.

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


# The bound of padding unless another is configured. A divided batch has less padding than its ratio says:
# with OpenVINO's two parts, 1.2 gives 7% fewer batches, 0.3% more positions, and 1.6% more pairs per second.
PADDING_RATIO, PADDING_RATIO_IN_PARTS = 1.08, 1.2


def in_two(lengths: Sequence[int], step: int) -> list[list[int]]:
    """Divide a batch into its longest inputs and the others, so that both take about the same time.

    Each part is padded to its own longest input, and to a multiple of `step`. A single input is one part.
    Returns indices of `lengths`, those of the longest inputs first.
    """
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    if len(order) == 1:
        return [order]
    padded = [-(-lengths[place] // step) * step for place in order]

    def slower(first: int) -> int:
        return max(first * padded[0], (len(order) - first) * padded[first])

    first = min(range(1, len(order)), key=slower)
    return [order[:first], order[first:]]


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The bounds of a batch. See `config.BatchingConfig`.

    `packed`, `parts` and `length_step` say how the runtime lays inputs out (see `Capabilities`): packed, they
    lie end to end, and only `max_batch_tokens` bounds them. The bounds hold for an undivided batch.
    """

    max_batch_tokens: int
    max_padding_ratio: float
    window_batches: int
    packed: bool = False
    parts: int = 1
    length_step: int = 1

    def positions(self, tokens: Sequence[int]) -> list[int]:
        """Return the number of positions that each input of a batch takes on the device."""
        if self.packed:
            return list(tokens)
        step, found = self.length_step, [0] * len(tokens)
        parts = in_two(tokens, step) if self.parts == 2 and tokens else [range(len(tokens))]
        for part in parts:
            longest = max((tokens[place] for place in part), default=0)
            for place in part:
                found[place] = -(-longest // step) * step
        return found


class TokenBudget:
    """The number of tokens that a batch may hold, learned from batches that did not fit.

    It starts at the configured number, shrinks when a batch runs out of memory, and grows back over time.
    """

    def __init__(self, configured: int) -> None:
        self._configured = configured
        self._fitted = 0
        self.tokens = configured

    def failed(self, padded_tokens: int) -> None:
        """Set the budget to half of the failed batch."""
        self._fitted = 0
        self.tokens = max(1, round(self._configured * FLOOR), min(self.tokens, padded_tokens // 2))

    def fitted(self) -> None:
        """Count a batch that fitted. After many of them the budget grows."""
        if self.tokens == self._configured:
            return
        self._fitted += 1
        if self._fitted >= PATIENCE:
            self._fitted = 0
            self.tokens = min(self._configured, round(self.tokens * GROWTH) + 1)


@dataclass(slots=True, eq=False)
class QueueItem:
    """One encoder input in the queue. A subclass says where it belongs.

    `tokens` includes the padding inside a query. The padding costs nothing in a packed batch, but admission,
    due times and answers need one number, and a budget that holds with padding holds without it. The batcher
    sets the other fields when it receives the input.
    """

    tokens: int
    request_id: int = field(init=False, default=0)
    due_s: float = field(init=False, default=0.0)
    work_s: float = field(init=False, default=0.0)
    order: int = field(init=False, default=0)
    enqueued_s: float = field(init=False, default=0.0)


Q = TypeVar("Q", bound=QueueItem)


@dataclass(slots=True, eq=False)
class _Request:
    account: Account
    deadline_s: float
    next_due_s: float
    inputs: int = 0
    tokens: int = 0


@dataclass(slots=True, eq=False)
class _Lane:
    """The inputs of one account by due time, including inputs of closed requests.

    `waiting` counts the inputs of open requests.
    """

    account: Account
    queue: SortedKeyList
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Batch(Generic[Q]):
    """The inputs that run next, and the requests dropped because their deadline had passed."""

    items: tuple[Q, ...]
    expired: tuple[int, ...]


class Batcher(Generic[Q]):
    """The queue of one ranker. Not thread-safe; times are seconds of one clock of the caller.

    Queues that share a device share the `order` among accounts.

    Closing a request only forgets it, so that even a large request closes at once. Its inputs are removed
    when a batch is chosen from them, or when a lane holds more of such inputs than waiting ones.
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
        """Queue inputs of an open request. Inputs of a closed request are ignored."""
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
        """Forget a request, finished or abandoned. Returns how many of its inputs were still waiting."""
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
        """The input that goes next; None if no input waits."""
        found = self._first()
        return None if found is None else found[1]

    def first_key(self) -> tuple[Rank, float] | None:
        """The key that orders the queues of several rankers: the first input's rank and due time."""
        found = self._first()
        return None if found is None else (found[0], found[1].due_s)

    def take(self, now_s: float) -> Batch[Q]:
        """Remove and return the next batch. It is empty if no input waits.

        Requests found past their deadline are closed, and none of their inputs runs.
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
        """Add inputs of a request to the counts; negative numbers remove them."""
        request.inputs += inputs
        request.tokens += tokens
        self._waiting += inputs
        self.queued_tokens += tokens
        if not lane.waiting:
            self._lanes[lane.account] = lane
            self._order.begin(lane.account)
        lane.waiting += inputs
        if not lane.waiting:
            # This also drops the inputs of closed requests.
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
        """Choose the batch from the window: its first input, and the inputs that join it."""
        if not window:
            return ()
        if self.policy.packed:
            return tuple(window[: longest_prefix([item.tokens for item in window], self.budget.tokens)])
        # Among equal lengths the older inputs stand higher: a run that cannot hold all of them leaves out the
        # younger.
        by_length = sorted(window, key=lambda item: (item.tokens, -item.due_s, -item.order))
        run = longest_run(
            [item.tokens for item in by_length],
            by_length.index(window[0]),
            self.budget.tokens,
            self.policy.max_padding_ratio,
        )
        return tuple(by_length[position] for position in run)

    def _window(self, now_s: float, expired: list[int]) -> list[Q]:
        """Return the inputs that go next, among which a batch is chosen.

        They fill `window_batches` batches, or one batch if inputs are packed and there is nothing to choose.
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
                # Do not call `close`: it may rebuild the queue that this loop iterates over.
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
        """Yield all inputs in the order in which they would go, each with its account's rank at that time."""
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


def _sorted(items: Iterable[QueueItem]) -> SortedKeyList:
    return SortedKeyList(items, key=lambda item: (item.due_s, item.order))
