"""Shares among callers: differences are bounded, nothing starves, and a single caller has everything."""

from collections import Counter, deque
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farrank_calls.fairness.fair_order import (
    BATCH_PART,
    LINGERS,
    NOBODY,
    Account,
    CallPriority,
    FairOrder,
    FairShares,
)
from farrank_runtimes.batcher import Batcher, BatchPolicy, QueueItem

QUANTUM_S = 1.0
FOREVER = 1e9
TOKENS_PER_S = 100.0


@dataclass(slots=True, eq=False)
class Owned(QueueItem):
    account: Account


class Stage:
    """Serves one piece of work after another in the fair order. Accounts have unlimited work."""

    def __init__(self, *accounts: Account) -> None:
        self.order = FairOrder(QUANTUM_S)
        self.had_s = Counter[Account]()
        self.waiting = dict.fromkeys(accounts, 0)
        for account in accounts:
            self.order.begin(account)

    def serve(self, work_s: float) -> Account:
        """Serve the first account in the order. Among equal ranks it is the one that came first."""
        self.waiting = {each: since + 1 for each, since in self.waiting.items()}
        account = min(self.waiting, key=lambda each: (self.order.rank(each), -self.waiting[each]))
        self.waiting[account] = 0
        self.order.charge(account, work_s)
        self.had_s[account] += work_s  # type: ignore[assignment]
        return account

    def come(self, account: Account) -> None:
        self.waiting[account] = 0
        self.order.begin(account)

    def leave(self, account: Account) -> None:
        del self.waiting[account]
        self.order.end(account)


works = st.lists(st.floats(0.01, 1.0), min_size=50, max_size=300)
weights = st.lists(st.floats(0.1, 10.0), min_size=2, max_size=6)


@given(works, weights)
def test_accounts_that_always_want_something_have_it_by_their_weights(
    pieces: list[float], many: list[float]
) -> None:
    stage = Stage(*(Account(str(number), weight) for number, weight in enumerate(many)))
    for work_s in pieces:
        stage.serve(work_s)
        virtual = [stage.had_s[each] / each.weight for each in stage.waiting]
        ideal = sum(stage.had_s.values()) / sum(many)
        # No account is ahead by more than a quantum and the piece that exceeded it.
        for each, reached in zip(stage.waiting, virtual, strict=True):
            assert reached <= ideal + QUANTUM_S + 1.0 / each.weight + 1e-6


@given(works)
def test_one_account_alone_is_never_ahead(pieces: list[float]) -> None:
    stage = Stage(NOBODY)
    for work_s in pieces:
        stage.serve(work_s)
        assert stage.order.rank(NOBODY) == (0, 0.0)
        assert stage.order.shares[CallPriority.INTERACTIVE].progress == pytest.approx(1.0)


@settings(max_examples=20)
@given(st.integers(2, 12), st.floats(0.05, 1.0))
def test_an_account_beyond_its_share_takes_nothing_from_those_that_come_and_go(
    others: int, work_s: float
) -> None:
    greedy = Account("greedy")
    modest = [Account(f"modest {number}") for number in range(others)]
    stage = Stage(greedy, *modest)
    away = list[Account]()
    rounds = 60 * (others + 1)
    for _ in range(rounds):
        served = stage.serve(work_s)
        # A modest account returns after another one was served.
        for each in away:
            stage.come(each)
        away = [served] if served is not greedy else []
        for each in away:
            stage.leave(each)
    fair_s = rounds * work_s / (others + 1)
    assert stage.had_s[greedy] <= fair_s + 3 * (QUANTUM_S + work_s)
    for each in modest:
        assert stage.had_s[each] >= 0.9 * fair_s - QUANTUM_S - work_s


def test_work_that_no_other_account_wants_is_no_debt() -> None:
    early, late = Account("early"), Account("late")
    stage = Stage(early)
    for _ in range(1000):
        stage.serve(1.0)
    stage.come(late)
    had = Counter(stage.serve(1.0).name for _ in range(100))
    assert had["early"] == pytest.approx(50, abs=2)


def test_an_idle_account_saves_nothing_up() -> None:
    busy, resting = Account("busy"), Account("resting")
    stage = Stage(busy, resting)
    stage.leave(resting)
    for _ in range(1000):
        stage.serve(1.0)
    stage.come(resting)
    had = Counter(stage.serve(1.0).name for _ in range(100))
    assert had["resting"] == pytest.approx(50, abs=2)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0.01, 2.0)), min_size=1, max_size=200))
def test_only_accounts_with_work_or_ahead_are_remembered(steps: list[tuple[int, float]]) -> None:
    shares = FairShares(QUANTUM_S)
    steady = Account("steady")
    shares.begin(steady)
    for number, work_s in steps:
        account = Account(str(number))
        shares.begin(account)
        shares.charge(account, work_s)
        shares.end(account)
        # An account without work is remembered for a fifth of a quantum.
        now_s = shares._now_s - LINGERS * QUANTUM_S
        assert all(each is steady or reached >= now_s for each, reached in shares._reached_s.items())
    # After the steady account has had as much, no other one is remembered.
    for _ in range(10 * len(steps)):
        shares.charge(steady, 2.0)
    assert len(shares) == 1
    shares.end(steady)
    assert len(shares) == 0


