"""One queue for k servers, compared with known formulas."""

import math
import random
from statistics import mean

import pytest

from farrank_bench.scaling.one_queue import long_run_s, waits_s


def test_calls_in_their_order_to_whichever_server_is_free_first() -> None:
    # The first of two servers is busy until 3, the second until 1.5 and then until 2.5.
    assert waits_s([0.0, 0.5, 1.0, 2.0], [3.0, 1.0, 1.0, 1.0], 2) == [0.0, 0.0, 0.5, 0.5]
    assert waits_s([0.0, 0.5, 1.0, 2.0], [3.0, 1.0, 1.0, 1.0], 4) == [0.0] * 4
    with pytest.raises(ValueError, match="servers: 0"):
        waits_s([0.0], [1.0], 0)
    with pytest.raises(ValueError, match="argument"):
        waits_s([0.0], [], 1)


@pytest.mark.parametrize("share", [0.5, 0.7])
def test_equal_services_before_one_server_wait_as_pollaczek_and_khinchine_say(share: float) -> None:
    found = mean(long_run_s(share, [1.0], 1, 200_000, seed=1)) - 1
    assert found == pytest.approx(share / (2 * (1 - share)), rel=0.06)


def test_services_of_chance_before_eight_servers_wait_as_erlang_says() -> None:
    randomly = random.Random(3)
    services = [randomly.expovariate(1) for _ in range(50_000)]
    rate, servers = 0.7 * 8, 8
    terms = [rate**k / math.factorial(k) for k in range(servers)]
    queued = rate**servers / math.factorial(servers) / (1 - rate / servers)
    expected = queued / (sum(terms) + queued) / (servers - rate)
    found = mean(long_run_s(rate, services, servers, 200_000, seed=2)) - mean(services)
    assert found == pytest.approx(expected, rel=0.1)
