"""Targets that are one server, targets that are several replicas, and invalid targets."""

import json

import pytest

from farrank_client import AsyncClient, Client, Tls
from farrank_client.destination import destination
from support.tls_files import TlsFiles


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ("dns:///rerank.svc:50051", "dns:///rerank.svc:50051"),
        ("dns:rerank:50051", "dns:rerank:50051"),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", "ipv4:10.0.0.1:1,10.0.0.2:1"),
        ("10.0.0.1:1,10.0.0.2:1", "ipv4:10.0.0.1:1,10.0.0.2:1"),
        (["10.0.0.1:1", " 10.0.0.2:2"], "ipv4:10.0.0.1:1,10.0.0.2:2"),
        (["[::1]:1", "[fd00::2]:2"], "ipv6:[::1]:1,[fd00::2]:2"),
    ],
)
def test_replicas_share_calls(given: str | list[str], target: str) -> None:
    found = destination(given)
    options = found.options(None)

    assert (found.target, found.is_shared) == (target, True)
    config = json.loads(str(options["grpc.service_config"]))
    assert config == {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": "farrank.v1.RerankService"},
    }
    assert found.keepalive_s("auto") == (2.0, 3.0)


@pytest.mark.parametrize("given", ["localhost:50051", "rerank.example:1", "[::1]:1", ["10.0.0.1:1"]])
def test_one_server_has_none_to_share_with(given: str | list[str]) -> None:
    found = destination(given)

    assert (found.target, found.is_shared) == (given if isinstance(given, str) else given[0], False)
    assert found.options(None) == {}
    assert (found.keepalive_s("auto"), found.keepalive_s(None)) == ((310.0, 20.0), None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("http://10.0.0.1:1", "is a URL; give HOST:PORT, here '10.0.0.1:1'"),
        (["10.0.0.1:1", "https://10.0.0.2:1/x"], "is a URL.*, and use tls if"),
        ([], "has an empty address"),
        ("10.0.0.1:1,", "has an empty address"),
        ("a:1,b:1", r"'a:1' of several is not an IP address.*such as dns:///NAME:PORT"),
        ("10.0.0.1,10.0.0.2:1", r"'10.0.0.1' of several"),
        ("10.0.0.1:x,10.0.0.2:1", "must be IPV4:PORT"),
        ("10.0.0.1:1,[::1]:1", "mixes IPv4 and IPv6"),
        (["dns:///a:1", "dns:///b:1"], "several names; give one that resolves to all"),
    ],
)
def test_invalid_targets(given: str | list[str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^target: .*{message}"):
        Client(given)


def test_addresses_have_no_name_that_a_certificate_could_have(tls_files: TlsFiles) -> None:
    with pytest.raises(ValueError, match="give server_name"):
        Client("10.0.0.1:1,10.0.0.2:1", tls=Tls(tls_files.authority))
    Client("10.0.0.1:1,10.0.0.2:1", tls=Tls(tls_files.authority, server_name="farrank.test")).close()


async def test_asyncio_takes_the_same() -> None:
    with pytest.raises(ValueError, match="mixes"):
        AsyncClient(["10.0.0.1:1", "[::1]:1"])
    await AsyncClient(["10.0.0.1:1", "10.0.0.2:1"]).close()
