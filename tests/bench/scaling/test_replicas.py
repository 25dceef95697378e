"""Real servers whose devices sleep, under the benchmark's own load, in every way that does not need Ray."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from numpy.typing import NDArray

from farrank_bench.rounds import ContenderFailed
from farrank_bench.scaling import loopback, ways
from farrank_bench.scaling.__main__ import ScalingPlan, WayFigures, measure_ways, rows_of
from farrank_bench.scaling.balancing import rows
from farrank_bench.scaling.callers import Callers, callers
from farrank_bench.scaling.calls import (
    MAX_TOKENS,
    MIN_TOKENS,
    MIXED,
    call_of,
    calls_of_many_lengths,
    calls_of_mixed_sizes,
)
from farrank_bench.scaling.load import (
    Busy,
    Latency,
    LoadResult,
    closed_load,
    cpu_now_s,
    latency,
    open_load,
    percentiles_ms,
)
from farrank_bench.scaling.sleeping import SleepingRuntime
from farrank_client import Client
from farrank_loadtest.loops import OK, Sample
from farrank_rankers.tokens import EncoderInput
from support import forked

TOKEN_S = 0.0005
PLAN = ScalingPlan([1, 2], [2], 2, 1.5, 1.0, 3, 2, 0.5, TOKEN_S)


def tokens(count: int) -> NDArray[np.int32]:
    return np.ones(count, dtype=np.int32)


@pytest.fixture(scope="module")
def addresses() -> Iterator[Sequence[str]]:
    with ways.replicas(2, TOKEN_S) as opened:
        yield opened


@pytest.fixture(scope="module")
def senders() -> Iterator[Callers]:
    with callers(PLAN.processes) as opened:
        yield opened


def test_a_device_sleeps_for_every_token_and_scores_by_them() -> None:
    runtime = SleepingRuntime(0.001)
    inputs = [EncoderInput(*[tokens(count)] * 3) for count in (5, 20)]
    encoded = runtime.encode(inputs)
    assert encoded.device_s() >= 0.025
    rows = encoded.rows()
    assert [row.vectors.tolist() for row in rows] == [[5.0], [20.0]]
    assert runtime.warm_up() == pytest.approx(1000)
    with pytest.raises(ValueError, match="inputs is empty"):
        runtime.encode([])


def test_calls_have_each_length_as_often_in_an_order_of_their_own() -> None:
    lengths = range(MIN_TOKENS, MAX_TOKENS + 1)
    taken = list(islice(calls_of_many_lengths(1), 2 * len(lengths)))
    assert Counter(taken) == dict.fromkeys(map(call_of, lengths), 2)
    assert taken[: len(lengths)] != taken[len(lengths) :]


def test_mixed_calls_are_mostly_small_and_their_work_is_mostly_large() -> None:
    taken = Counter(len(each.documents) for each in islice(calls_of_mixed_sizes(1), 100))
    assert taken == {10: 80, 100: 20}
    assert MIXED.mean_tokens == MAX_TOKENS * 28


def test_processes_send_calls_together(addresses: Sequence[str], senders: Callers) -> None:
    weighted = json.dumps({"loadBalancingConfig": [{"weighted_round_robin": {"enableOobLoadReport": True}}]})
    for options in ([], [("grpc.service_config", weighted)]):
        # Nine calls: one of them has 100 documents, and both processes send some of them.
        senders.begin(",".join(addresses), options, MIXED, 10.0, 1.0, seed=5)
        samples = senders.samples()
        assert [each.due_s for each in samples] == sorted(each.due_s for each in samples)
        assert {each.status for each in samples} == {OK}
        assert len({each.due_s for each in samples}) == len(samples)
        # A call of 100 documents takes ten times as long on the device as one of 10.
        services_s = sorted(each.stages_s["inference"] for each in samples)
        assert services_s[-1] > 5 * services_s[0] >= 5 * 10 * MAX_TOKENS * TOKEN_S


def test_a_ways_p99_is_compared_with_one_queues() -> None:
    def measured(p99: float) -> tuple[LoadResult, Latency]:
        return LoadResult([], 1.0, Busy(0.5, 1.0)), Latency(100, p99, 200, 210, 3, 1000)

    written = {
        row.what: row
        for row in rows("even", {ways.CLIENT: [measured(x) for x in (220, 270, 250)], "x": [measured(400)]})
    }
    client = written["even, client: p99 over one queue's"]
    assert (client.measured, client.reached) == ("1.25 (1.10 to 1.35)", True)
    assert written["even, x: p99 over one queue's"].reached is None
    assert "3000 calls" in written["even, client: p50 and p99, ms"].measured


def test_a_call_is_a_batch_of_its_own_and_takes_what_it_should(addresses: Sequence[str]) -> None:
    with Client(addresses[0]) as client:
        ranking = client.rerank("river", [call_of(MIN_TOKENS).texts[0], call_of(MAX_TOKENS).texts[0]])
    assert [result.score for result in ranking.results] == [MAX_TOKENS, MIN_TOKENS]
    # Two batches: the longest input and the next would be one of twice its length.
    assert ranking.usage.padded_tokens == MIN_TOKENS + MAX_TOKENS
    assert ranking.timings.inference_ns >= 1e9 * TOKEN_S * (MIN_TOKENS + MAX_TOKENS)


def test_every_way_reaches_all_replicas(
    addresses: Sequence[str], senders: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both values improve the figures of a report, but no assertion here depends on them.
    monkeypatch.setattr("farrank_bench.scaling.__main__.WARM_UP_S", 0.2)
    monkeypatch.setattr("farrank_bench.scaling.load.CONNECT_S", 0.1)
    both = {ways.CLIENT: ways.by_client(addresses), ways.ENVOY: ways.by_envoy(addresses)}
    found = measure_ways(both, PLAN, senders)
    for name in both:
        for count in PLAN.counts:
            for loaded in found.closed[name, count]:
                # A busy device reaches this rate, and no device can exceed it.
                assert 1 < loaded.per_s <= 1.2 * count / (TOKEN_S * MIN_TOKENS)
                assert loaded.busy.own > 0
        assert found.latencies[name, 2][0].calls > 1
    told = {row.what for row in rows_of(found, PLAN)}
    assert {f"{name}, 2 replicas: of linear" for name in both} <= told


def test_an_answer_to_another_call_is_a_failure(
    addresses: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from farrank_bench.scaling import callers as asking

    calls = iter([replace(call_of(40), query="two words")] * 1000)
    # The query's second word is cut, so it is not part of an input. A busy machine may need more time.
    assert any(closed_load(addresses[0], 1, 0.0, load_s, calls).samples for load_s in (0.2, 2.0, 20.0))
    monkeypatch.setattr(asking, "SPECIAL_TOKENS", 2)
    with pytest.raises(ContenderFailed, match="wrong answer"):
        closed_load(addresses[0], 1, 0.0, 0.2, iter([call_of(40)] * 1000))


def test_latency_counts_from_due_times_and_is_compared_with_one_queue(
    addresses: Sequence[str], senders: Callers
) -> None:
    rate_per_s = 20.0
    loaded = open_load(senders, addresses[0], rate_per_s, 0.5, 1.5, seed=3)
    seen = latency(loaded, 1, rate_per_s, 0.5, seed=3, token_s=TOKEN_S)
    assert 0 < seen.calls < len(loaded.samples)
    assert seen.p50 <= seen.p99
    assert seen.p99 >= seen.p99_same_arrivals - 1

    # Ten calls of a second each at once for two devices: the last ones wait for four others.
    samples = [
        # The server counts a batch for both calls in it; the reference counts only each call's own work.
        Sample(0.0, 0.0, 1.0 + place // 2, OK, "", {"inference": 9.0, "queue": 0.0}, {"tokens": 500})
        for place in range(10)
    ]
    at_once = latency(LoadResult(samples, 5.0, Busy(0, 0)), 2, 0.5, 0.0, seed=1, token_s=0.002)
    assert (at_once.p99, at_once.p99_same_arrivals) == (5000, 5000)


def test_linear_is_a_multiple_of_one_replica_in_the_same_round() -> None:
    def loaded(per_s: float) -> LoadResult:
        samples = [Sample(0, 0, each / per_s, OK, "", {"inference": 0.5 / per_s}) for each in range(101)]
        return LoadResult(samples, 101 / per_s, Busy(0.25, 0.5))

    closed = {
        (ways.CLIENT, 1): [loaded(10), loaded(20), loaded(10)],
        (ways.CLIENT, 8): [loaded(78.4), loaded(128), loaded(80)],
        (ways.RAY, 1): [loaded(10)] * 3,
        (ways.RAY, 8): [loaded(40)] * 3,
    }
    rows = {row.what: row for row in rows_of(WayFigures(closed, {}), PLAN)}
    linear = rows["client, 8 replicas: of linear"]
    assert (linear.measured, linear.aim, linear.reached) == ("0.980 (0.800 to 1.000)", "at least 0.95", True)
    assert rows["Ray, 8 replicas: of linear"].reached is None
    assert rows["Ray, 8 replicas: share of time that devices sleep for calls"].measured.startswith("0.062")


def test_percentiles_are_of_the_values() -> None:
    assert percentiles_ms([3, 1, 2, 4], 0, 50, 75, 99) == [1000, 2000, 3000, 4000]


def test_processor_time_is_that_of_children_too() -> None:
    own_s, _ = cpu_now_s()
    command = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(command) as process:
        try:
            while cpu_now_s()[0] < own_s + 0.2:
                assert process.poll() is None
        finally:
            process.kill()
    own_s, whole_s = cpu_now_s()
    assert own_s < whole_s


def test_ray_is_not_started_where_others_could_reach_it() -> None:
    if loopback.only_loopback():
        pytest.skip("there is no network here")
    with pytest.raises(ContenderFailed, match="Serve's proxies listen on every interface"):
        ways.by_ray(0.0, haproxy=False).__enter__()


def test_a_process_can_have_a_network_of_loopback_alone() -> None:
    code = (
        "from farrank_bench.scaling import loopback, ways\n"
        "loopback.enter()\n"
        "print(loopback.only_loopback(), ways.free_port() > 0)"
    )
    ran = forked.run([sys.executable, "-c", code])
    if "PermissionError" in ran.stderr:
        pytest.skip("no network namespaces for this user")
    assert ran.stdout.split() == ["True", "True"], ran.stderr
