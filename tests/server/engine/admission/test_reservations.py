import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_calls.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted
from farrank_server.config.schema import LimitsConfig
from farrank_server.engine.admission.estimates import Speed, Speeds
from farrank_server.engine.admission.reservations import RankerWork, Reservation, Reservations

RATE = 1000.0
FOREVER_S = 1e9
CHUNK_RATE = 100.0


def make_admission(reading: float = 1e9, **limits: float) -> Reservations:
    speeds = {name: Speeds(Speed(rate), Speed(CHUNK_RATE)) for name, rate in (("a", RATE), ("b", RATE / 10))}
    limits = {"max_queued_tokens": 10_000, **limits}
    return Reservations(LimitsConfig(**limits), speeds, Speed(reading))  # type: ignore[arg-type]


def admit(
    admission: Reservations,
    tokens: int,
    *,
    remaining_s: float = 1e9,
    ranker: str = "a",
    characters: int = 0,
    now_s: float = 0.0,
) -> Reservation:
    work = [RankerWork(ranker, tokens)]
    return admission.admit(Reservation(work, characters, characters, now_s, now_s + remaining_s), now_s)


def test_a_call_that_no_queue_could_hold_is_the_callers_mistake() -> None:
    asked = Reservation([RankerWork("a", 20_000, least_tokens=10_001)], 0, 0, 0.0, FOREVER_S)
    with pytest.raises(InvalidArgument, match=r"10001 tokens.*max_queued_tokens 10000"):
        make_admission().admit(asked, 0.0)


def test_a_call_that_only_the_estimate_finds_too_large_is_never_the_callers_mistake() -> None:
    admission = make_admission()
    asked = Reservation([RankerWork("a", 20_000, least_tokens=9000)], 0, 0, 0.0, FOREVER_S)
    alone = admission.admit(asked, 0.0)
    with pytest.raises(ResourceExhausted, match="20000 of 10000"):
        admission.admit(asked, 0.0)
    # All of its documents are cached, so it takes no room in the queue.
    admission.release(admit(admission, 0))
    admission.release(alone)
    small = admit(admission, 1)
    said = (
        r"no room for 20000; documents: .* more than max_queued_tokens, .* only while no other is in flight"
    )
    with pytest.raises(ResourceExhausted, match=said):
        admission.admit(asked, 0.0)
    with pytest.raises(ResourceExhausted, match=r"no room for 10000$"):
        admit(admission, 10_000)
    admission.release(small)
    admission.admit(asked, 0.0)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_hopeless_call_is_refused_at_once_with_the_time_it_would_take(busy: bool) -> None:
    admission = make_admission(reading=1e6)
    if busy:
        admit(admission, 1)
    with pytest.raises(
        DeadlineExceeded, match=r"60 s are left.*needs about 94 s.*lower k.*max_chunks"
    ) as late:
        admit(admission, 9000, ranker="b", characters=4_000_000, remaining_s=60)
    assert late.value.reason == "deadline_too_short"


def test_an_idle_server_tries_a_call_that_seems_to_need_a_little_more_than_its_time() -> None:
    admission = make_admission()
    admit(admission, 1000, remaining_s=0.75)
    with pytest.raises(DeadlineExceeded):
        admit(admission, 1000, remaining_s=0.75)


def test_members_of_an_ensemble_are_admitted_as_one() -> None:
    admission = make_admission(max_held_characters=1500)
    call = Reservation([RankerWork("a", 6000), RankerWork("b", 3000)], 2000, 1000, 0.0, FOREVER_S)
    reservation = admission.admit(call, 0.0)
    assert admission.outstanding_tokens("a") == 6000
    assert admission.outstanding_tokens("b") == 3000
    assert admission.held_characters() == 1000
    with pytest.raises(ResourceExhausted, match="9000 of 10000"):
        admission.admit(Reservation([RankerWork("a", 500), RankerWork("b", 600)], 0, 0, 0.0, FOREVER_S), 0.0)
    with pytest.raises(DeadlineExceeded, match=r"needs about 36 s"):
        admission.admit(Reservation([RankerWork("a", 6000), RankerWork("b", 3000)], 0, 0, 0.0, 35.0), 0.0)
    admission.release(reservation)
    assert admission.held_characters() == 0


