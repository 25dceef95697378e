import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_server.config.schema import LimitsConfig
from farrank_server.engine.admission.estimates import Speed
from farrank_server.engine.admission.reservations import Admission, Request, Reservation
from farrank_server.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted

RATE = 1000.0


def make_admission(reading: float = 1e9, **limits: float) -> Admission:
    speeds = {"a": Speed(RATE), "b": Speed(RATE / 10)}
    limits = {"max_queued_tokens": 10_000, **limits}
    return Admission(LimitsConfig(**limits), speeds, Speed(reading))  # type: ignore[arg-type]


def admit(
    admission: Admission,
    tokens: int,
    *,
    remaining_s: float = 1e9,
    ranker: str = "a",
    characters: int = 0,
    now_s: float = 0.0,
) -> Reservation:
    request = Request(ranker, tokens, characters, characters, now_s, now_s + remaining_s)
    return admission.admit(request, now_s)


def test_a_request_that_no_queue_could_hold_is_the_callers_mistake() -> None:
    with pytest.raises(InvalidArgument, match=r"10001 tokens.*max_queued_tokens 10000"):
        admit(make_admission(), 10_001)


def test_a_deadline_that_cannot_be_met_even_alone_is_said_at_once() -> None:
    admission = make_admission()
    admit(admission, 1)
    with pytest.raises(DeadlineExceeded, match=r"0\.500 s are left.*needs about 1\.000 s"):
        admit(admission, 1000, remaining_s=0.5)


def test_an_idle_server_tries_what_a_wrong_speed_would_refuse_for_ever() -> None:
    admission = make_admission()
    admission.release(admit(admission, 9000, remaining_s=0.001))
    admit(admission, 9000, remaining_s=0.001)


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
    # Five seconds later by the clock, not one token of the first is done: all of it is overdue.
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
    with pytest.raises(ResourceExhausted):
        admit(admission, 100, remaining_s=5)
    admission.read(ticket, 5_000_000)
    admit(admission, 100, remaining_s=5)


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 600), st.integers(0, 400)), max_size=20))
def test_nothing_is_left_when_all_tickets_are_released(work: list[tuple[int, int, int]]) -> None:
    admission = make_admission()
    tickets = []
    for estimated, counted, encoded in work:
        ticket = admit(admission, estimated, characters=estimated * 4)
        admission.correct(ticket, counted)
        admission.encoded(ticket, min(counted, encoded))
        admission.read(ticket, estimated)
        tickets.append((ticket, counted - min(counted, encoded)))
    assert admission.outstanding_tokens("a") == sum(left for _, left in tickets)
    for ticket, _ in tickets:
        admission.release(ticket)
        # What the worker still reports of a released request changes nothing.
        admission.encoded(ticket, 5)
        admission.release(ticket)
    assert admission.outstanding_tokens("a") == 0
