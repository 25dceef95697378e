import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_runtimes.batcher import Batch, Batcher, BatchPolicy, QueueItem, longest_prefix, longest_run

BUDGET = 1024
RATIO = 1.1
RATE = 1000.0
FOREVER = 1e9


@dataclass(slots=True, eq=False)
class Named(QueueItem):
    name: str


lengths = st.integers(1, 512)
requests = st.lists(st.lists(lengths, min_size=1, max_size=30), min_size=1, max_size=12)

padded_and_packed = pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])


def make_batcher(budget: int = BUDGET, window: int = 8, *, packed: bool = False) -> Batcher[Named]:
    return Batcher(BatchPolicy(budget, RATIO, window, packed))


def submit(
    batcher: Batcher[Named],
    request_id: int,
    tokens: list[int],
    *,
    now_s: float = 0.0,
    deadline_s: float = FOREVER,
) -> None:
    batcher.open(request_id, arrival_s=now_s, deadline_s=deadline_s)
    inputs = [Named(length, f"{request_id}:{i}") for i, length in enumerate(tokens)]
    batcher.add(request_id, inputs, now_s=now_s, tokens_per_s=RATE)


def padded_tokens(batcher: Batcher[Named], batch: Batch[Named]) -> int:
    """Return the positions that the device computes."""
    return sum(batcher.policy.positions([item.tokens for item in batch.items]))


def drain(batcher: Batcher[Named], now_s: float = 0.0) -> list[Batch[Named]]:
    batches = []
    while batcher:
        batches.append(batcher.take(now_s))
    return batches


@padded_and_packed
@given(requests)
def test_nothing_is_lost_or_doubled(packed: bool, many: list[list[int]]) -> None:
    batcher = make_batcher(packed=packed)
    for request_id, tokens in enumerate(many):
        submit(batcher, request_id, tokens)
    taken = Counter(item.name for batch in drain(batcher) for item in batch.items)
    expected = [f"{r}:{i}" for r, tokens in enumerate(many) for i in range(len(tokens))]
    assert taken == Counter(expected)
    assert batcher.queued_tokens == 0


@padded_and_packed
@given(requests, st.integers(512, 4096))
def test_budget_and_padding_are_bounded(packed: bool, many: list[list[int]], budget: int) -> None:
    batcher = make_batcher(budget, packed=packed)
    for request_id, tokens in enumerate(many):
        submit(batcher, request_id, tokens)
    for batch in drain(batcher):
        assert batch.items
        assert padded_tokens(batcher, batch) <= budget
        real_tokens = sum(item.tokens for item in batch.items)
        assert padded_tokens(batcher, batch) <= (1 if packed else RATIO) * real_tokens


@padded_and_packed
@given(requests)
def test_the_input_due_first_always_goes(packed: bool, many: list[list[int]]) -> None:
    batcher = make_batcher(packed=packed)
    for request_id, tokens in enumerate(many):
        submit(batcher, request_id, tokens, now_s=request_id * 0.01)
    while batcher:
        first = batcher.first()
        assert first in batcher.take(1.0).items


@padded_and_packed
@given(requests)
def test_among_equals_the_older_is_never_left_behind(packed: bool, many: list[list[int]]) -> None:
    batcher = make_batcher(packed=packed)
    for request_id, tokens in enumerate(many):
        submit(batcher, request_id, tokens)
    last_of_length: dict[int, tuple[float, int]] = {}
    for batch in drain(batcher):
        taken: dict[int, list[tuple[float, int]]] = {}
        for item in batch.items:
            taken.setdefault(item.tokens, []).append((item.due_s, item.order))
        for length, keys in taken.items():
            assert min(keys) >= last_of_length.get(length, (-1.0, -1))
            last_of_length[length] = max(keys)


@padded_and_packed
@given(requests, st.data())
def test_closed_requests_never_run(packed: bool, many: list[list[int]], data: st.DataObject) -> None:
    batcher = make_batcher(packed=packed)
    for request_id, tokens in enumerate(many):
        submit(batcher, request_id, tokens)
    gone = data.draw(st.sets(st.integers(0, len(many) - 1)))
    for request_id in gone:
        assert batcher.close(request_id) == len(many[request_id])
    assert batcher.queued_tokens == sum(sum(t) for r, t in enumerate(many) if r not in gone)
    assert not gone & {item.request_id for batch in drain(batcher) for item in batch.items}


@padded_and_packed
@given(requests, st.data())
def test_late_requests_never_run_and_are_reported_once(
    packed: bool, many: list[list[int]], data: st.DataObject
) -> None:
    batcher = make_batcher(packed=packed)
    late = data.draw(st.sets(st.integers(0, len(many) - 1)))
    for request_id, tokens in enumerate(many):
        submit(batcher, request_id, tokens, deadline_s=1.0 if request_id in late else FOREVER)
    batches = drain(batcher, now_s=2.0)
    assert not late & {item.request_id for batch in batches for item in batch.items}
    assert sorted(r for batch in batches for r in batch.expired) == sorted(late)


@given(requests, st.integers(1, 2048))
def test_packed_batches_are_the_queue_cut_where_the_budget_is_full(
    many: list[list[int]], budget: int
) -> None:
    batcher = make_batcher(budget, packed=True)
    for request_id, tokens in enumerate(many):
        submit(batcher, request_id, tokens, now_s=request_id * 0.01)
    batches = drain(batcher)
    order = [(item.due_s, item.order) for batch in batches for item in batch.items]
    assert order == sorted(order)
    for batch, following in pairwise(batches):
        # The batch is full: the next input would not have fitted. A single input may exceed the budget.
        assert padded_tokens(batcher, batch) + following.items[0].tokens > budget
        assert padded_tokens(batcher, batch) <= budget or len(batch.items) == 1


