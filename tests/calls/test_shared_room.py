"""Room that callers share: a caller with little finds some, and a single caller has nearly all."""

import asyncio
from collections import Counter
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_calls.errors import ResourceExhausted
from farrank_calls.fairness.fair_order import NOBODY, Account, CallPriority
from farrank_calls.fairness.shared_room import SharedRoom
from farrank_server.config.schema import LimitsConfig
from farrank_server.engine.admission.concurrency_limit import ConcurrencyLimit
from farrank_server.engine.admission.estimates import Speed, Speeds
from farrank_server.engine.admission.reservations import RankerWork, Reservation, Reservations

GREEDY, MODEST = Account("greedy"), Account("modest")
LATER = Account("greedy", 1.0, CallPriority.BATCH)


def fill(room: SharedRoom, *accounts: Account, piece: int = 1) -> None:
    """Let accounts take a piece in turn until none of them may have more."""
    wanting = list(accounts)
    while wanting:
        for account in list(wanting):
            if room.is_full_for(piece) or not room.shares(account, piece):
                wanting.remove(account)
            else:
                room.take(piece, account)


@pytest.mark.parametrize(("size", "most"), [(1, 1), (2, 2), (15, 15), (16, 15), (160, 150), (1000, 938)])
def test_one_alone_has_nearly_all(size: int, most: int) -> None:
    room = SharedRoom(size)
    fill(room, GREEDY)
    assert room.of(GREEDY) == most


@given(st.integers(1, 6), st.integers(200, 5000))
def test_a_caller_without_calls_finds_room_next_to_greedy_ones(greedy: int, size: int) -> None:
    room = SharedRoom(size)
    fill(room, *(Account(f"greedy {number}") for number in range(greedy)))
    assert not room.is_full_for(1)
    assert room.shares(MODEST, 1)
    # The greedy ones hold equal amounts.
    held = [room.of(Account(f"greedy {number}")) for number in range(greedy)]
    assert max(held) - min(held) <= 1


def test_room_is_held_by_weight() -> None:
    light, heavy = Account("light", 0.1), Account("heavy", 0.2)
    room = SharedRoom(10_000)
    for _ in range(1000):
        fill(room, light, heavy, piece=10)
        # Calls end, and others arrive.
        for each in (light, heavy):
            room.take(-10, each)
    assert room.of(heavy) == pytest.approx(2 * room.of(light), rel=0.02)


def test_batch_work_leaves_half_to_interactive_work() -> None:
    room = SharedRoom(1000)
    fill(room, LATER, Account("another", 1.0, CallPriority.BATCH))
    assert room.held == 500
    fill(room, GREEDY)
    assert room.of(GREEDY) > 400
    # Batch work gets no freed room as long as it holds more than is free.
    room.take(-20, LATER)
    assert not room.shares(LATER, 1)


@given(st.lists(st.tuples(st.sampled_from([GREEDY, MODEST, LATER]), st.integers(1, 50)), max_size=50))
def test_returned_room_is_forgotten(taken: list[tuple[Account, int]]) -> None:
    room, of = SharedRoom(10_000), Counter[Account]()
    for account, amount in taken:
        room.take(amount, account)
        of[account] += amount
    assert all(room.of(each) == of[each] for each in of)
    assert len(room) == len(of)
    for account, amount in taken:
        room.take(-amount, account)
    assert (len(room), room.held) == (0, 0)


async def test_one_caller_does_not_have_all_calls() -> None:
    gate = ConcurrencyLimit(max_calls=32)
    with ExitStack() as inside:
        for _ in range(30):
            inside.enter_context(gate.passing(GREEDY))
        with (
            pytest.raises(
                ResourceExhausted, match="30 calls of this caller are in flight, its share of 32"
            ) as no,
            gate.passing(GREEDY),
        ):
            pass
        assert no.value.reason == "share"
        assert no.value.retry_after_ms == 1000
        inside.enter_context(gate.passing(MODEST))
        inside.enter_context(gate.passing(Account("another")))
        with pytest.raises(ResourceExhausted, match="32 calls are in flight, all that"), gate.passing(MODEST):
            pass
    assert await gate.drain(timeout_s=0)
    await asyncio.sleep(0)


def make_admission(**limits: float) -> Reservations:
    limits = {"max_queued_tokens": 100_000, "deadline_margin": 1.0, **limits}
    speeds = {"a": Speeds(Speed(1000.0), Speed(1e9))}
    return Reservations(LimitsConfig(**limits), speeds, Speed(1e9))  # type: ignore[arg-type]


