"""The address of a target, and load that does not leave the machine by accident."""

import pytest

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.targets.address import is_loopback, open_target, parse_address


def test_addresses_are_read() -> None:
    assert parse_address("127.0.0.1:50051") == ("farrank", "127.0.0.1:50051", "127.0.0.1")
    assert parse_address("farrank:[::1]:7") == ("farrank", "[::1]:7", "::1")
    assert parse_address("tei:http://h:80/x") == ("tei", "http://h:80/x", "h")


@pytest.mark.parametrize(
    "address",
    [
        *(
            "",
            "localhost",
            "localhost:",
            "host:notaport",
            "localhost:99999",
            "a@localhost:1",
            "localhost:1/x",
        ),
        *("tei:", "tei:localhost:80", "cohere:ftp://localhost", "http://localhost:80"),
        *("jina:http://", "jina:http://[::1"),
    ],
)
def test_an_invalid_address_is_refused_with_the_valid_forms(address: str) -> None:
    with pytest.raises(LoadtestError, match="must be"):
        parse_address(address)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("localhost:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("tei:http://127.0.0.1:8080", True),
        ("10.0.0.1:1", False),
        ("0.0.0.0:1", False),
        ("example.com:1", False),
        # A name that only begins like this machine's.
        ("localhost.example.com:1", False),
        ("tei:http://localhost@example.com/rerank", False),
        ("jina:https://127.0.0.1.example.com", False),
    ],
)
async def test_only_loopback_needs_no_leave(address: str, loopback: bool) -> None:
    assert is_loopback(parse_address(address)[2]) is loopback
    if not loopback:
        with pytest.raises(LoadtestError, match=r"loopback.*--allow-remote"):
            open_target(address)
    # With permission it opens. Nothing is sent before the first call.
    await open_target(address, allow_remote=not loopback).close()
