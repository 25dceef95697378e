"""The choice among a search engine's hosts, at times that the tests set."""

from __future__ import annotations

from collections import Counter

import pytest

from farrank_first_stage.engine_hosts import FIRST_AVOIDED_S, LONGEST_AVOIDED_S, Host, Hosts


class Clock:
    """A time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def named(hosts: Hosts, url: str) -> Host:
    """Choose until it is this host's turn."""
    return next(host for host in iter(hosts.choose, None) if host.url == url)


def asked(hosts: Hosts, requests: int = 12) -> dict[str, int]:
    """Count the requests that each host gets."""
    return dict(Counter(hosts.choose().url for _ in range(requests)))


def test_hosts_take_turns_in_an_order_of_their_own() -> None:
    urls = [f"http://{number}:1" for number in range(8)]
    orders = {tuple(hosts.choose().url for _ in urls) for hosts in (Hosts(urls) for _ in range(20))}

    assert len(orders) > 1
    assert all(sorted(order) == urls for order in orders)
    assert asked(Hosts(urls), 24) == dict.fromkeys(urls, 3)


def test_a_host_that_fails_is_avoided_and_tried_by_one_request_at_the_end(clock: Clock) -> None:
    hosts = Hosts(["a", "b", "c"], clock)
    hosts.failed(named(hosts, "a"))
    assert asked(hosts) == {"b": 6, "c": 6}

    clock.now += FIRST_AVOIDED_S
    assert asked(hosts)["a"] == 1  # the others wait for the outcome of that one
    clock.now += FIRST_AVOIDED_S
    assert "a" not in asked(hosts)

    clock.now += FIRST_AVOIDED_S
    tried = named(hosts, "a")
    hosts.answered(tried)
    assert asked(hosts) == {"a": 4, "b": 4, "c": 4}


def test_the_time_without_requests_doubles_up_to_a_limit(clock: Clock) -> None:
    hosts = Hosts(["a", "b"], clock)
    host = named(hosts, "a")
    hosts.failed(host)
    times = []
    for _ in range(7):
        times.append(host.avoided_until - clock.now)
        clock.now = host.avoided_until
        hosts.failed(named(hosts, "a"))

    assert times == [2, 4, 8, 16, 32, 32, LONGEST_AVOIDED_S]
    hosts.answered(host)
    hosts.failed(host)
    assert host.avoided_until == clock.now + FIRST_AVOIDED_S


def test_a_host_that_is_down_for_a_day_stays_a_host(clock: Clock) -> None:
    hosts = Hosts(["a", "b"], clock)
    hosts.failed(named(hosts, "a"))
    for _ in range(24 * 3600 // int(LONGEST_AVOIDED_S)):
        clock.now += LONGEST_AVOIDED_S
        assert asked(hosts, 4) == {"a": 1, "b": 3}


def test_requests_that_fail_together_are_one_failure(clock: Clock) -> None:
    hosts = Hosts(["a", "b"], clock)
    host = named(hosts, "a")
    for _ in range(10):
        hosts.failed(host)

    assert host.avoided_until == clock.now + FIRST_AVOIDED_S


def test_hosts_that_are_all_avoided_take_turns_and_are_avoided_no_longer_for_it(clock: Clock) -> None:
    hosts = Hosts(["a", "b"], clock)
    for url in ("a", "b"):
        hosts.failed(named(hosts, url))

    assert asked(hosts) == {"a": 6, "b": 6}
    for _ in range(20):
        hosts.failed(hosts.choose())
    clock.now += FIRST_AVOIDED_S
    hosts.answered(named(hosts, "a"))
    hosts.answered(named(hosts, "b"))
    assert asked(hosts) == {"a": 6, "b": 6}


def test_the_only_host_is_always_asked(clock: Clock) -> None:
    hosts = Hosts(["a"], clock)
    for _ in range(3):
        hosts.failed(named(hosts, "a"))

    assert asked(hosts, 3) == {"a": 3}