def test_chunks_that_are_scored_cost_time_even_where_their_encodings_are_cached() -> None:
    admission = make_admission()
    with pytest.raises(DeadlineExceeded, match=r"needs about 10 s"):
        admission.admit(Reservation([RankerWork("a", 0, chunks=1000)], 0, 0, 0.0, 5.0), 0.0)
    reservation = admission.admit(Reservation([RankerWork("a", 0, chunks=1000)], 0, 0, 0.0, 20.0), 0.0)
    with pytest.raises(ResourceExhausted, match=r"done after about 11\.00 s"):
        admit(admission, 1000, now_s=15.0, remaining_s=5)
    admission.done(reservation, "a", chunks=1000)
    admit(admission, 1000, now_s=15.0, remaining_s=5)


def test_an_estimate_is_not_counted_beside_the_size_of_the_same_call() -> None:
    admission = make_admission()
    reserved = admit(admission, 8000, characters=500)
    admission.resize(reserved, [RankerWork("a", 9000)], 700, 700, 0.0)
    assert admission.outstanding_tokens("a") == 9000
    assert admission.held_characters() == 700
    admission.release(reserved)
    assert admission.outstanding_tokens("a") == 0
    assert admission.held_characters() == 0


def test_a_call_of_at_most_its_estimated_size_keeps_its_place() -> None:
    admission = make_admission()
    reserved = admit(admission, 8000, characters=500, remaining_s=10.0)
    # In the meantime the queue has filled, and the call needs more than its remaining time.
    admit(admission, 2000, characters=500)
    admission.resize(reserved, [RankerWork("a", 7000)], 400, 400, 9.0)
    assert admission.outstanding_tokens("a") == 9000
    assert admission.held_characters() == 900


def test_a_call_that_is_larger_than_estimated_and_has_no_room_gives_everything_back() -> None:
    admission = make_admission()
    reserved = admit(admission, 1000, characters=500)
    other = admit(admission, 8000, characters=300)
    with pytest.raises(ResourceExhausted, match="8000 of 10000 tokens: no room for 3000"):
        admission.resize(reserved, [RankerWork("a", 3000)], 400, 400, 0.0)
    assert (admission.outstanding_tokens("a"), admission.held_characters()) == (8000, 300)
    admission.release(reserved)
    admission.release(other)
    assert (admission.outstanding_tokens("a"), admission.held_characters()) == (0, 0)


def test_a_full_queue_refuses_with_the_time_until_there_is_room() -> None:
    admission = make_admission()
    admit(admission, 8000)
    with pytest.raises(ResourceExhausted, match="8000 of 10000") as refused:
        admit(admission, 3000)
    assert refused.value.reason == "queue_full"
    assert refused.value.retry_after_ms == 1000


def test_texts_in_flight_are_bounded_whatever_is_read_of_them() -> None:
    admission = make_admission(max_held_characters=1000)
    ticket = admit(admission, 10, characters=900)
    with pytest.raises(ResourceExhausted, match="900 of 1000 characters") as refused:
        admit(admission, 10, characters=200)
    assert refused.value.reason == "texts_full"
    admission.release(ticket)
    admit(admission, 10, characters=200)


def test_a_backlog_that_breaks_the_deadline_refuses_with_the_time_it_lacks() -> None:
    admission = make_admission(deadline_margin=0.5)
    admit(admission, 4000, remaining_s=100)
    # Five seconds later by the clock, no token of the first is done, so all of it is overdue.
    with pytest.raises(ResourceExhausted, match=r"done after about 5\.00 s") as refused:
        admit(admission, 1000, remaining_s=6, now_s=5.0)
    assert refused.value.reason == "backlog"
    assert refused.value.retry_after_ms == 2000
    admit(admission, 1000, remaining_s=10, now_s=5.0)


