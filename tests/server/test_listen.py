"""The sockets: addresses that cannot be used, certificates that cannot be used, connections that age."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from farrank_server.config.schema import LimitsConfig, ListenConfig, TlsConfig
from farrank_server.listen import GrpcListener
from farrank_server.metrics import Metrics
from farrank_server.metrics_page import MetricsPage
from farrank_settings.errors import ConfigError
from support.tls_files import TlsFiles


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


async def test_a_busy_port_is_reported_in_farranks_words(
    taken_port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        GrpcListener(ListenConfig(port=taken_port), LimitsConfig())
    assert str(caught.value) == (
        f"listen.port: 127.0.0.1:{taken_port} cannot be bound: another program listens there; "
        "choose another port, or 0 for a free one"
    )
    with pytest.raises(ConfigError, match=r"^listen\.metrics_port: 127\.0\.0\.1:.* another program"):
        MetricsPage("127.0.0.1", taken_port, Metrics())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("no-such-host.invalid", "listen.host: 'no-such-host.invalid' is not the name of a host"),
        ("192.0.2.1", "listen.port: 192.0.2.1:0 cannot be bound: this machine has no such address"),
    ],
)
async def test_an_address_that_is_not_ours(host: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GrpcListener(ListenConfig(host=host, port=0), LimitsConfig())
    assert str(caught.value) == message


async def test_tls_files_are_checked_one_by_one(tls_files: TlsFiles, tmp_path: Path) -> None:
    garbage, other_key, locked = (tmp_path / name for name in ("garbage.pem", "other.pem", "locked.pem"))
    garbage.write_text("no certificate")
    other = trustme.CA().issue_cert("farrank.test")
    other.private_key_pem.write_to_path(str(other_key))
    locked.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
    good = tls_files
    for tls, message in (
        (TlsConfig(garbage, good.private_key), f"certificate: {garbage} holds no PEM certificate"),
        (TlsConfig(good.certificate, garbage), f"private_key: {garbage} holds no unencrypted PEM key"),
        (TlsConfig(good.certificate, locked), f"private_key: {locked} holds no unencrypted PEM key"),
        (
            TlsConfig(good.certificate, other_key),
            f"private_key: {other_key} does not belong to {good.certificate}",
        ),
        (
            TlsConfig(tmp_path / "x", good.private_key),
            f"certificate: {tmp_path / 'x'} cannot be read: No such file",
        ),
        (
            TlsConfig(good.certificate, good.private_key, garbage),
            f"client_ca: {garbage} holds no PEM certificate",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            GrpcListener(ListenConfig(port=0, tls=tls), LimitsConfig())
        assert str(caught.value).startswith(f"listen.tls.{message}")


async def _peer(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return context.peer().encode()


async def test_an_old_connection_is_replaced_and_loses_no_call() -> None:
    handler: Any = grpc.unary_unary_rpc_method_handler(_peer)
    listener = GrpcListener(ListenConfig(port=0, metrics_port=None, max_connection_age_s=1.0), LimitsConfig())
    await listener.open(grpc.method_handlers_generic_handler("test", {"Peer": handler}))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{listener.port}") as channel:
        ask: Any = channel.unary_unary("/test/Peer")
        peers: set[bytes] = set()
        async with asyncio.timeout(60):
            while len(peers) < 3:
                peers.add(await ask(b"", timeout=30))
    await listener.close(0)


async def test_pings_every_two_seconds_are_welcome() -> None:
    """Balancing clients send such pings. gRPC's default limit of 5 minutes would end the connection."""
    listener = GrpcListener(ListenConfig(port=0, metrics_port=None), LimitsConfig())
    handler: Any = grpc.unary_unary_rpc_method_handler(_peer)
    await listener.open(grpc.method_handlers_generic_handler("test", {"Peer": handler}))
    options = [
        ("grpc.keepalive_time_ms", 1100),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{listener.port}", options) as channel:
        ask: Any = channel.unary_unary("/test/Peer")
        first = await ask(b"", timeout=30)
        await asyncio.sleep(5.6)
        assert await ask(b"", timeout=30) == first
    await listener.close(0)