def admit(
    admission: Reservations, account: Account, tokens: int, *, remaining_s: float = 1e6, characters: int = 0
) -> Reservation:
    work = [RankerWork("a", tokens)]
    return admission.admit(Reservation(work, characters, characters, 0.0, remaining_s, account), 0.0)


def test_one_caller_does_not_have_all_of_the_queue() -> None:
    admission = make_admission(max_queued_tokens=10_000)
    for _ in range(32):
        admit(admission, GREEDY, 300)
    with pytest.raises(ResourceExhausted, match="9600 of 10000 tokens, 9600 of them this caller's") as no:
        admit(admission, GREEDY, 300)
    assert no.value.reason == "share"
    admit(admission, MODEST, 300)


def test_one_caller_does_not_hold_all_texts() -> None:
    admission = make_admission(max_held_characters=10_000)
    for _ in range(32):
        admit(admission, GREEDY, 1, characters=300)
    with pytest.raises(ResourceExhausted, match="9600 of 10000 characters, 9600 of them this caller's") as no:
        admit(admission, GREEDY, 1, characters=300)
    assert no.value.reason == "share"
    admit(admission, MODEST, 1, characters=300)


def test_the_backlog_of_a_greedy_caller_is_no_reason_to_refuse_another() -> None:
    admission = make_admission()
    order = admission.order
    order.begin(GREEDY)
    # 50 s of work are pending, all due before the next call.
    for _ in range(50):
        admit(admission, GREEDY, 1000, remaining_s=60)
    with pytest.raises(ResourceExhausted) as no:
        admit(admission, GREEDY, 1000, remaining_s=10)
    assert no.value.reason == "backlog"
    admit(admission, MODEST, 1000, remaining_s=10)
    # It waits for its own calls and for the same amount of the other's, not for all of them.
    for _ in range(3):
        admit(admission, MODEST, 1000, remaining_s=10)
    with pytest.raises(ResourceExhausted, match="done after about") as no:
        admit(admission, MODEST, 1000, remaining_s=9)
    assert no.value.reason == "backlog"


def test_a_caller_with_less_may_be_served_before_one_with_more_but_not_the_other_way() -> None:
    admission = make_admission()
    admit(admission, GREEDY, 9000, remaining_s=9.5)
    admit(admission, MODEST, 1000, remaining_s=60)
    admission = make_admission()
    admit(admission, MODEST, 1000, remaining_s=1.1)
    with pytest.raises(ResourceExhausted, match="would make calls late") as no:
        admit(admission, GREEDY, 1000, remaining_s=60)
    assert no.value.reason == "others_late"


def test_a_refusal_within_a_share_states_what_the_share_does_in_time() -> None:
    admission = make_admission()
    others = [Account(str(number)) for number in range(9)]
    for each in (GREEDY, *others):
        admission.order.begin(each)
    for _ in range(20):
        for each in (GREEDY, *others):
            admission.order.charge(each, 0.1)
    # Ten callers have used the server in turn. None of the others has a call in flight now.
    admit(admission, GREEDY, 1000, remaining_s=60)
    with pytest.raises(
        ResourceExhausted, match=r"within its caller's share, its deadline is in 20\.00 s"
    ) as no:
        admit(admission, GREEDY, 3000, remaining_s=20)
    assert no.value.reason == "share"
    assert no.value.retry_after_ms == pytest.approx(15_000, rel=0.1)
    admit(admission, MODEST, 1000, remaining_s=20)


def test_batch_work_does_not_count_for_interactive_work_and_waits_for_it() -> None:
    admission = make_admission()
    for _ in range(40):
        admit(admission, LATER, 1000, remaining_s=1000)
    # Hardly any of the 40 s of batch work goes before it.
    admit(admission, NOBODY, 1000, remaining_s=2)
    assert admission.outstanding_of(CallPriority.BATCH) == 40_000
    assert admission.outstanding_of(CallPriority.INTERACTIVE) == 1000
    with pytest.raises(ResourceExhausted) as no:
        admit(admission, LATER, 20_000, remaining_s=1000)
    assert no.value.reason == "share"
    admission = make_admission()
    admit(admission, GREEDY, 20_000, remaining_s=1000)
    # It is due before the other's, but goes after it.
    with pytest.raises(ResourceExhausted, match=r"done after about 21\.00 s"):
        admit(admission, LATER, 1000, remaining_s=20)


def test_no_caller_is_remembered_without_a_call_in_flight() -> None:
    admission = make_admission()
    for _ in range(3):
        held = [admit(admission, Account(str(number)), 10) for number in range(100)]
        for each in held:
            admission.release(each)
    assert not admission._accounts
    assert len(admission._free_numbers) <= 100