def test_a_small_call_is_not_refused_for_a_large_one_that_it_will_pass() -> None:
    admission = make_admission()
    admit(admission, 9000, remaining_s=60)
    admit(admission, 100, remaining_s=1.0)


def test_no_call_is_admitted_at_the_cost_of_one_admitted_before() -> None:
    admission = make_admission()
    admit(admission, 1)
    admit(admission, 8000, remaining_s=9.5)
    admit(admission, 1000, remaining_s=60)
    with pytest.raises(ResourceExhausted, match="make calls late") as refused:
        admit(admission, 900, remaining_s=60)
    assert refused.value.reason == "others_late"


def test_rankers_share_the_device() -> None:
    admission = make_admission()
    admit(admission, 500, ranker="b", remaining_s=100)
    with pytest.raises(ResourceExhausted, match=r"done after about 6\.00 s"):
        admit(admission, 1000, remaining_s=5, now_s=20.0)


def test_reading_counts_too() -> None:
    admission = make_admission(reading=1e6)
    ticket = admit(admission, 100, characters=5_000_000, remaining_s=60)
    with pytest.raises(ResourceExhausted, match=r"done after about 8\."):
        admit(admission, 100, characters=4_000_000, remaining_s=7)
    admission.read(ticket, 5_000_000)
    admit(admission, 100, characters=4_000_000, remaining_s=7)


def test_calls_take_turns_at_reading() -> None:
    """A text waits for at most as much of each other text as it has characters itself."""
    admission = make_admission(reading=1e6)
    for _ in range(3):
        admit(admission, 1, characters=50_000_000, remaining_s=3600)
    admit(admission, 1, characters=10_000, remaining_s=0.2)
    with pytest.raises(ResourceExhausted, match=r"done after about 4\.\d+ s"):
        admit(admission, 1, characters=1_000_000, remaining_s=3)


work_done = st.lists(
    st.tuples(st.integers(1, 400), st.integers(0, 600), st.integers(0, 400), st.booleans()), max_size=200
)


@given(work_done)
def test_nothing_is_left_when_all_is_given_back(work: list[tuple[int, int, int, bool]]) -> None:
    admission = make_admission(max_queued_tokens=1_000_000)
    held: list[tuple[Reservation, int]] = []
    for estimated, counted, encoded, leaves in work:
        reservation = admit(admission, estimated, characters=estimated * 4)
        done = min(counted, encoded)
        admission.correct(reservation, "a", counted, 3)
        admission.done(reservation, "a", tokens=done, chunks=2)
        admission.read(reservation, estimated)
        held.append((reservation, counted - done))
        if leaves:
            admission.release(held.pop(0)[0])
        assert admission.outstanding_tokens("a") == sum(left for _, left in held)
    for reservation, _ in held:
        admission.release(reservation)
        # Later reports of the device about a call that has gone change nothing.
        admission.done(reservation, "a", tokens=5)
        admission.correct(reservation, "a", 5, 5)
        admission.read(reservation, 5)
        admission.release(reservation)
    assert admission.outstanding_tokens("a") == 0
    assert admission.held_characters() == 0


def test_an_abandoned_call_holds_only_its_texts_until_its_release() -> None:
    admission = make_admission(reading=1e6)
    left = admit(admission, 9000, characters=30_000_000, remaining_s=100)
    admission.abandon(left)
    assert (admission.outstanding_tokens("a"), admission.held_characters()) == (0, 30_000_000)
    admission.release(admit(admission, 9000, characters=1_000_000, remaining_s=12))
    # The thread that still reads the call reports its progress.
    admission.read(left, 1_000_000)
    admission.release(left)
    admission.release(left)
    assert admission.held_characters() == 0
    admit(admission, 1)
    with pytest.raises(ResourceExhausted, match=r"done after about 9\.\d+ s"):
        admit(admission, 9000, characters=1_000, remaining_s=9.5)
