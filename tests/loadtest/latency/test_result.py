"""The figures of a load, and the conclusions of a sweep."""

from collections.abc import Sequence

import pytest

from farrank_loadtest.latency.plan import Loop, Objective, Plan
from farrank_loadtest.latency.recorder import Recorder, duration_text
from farrank_loadtest.latency.sweep import Sweep, is_generator_bound, judge
from farrank_loadtest.loops import NOT_SENT, OK, Sample

OBJECTIVE = Objective(90, 0.1)


def plan(objective: Objective | None = OBJECTIVE, loop: Loop = "open") -> Plan:
    return Plan(loop=loop, objective=objective, warm_up_s=1.0, duration_s=10.0, repeats=1)


def recorded(samples: Sequence[Sample], *, busy_s: float = 1.0) -> Recorder:
    recorder = Recorder(1.0, 11.0, OBJECTIVE.bound_s)
    for sample in samples:
        recorder(sample)
    recorder.ended(12.0, busy_s)
    return recorder


def answered(due_s: float, latency_s: float = 0.05, lag_s: float = 0.0) -> Sample:
    return Sample(due_s, due_s + lag_s, due_s + latency_s, OK, stages_s={"queue": latency_s / 2})


def test_warm_up_is_excluded_and_late_answers_are_awaited() -> None:
    recorder = recorded(
        [
            answered(0.5, latency_s=9),  # warm-up: its latency must not count
            answered(0.98),  # warm-up, but the answer arrived in the measured time: it is goodput
            answered(2.0),
            answered(3.0, latency_s=0.3),
            Sample(4.0, 4.0, 4.01, "RESOURCE_EXHAUSTED"),
            Sample(5.0, 5.0, 5.0, NOT_SENT),
            answered(10.99, latency_s=0.09),  # due in time, answered after the end
        ]
    )
    assert recorder.seen == 7
    assert recorder.offered == 5
    assert recorder.statuses == {OK: 3, "RESOURCE_EXHAUSTED": 1, NOT_SENT: 1}
    assert recorder.latency.count == recorder.stages["queue"].count == 3
    assert recorder.latency.max_s == pytest.approx(0.3, rel=1e-3)
    assert recorder.stages["queue"].max_s == pytest.approx(0.15, rel=1e-3)
    assert recorder.good == 2
    assert recorder.goodput_per_s == pytest.approx(2 / 10)
    assert recorder.busy == pytest.approx(1 / 12)


def test_failures_are_reported_with_their_number_and_first_message() -> None:
    refused = Sample(3.0, 3.0, 3.1, "RESOURCE_EXHAUSTED", "no room:\n  4 of 4")
    late = [Sample(4.0, 4.0, 9.0, "DEADLINE_EXCEEDED", f"needs about {n} s") for n in (94, 95)]
    one, other = recorded([answered(2.0), refused]), recorded([*late, Sample(5.0, 5.0, 5.0, NOT_SENT)])
    assert recorded([answered(2.0)]).failures == ""
    assert one.failures == "1 of 2 failed: RESOURCE_EXHAUSTED 1 (no room: 4 of 4)"
    whole = judge(plan(), 5.0, [one, other]).whole
    assert whole.failed == 4
    assert whole.failures == (
        "4 of 5 failed: DEADLINE_EXCEEDED 2 (needs about 94 s), RESOURCE_EXHAUSTED 1 (no room: 4 of 4), "
        "not sent: too many in flight 1"
    )


