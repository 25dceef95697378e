"""TLS: the client checks the server's certificate, and shows its own if the server requires one."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
import trustme

from farrank_client import Client, RetryPolicy, Tls, Unavailable

if TYPE_CHECKING:
    from support.scripted_server import Caller, ScriptedServer
    from support.tls_files import TlsFiles

ONCE = RetryPolicy(max_attempts=1)

ServeTls = Callable[[grpc.ServerCredentials], "ScriptedServer"]


@pytest.fixture
def server(serve_tls: ServeTls, tls_files: TlsFiles) -> ScriptedServer:
    return serve_tls(grpc.ssl_server_credentials([tls_files.pair()]))


@pytest.fixture
def mutual_server(serve_tls: ServeTls, tls_files: TlsFiles) -> ScriptedServer:
    authority = tls_files.authority.read_bytes()
    return serve_tls(grpc.ssl_server_credentials([tls_files.pair()], authority, require_client_auth=True))


def test_a_trusted_server_is_called(call: Caller, server: ScriptedServer, tls_files: TlsFiles) -> None:
    tls = Tls(ca=tls_files.authority, server_name="farrank.test")

    assert call(server.target, lambda client: client.rankers(), tls=tls) is not None


def test_credentials_of_ones_own(call: Caller, server: ScriptedServer, tls_files: TlsFiles) -> None:
    credentials = grpc.ssl_channel_credentials(tls_files.authority.read_bytes())
    options = [("grpc.ssl_target_name_override", "farrank.test")]

    call(server.target, lambda client: client.rankers(), credentials=credentials, options=options)


def test_another_name_is_not_trusted(call: Caller, server: ScriptedServer, tls_files: TlsFiles) -> None:
    with pytest.raises(Unavailable, match="its certificate is for another name than this address"):
        call(server.target, lambda client: client.rankers(), tls=Tls(ca=tls_files.authority), retry=ONCE)


def test_another_authority_is_not_trusted(call: Caller, server: ScriptedServer, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    tls = Tls(ca=tmp_path / "other.pem", server_name="farrank.test")

    with pytest.raises(Unavailable, match="its certificate is not from a trusted authority"):
        call(server.target, lambda client: client.rankers(), tls=tls, retry=ONCE)


def test_tls_where_there_is_none_and_none_where_there_is(
    call: Caller, scripted: ScriptedServer, server: ScriptedServer, tls_files: TlsFiles
) -> None:
    with pytest.raises(Unavailable, match=f"cannot connect to {scripted.target}: it does not speak TLS"):
        call(scripted.target, lambda client: client.rankers(), tls=Tls(tls_files.authority), retry=ONCE)
    with pytest.raises(
        Unavailable, match=f"cannot connect to {server.target}: it closes the connection at once; perhaps"
    ):
        call(server.target, lambda client: client.rankers(), retry=ONCE)


def test_a_server_that_requires_api_keys(
    call: Caller, mutual_server: ScriptedServer, tls_files: TlsFiles
) -> None:
    files = (tls_files.authority, tls_files.certificate, tls_files.private_key)
    call(mutual_server.target, lambda client: client.rankers(), tls=Tls(*files, server_name="farrank.test"))

    hidden = Tls(tls_files.authority, server_name="farrank.test")
    with pytest.raises(Unavailable):
        call(mutual_server.target, lambda client: client.rankers(), tls=hidden, retry=ONCE)


def test_replicas_of_a_name_show_its_certificate(
    call: Caller, server: ScriptedServer, tls_files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.set_health("SERVING", "farrank.v1.RerankService")
    port = int(server.target.rpartition(":")[2])
    hosts = ["127.0.0.1", "127.0.0.2"]
    infos = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: infos)

    call(f"dns:///farrank.test:{port}", lambda client: client.rankers(), tls=Tls(tls_files.authority))

    del infos[1:]
    with pytest.raises(Unavailable, match="its certificate is for another name than this address"):
        call(
            f"dns:///other.test:{port}",
            lambda client: client.rankers(),
            tls=Tls(tls_files.authority),
            retry=ONCE,
        )


def test_half_a_pair_and_both_ways_are_refused(tmp_path: Path, tls_files: TlsFiles) -> None:
    with pytest.raises(ValueError, match="together"):
        Client(tls=Tls(certificate=tls_files.certificate))
    with pytest.raises(ValueError, match="not both"):
        Client(tls=Tls(), credentials=grpc.ssl_channel_credentials())
    with pytest.raises(FileNotFoundError):
        Client(tls=Tls(ca=tmp_path / "none.pem"))