@padded_and_packed
def test_a_small_request_passes_a_large_one(packed: bool) -> None:
    batcher = make_batcher(packed=packed)
    submit(batcher, 0, [256] * 1000)
    submit(batcher, 1, [250] * 5, now_s=1.0)
    batches_until_done, left = 0, 5
    while left:
        batches_until_done += 1
        left -= sum(item.request_id == 1 for item in batcher.take(1.0).items)
    # Some 1,000 tokens of the large request were due in its first second. The small request waits for those,
    # not for the other 255,000.
    assert batches_until_done <= 4


@padded_and_packed
def test_a_large_request_does_not_starve_under_a_stream_of_small_ones(packed: bool) -> None:
    batcher = make_batcher(packed=packed)
    submit(batcher, 0, [500] * 40)
    now_s, done = 0.0, 0
    for request_id in range(1, 400):
        submit(batcher, request_id, [500, 500], now_s=now_s)
        batch = batcher.take(now_s)
        done += sum(item.request_id == 0 for item in batch.items)
        # The device serves exactly the arriving work, at the rate that the due times assume.
        now_s += padded_tokens(batcher, batch) / RATE
        if done == 40:
            break
    # Alone it needs 20 s. It also ends while it shares with a stream that could occupy the whole device.
    assert done == 40
    assert now_s < 100


def test_inputs_added_in_parts_keep_the_requests_place() -> None:
    batcher = make_batcher(budget=512)
    batcher.open(0, arrival_s=0.0, deadline_s=FOREVER)
    submit(batcher, 1, [400], now_s=1.0)
    batcher.add(0, [Named(400, "late part")], now_s=2.0, tokens_per_s=RATE)
    assert [item.name for item in batcher.take(2.0).items] == ["late part"]


def test_inputs_of_a_closed_request_are_refused() -> None:
    batcher = make_batcher()
    batcher.open(0, arrival_s=0.0, deadline_s=FOREVER)
    batcher.close(0)
    batcher.add(0, [Named(10, "x")], now_s=0.0, tokens_per_s=RATE)
    assert len(batcher) == 0


@padded_and_packed
def test_a_smaller_budget_holds_from_the_next_batch_on(packed: bool) -> None:
    batcher = make_batcher(packed=packed)
    submit(batcher, 0, [100] * 30)
    assert padded_tokens(batcher, batcher.take(0.0)) == 1000
    batcher.budget.failed(600)
    assert padded_tokens(batcher, batcher.take(0.0)) == 300


@given(st.lists(lengths, min_size=1, max_size=60), st.integers(1, 4096))
def test_longest_prefix_ends_where_the_next_one_would_not_fit(values: list[int], budget: int) -> None:
    count = longest_prefix(values, budget)
    assert count == 1 or sum(values[:count]) <= budget
    assert count == len(values) or sum(values[: count + 1]) > budget


@given(st.lists(lengths, min_size=1, max_size=60), st.data())
def test_longest_run_is_the_best_of_all_runs(values: list[int], data: st.DataObject) -> None:
    ordered = sorted(values)
    anchor = data.draw(st.integers(0, len(ordered) - 1))
    run = longest_run(ordered, anchor, BUDGET, RATIO)
    assert anchor in run

    def fits(start: int, end: int) -> bool:
        padded = (end - start) * ordered[end - 1]
        return padded <= BUDGET and padded <= RATIO * sum(ordered[start:end])

    ends = [
        e for e in range(anchor + 1, len(ordered) + 1) if e == len(ordered) or ordered[e] > ordered[e - 1]
    ]
    best = max(
        (sum(ordered[s:e]) for e in ends for s in range(anchor + 1) if fits(s, e)), default=ordered[anchor]
    )
    assert sum(ordered[i] for i in run) == best


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 5), st.lists(lengths, max_size=40)),
        st.tuples(st.just("close"), st.integers(0, 5), st.just([])),
        st.tuples(st.just("take"), st.just(0), st.just([])),
    ),
    max_size=60,
)


@padded_and_packed
@given(operations)
def test_counts_hold_after_any_sequence_of_calls(
    packed: bool, sequence: list[tuple[str, int, list[int]]]
) -> None:
    batcher = make_batcher(packed=packed)
    waiting: dict[int, list[int]] = {}
    for number, (what, request_id, tokens) in enumerate(sequence):
        if what == "add":
            if request_id not in waiting:
                batcher.open(request_id, arrival_s=number * 0.01, deadline_s=FOREVER)
            waiting.setdefault(request_id, []).extend(tokens)
            inputs = [Named(length, str(request_id)) for length in tokens]
            batcher.add(request_id, inputs, now_s=0.0, tokens_per_s=RATE)
        elif what == "close":
            assert batcher.close(request_id) == len(waiting.pop(request_id, []))
        else:
            for item in batcher.take(0.0).items:
                waiting[item.request_id].remove(item.tokens)
        assert len(batcher) == sum(map(len, waiting.values()))
        assert batcher.queued_tokens == sum(map(sum, waiting.values()))
        assert (batcher.first() is None) == (len(batcher) == 0)


def test_giving_up_a_large_request_takes_no_more_steps_than_a_small_one() -> None:
    steps = []
    for inputs in (13, 13_000):
        batcher = make_batcher()
        submit(batcher, 0, [20] * inputs)
        submit(batcher, 1, [20] * inputs)
        steps.append(lines_run(partial(batcher.close, 0)))
        assert len(batcher) == inputs
        assert {item.request_id for item in batcher.take(0.0).items} == {1}
    assert steps[0] == steps[1]


def lines_run(work: Callable[[], object]) -> int:
    """Count the executed lines of Python: a measure of work that does not depend on the machine's load."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines
