"""The identity of a caller where no API key is required."""

import pytest

from farrank_server.access.callers import by_address


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:127.0.0.1:5000", "ipv4:127.0.0.1"),
        ("ipv6:[::1]:5000", "ipv6:::"),
        ("ipv6:%5B2001:db8:1:2:aaaa::7%5D:5000", "ipv6:2001:db8:1:2::"),
        ("ipv6:[fe80::1%25eth0]:5000", "ipv6:fe80::"),
        ("ipv6:[::ffff:10.1.2.3]:5000", "ipv4:10.1.2.3"),
        ("unix:", "unix:"),
        ("", ":"),
    ],
)
def test_a_caller_is_its_address_without_its_port(peer: str, name: str) -> None:
    entry = by_address(peer)
    assert entry.refusal is None
    assert entry.caller.name == ""
    assert entry.caller.account.name == name


def test_connections_of_one_host_are_one_caller_and_those_of_others_are_not() -> None:
    first, second, other = (
        by_address(f"ipv6:[2001:db8::{end}").caller.account for end in ("1]:1", "1]:2", "9]:1")
    )
    assert first == second == other
    assert by_address("ipv6:[2001:db8:1::1]:1").caller.account != first