def test_the_servers_counts_add_up() -> None:
    counts = ({"chunks": 3, "cached_chunks": 0}, {"chunks": 3, "cached_chunks": 3}, {"chunks": 4})
    samples = [Sample(2.0, 2.0, 2.1, OK, counts=each) for each in counts]
    whole = judge(plan(), 5.0, [recorded(samples[:1]), recorded(samples[1:])]).whole
    assert whole.counts == {"chunks": 10, "cached_chunks": 3}
    assert whole.cached_share == pytest.approx(0.3)
    # A peer without counts has no visible cache.
    assert recorded([answered(2.0)]).cached_share == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00042, "0.42 ms"),
        (0.0356, "35.6 ms"),
        (0.9996, "1 s"),
        (5.49, "5.49 s"),
        (94.06, "94.1 s"),
        (1234, "1,234 s"),
    ],
)
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_an_interrupted_repeat_is_measured_for_as_long_as_it_ran() -> None:
    recorder = Recorder(1.0, 11.0, None)
    recorder(answered(1.5))
    recorder.ended(3.0, 0.1)
    assert recorder.measured_s == pytest.approx(2.0)
    assert recorder.goodput_per_s == pytest.approx(0.5)
    # All answers are from the warm-up.
    early = Recorder(1.0, 11.0, None)
    early.ended(0.5, 0.1)
    assert (early.measured_s, early.goodput_per_s) == (0.0, 0.0)


def test_repeats_add_up() -> None:
    one, other = recorded([answered(2.0)] * 3), recorded([answered(2.0, latency_s=0.5)])
    whole = judge(plan(), 5.0, [one, other]).whole
    assert (whole.offered, whole.good, whole.measured_s) == (4, 3, 20.0)
    assert whole.latency.count == 4
    assert whole.latency.percentile_s(75) == pytest.approx(0.05, rel=1e-3)
    assert whole.goodput_per_s == pytest.approx(3 / 20)


def test_failures_break_an_objective_as_late_answers_do() -> None:
    nine = [answered(2.0)] * 9
    failed = Sample(3.0, 3.0, 3.01, "UNAVAILABLE")
    assert judge(plan(), 5.0, [recorded([*nine, failed])]).held is True
    assert judge(plan(), 5.0, [recorded([*nine, failed, failed])]).held is False
    assert judge(plan(), 5.0, [recorded([*nine, *[answered(4.0, latency_s=0.2)] * 2])]).held is False
    assert judge(plan(None), 5.0, [recorded([failed])]).held is None


def test_a_late_generator_is_named_as_the_limit_where_its_lateness_matters() -> None:
    late = recorded([answered(2.0, latency_s=0.05, lag_s=0.02)] * 20)
    assert is_generator_bound(plan(), late)
    # The same lateness is only a fiftieth of a slow server's latency,
    assert not is_generator_bound(plan(), recorded([answered(2.0, latency_s=1.0, lag_s=0.02)] * 20))
    # and occasional delays of a busy machine are no limit.
    assert not is_generator_bound(plan(), recorded([answered(2.0, latency_s=0.01, lag_s=0.008)] * 20))
    # A rate that was not fully offered does not count as held, even if all answers were in time.
    assert judge(plan(), 5.0, [late]).held is False


def test_callers_that_wait_are_bound_by_the_generators_thread() -> None:
    closed = plan(loop="closed")
    assert not is_generator_bound(closed, recorded([answered(2.0)], busy_s=6.0))
    assert is_generator_bound(closed, recorded([answered(2.0)], busy_s=11.5))


def test_the_highest_load_is_the_last_that_held_before_one_that_broke() -> None:
    good, bad = recorded([answered(2.0)] * 20), recorded([answered(2.0, latency_s=1.0)] * 20)
    late = recorded([answered(2.0, latency_s=0.3, lag_s=0.2)] * 20)

    def sweep(*outcomes: tuple[float, Recorder]) -> Sweep:
        steps = tuple(judge(plan(), amount, [recorder]) for amount, recorder in outcomes)
        return Sweep(plan(), steps, interrupted=False, note=None)

    found = sweep((10, good), (20, good), (40, bad), (28, bad))
    assert found.highest is not None
    assert found.highest.amount == 20
    assert found.limited_by == "server"
    # A rate that holds above one that failed is luck.
    lucky = sweep((10, good), (20, bad), (15, bad), (40, good))
    assert lucky.highest is not None
    assert lucky.highest.amount == 10
    assert sweep((10, bad)).highest is None
    assert sweep((10, good), (20, late)).limited_by == "generator"
    assert sweep((10, good), (20, good)).limited_by is None