@given(works)
def test_batch_work_waits_but_has_its_part(pieces: list[float]) -> None:
    interactive, batch = Account("caller"), Account("caller", priority=CallPriority.BATCH)
    stage = Stage(interactive, batch)
    for work_s in pieces:
        stage.serve(work_s)
        total_s = sum(stage.had_s.values())
        assert abs(stage.had_s[batch] - total_s / BATCH_PART) <= 1.0 + 1e-6


def test_batch_work_gets_everything_that_is_left() -> None:
    interactive, batch = Account("caller"), Account("caller", priority=CallPriority.BATCH)
    stage = Stage(batch)
    assert {stage.serve(1.0) for _ in range(100)} == {batch}
    stage.come(interactive)
    # Its earlier work does not count against it, and it owes the others nothing.
    assert [stage.serve(1.0) for _ in range(5)] == [interactive] + [batch] + 3 * [interactive]


def queue(
    batcher: Batcher[Owned], request_id: int, account: Account, tokens: list[int], now_s: float
) -> None:
    batcher.open(request_id, arrival_s=now_s, deadline_s=FOREVER, account=account)
    inputs = [Owned(length, account) for length in tokens]
    batcher.add(request_id, inputs, now_s=now_s, tokens_per_s=TOKENS_PER_S)


callers = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from(CallPriority), st.lists(st.integers(1, 64), min_size=1)
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@given(callers)
def test_nothing_is_lost_doubled_or_left_among_several_accounts(
    packed: bool, calls: list[tuple[str, CallPriority, list[int]]]
) -> None:
    order = FairOrder(QUANTUM_S)
    batcher: Batcher[Owned] = Batcher(BatchPolicy(128, 1.1, 4, packed), order)
    for number, (name, priority, tokens) in enumerate(calls):
        queue(batcher, number, Account(name, 1.0, priority), tokens, 0.1 * number)
    taken: list[Owned] = []
    while batcher:
        first = batcher.first()
        batch = batcher.take(0.0)
        assert first in batch.items
        assert len({each.account.priority for each in batch.items}) == 1
        taken += batch.items
    assert Counter(each.request_id for each in taken) == {n: len(call[2]) for n, call in enumerate(calls)}
    assert batcher.queued_tokens == 0
    assert not any(len(shares) for shares in order.shares.values())


@given(st.integers(1, 64), st.integers(2, 30))
def test_calls_of_one_account_keep_their_order_among_anothers(tokens: int, calls: int) -> None:
    batcher: Batcher[Owned] = Batcher(BatchPolicy(64, 1.1, 4))
    for number in range(calls):
        queue(batcher, number, Account("ab"[number % 2]), [tokens], 0.01 * number)
    came: dict[str, list[int]] = {"a": [], "b": []}
    while batcher:
        for each in sorted(batcher.take(0.0).items, key=lambda item: item.order):
            came[each.account.name].append(each.request_id)
    assert all(numbers == sorted(numbers) for numbers in came.values())


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_a_greedy_accounts_calls_wait_behind_one_another(packed: bool) -> None:
    batcher: Batcher[Owned] = Batcher(BatchPolicy(64, 1.1, 32, packed), FairOrder(0.5))
    for number in range(100):
        queue(batcher, number, Account("greedy"), [32, 32], 0.001 * number)
    for number in range(100, 110):
        queue(batcher, number, Account(str(number)), [32, 32], 1.0)
    # Of 110 calls, the last ten end when each caller has had as much work as theirs.
    tokens = Counter[str]()
    while len([name for name in tokens if name != "greedy"]) < 10 or min(tokens.values()) < 64:
        for each in batcher.take(1.0).items:
            tokens[each.account.name] += each.tokens
    assert tokens["greedy"] <= 64 + 3 * 64


@pytest.mark.parametrize("in_flight", [0, 2], ids=["at once", "two batches later"])
def test_ten_modest_callers_have_their_share_next_to_one_with_a_hundred_calls(in_flight: int) -> None:
    batcher: Batcher[Owned] = Batcher(BatchPolicy(1024, 1.08, 32), FairOrder(QUANTUM_S / 2))
    accounts = {Account("greedy"): 100, **{Account(str(number)): 4 for number in range(10)}}
    numbers, now_s, had = count(), 0.0, Counter[Account]()
    answered: deque[tuple[Owned, ...]] = deque([()] * in_flight)
    for account, calls in accounts.items():
        for _ in range(calls):
            queue(batcher, next(numbers), account, [120], now_s)
    for _ in range(1000):
        batch = batcher.take(now_s).items
        now_s += sum(item.work_s for item in batch)
        had.update(item.account for item in batch)
        answered.append(batch)
        # A caller that gets an answer calls again.
        for item in answered.popleft():
            queue(batcher, next(numbers), item.account, [120], now_s)
    fair = had.total() / len(accounts)
    assert all(0.99 * fair <= had[each] <= 1.1 * fair for each in accounts)
