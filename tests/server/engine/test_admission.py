import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_server.config import LimitsConfig
from farrank_server.engine.admission import IDLE_OPTIMISM, Admission
from farrank_server.engine.speed import Speed
from farrank_server.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted

RATE = 1000.0


def make_admission(**limits: float) -> Admission:
    speeds = {"a": Speed(RATE), "b": Speed(RATE / 10)}
    return Admission(LimitsConfig(**{"max_queued_tokens": 10_000, **limits}), speeds, Speed(1e9))  # type: ignore[arg-type]


def test_a_request_that_no_queue_could_hold_is_the_callers_mistake() -> None:
    with pytest.raises(InvalidArgument, match=r"10001 tokens.*max_queued_tokens 10000"):
        make_admission().admit("a", 10_001, 0, remaining_s=1e9)


def test_a_deadline_that_cannot_be_met_even_alone_is_said_at_once() -> None:
    admission = make_admission()
    admission.admit("a", 1, 0, remaining_s=1)
    with pytest.raises(DeadlineExceeded, match=r"0\.500 s are left.*needs about 1\.000 s"):
        admission.admit("a", 1000, 0, remaining_s=0.5)


def test_an_idle_server_tries_what_a_wrong_speed_would_refuse_for_ever() -> None:
    admission = make_admission()
    admission.release(admission.admit("a", 1000, 0, remaining_s=1 / IDLE_OPTIMISM + 0.01))
    with pytest.raises(DeadlineExceeded):
        admission.admit("a", 1000, 0, remaining_s=1 / IDLE_OPTIMISM - 0.01)


def test_a_full_queue_refuses_with_the_time_until_there_is_room() -> None:
    admission = make_admission()
    admission.admit("a", 8000, 0, remaining_s=1e9)
    with pytest.raises(ResourceExhausted, match="8000 of 10000") as refused:
        admission.admit("a", 3000, 0, remaining_s=1e9)
    assert refused.value.reason == "queue_full"
    assert refused.value.retry_after_ms == 1000


def test_a_backlog_that_breaks_the_deadline_refuses_with_the_time_it_lacks() -> None:
    admission = make_admission(deadline_margin=0.5)
    admission.admit("a", 4000, 0, remaining_s=100)
    with pytest.raises(ResourceExhausted, match=r"backlog of about 4\.00 s") as refused:
        admission.admit("a", 1000, 0, remaining_s=6)
    assert refused.value.reason == "backlog"
    assert refused.value.retry_after_ms == 2000
    admission.admit("a", 1000, 0, remaining_s=10)


def test_rankers_share_the_device_so_their_backlogs_add_up() -> None:
    admission = make_admission()
    admission.admit("a", 1000, 0, remaining_s=100)
    admission.admit("b", 1000, 0, remaining_s=100)
    assert admission.backlog_s() == pytest.approx(1 + 10, rel=1e-3)


def test_reading_counts_too() -> None:
    admission = Admission(LimitsConfig(), {"a": Speed(RATE)}, Speed(1e6))
    ticket = admission.admit("a", 100, 5_000_000, remaining_s=60)
    assert admission.backlog_s() == pytest.approx(5.1)
    admission.read(ticket, 5_000_000)
    assert admission.backlog_s() == pytest.approx(0.1)


def test_an_idle_server_takes_a_request_that_fills_its_whole_deadline() -> None:
    make_admission(deadline_margin=0.5).admit("a", 900, 0, remaining_s=1)


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(-200, 200), st.integers(0, 400)), max_size=20))
def test_nothing_is_left_when_all_tickets_are_released(work: list[tuple[int, int, int]]) -> None:
    admission = make_admission()
    tickets = []
    for tokens, correction, encoded in work:
        ticket = admission.admit("a", tokens, tokens * 4, remaining_s=1e6)
        admission.add_tokens(ticket, correction)
        admission.add_tokens(ticket, -encoded)
        admission.read(ticket, tokens)
        tickets.append(ticket)
    for ticket in tickets:
        admission.release(ticket)
        # What the worker still reports of a released request changes nothing.
        admission.add_tokens(ticket, -5)
        admission.read(ticket, 7)
        admission.release(ticket)
    assert admission.outstanding_tokens("a") == 0
    assert admission.backlog_s() == 0
