"""Certificates are replaced while a server runs: handshakes at both endpoints use the current files."""

import asyncio
import logging
import os
import socket
import ssl
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
import trustme

from farrank_client import AsyncClient, RetryPolicy, Tls, Unavailable
from farrank_server.config.schema import HttpConfig, ListenConfig, RankerConfig, ServerConfig, TlsConfig
from farrank_server.replica import Replica
from farrank_settings.errors import ConfigError
from support.tls_files import TlsFiles


def issued(folder: Path) -> TlsFiles:
    """Issue certificates from a new authority."""
    folder.mkdir()
    files = TlsFiles(folder / "authority.pem", folder / "certificate.pem", folder / "private_key.pem")
    authority = trustme.CA()
    certificate = authority.issue_cert("farrank.test")
    authority.cert_pem.write_to_path(str(files.authority))
    certificate.cert_chain_pems[0].write_to_path(str(files.certificate))
    certificate.private_key_pem.write_to_path(str(files.private_key))
    return files


def put(files: TlsFiles, place: TlsFiles) -> None:
    for name in ("authority", "certificate", "private_key"):
        new = getattr(place, name).with_suffix(".new")
        new.write_bytes(getattr(files, name).read_bytes())
        os.replace(new, getattr(place, name))


async def is_let_in_by_grpc(replica: Replica, files: TlsFiles) -> bool:
    tls = Tls(files.authority, files.certificate, files.private_key, server_name="farrank.test")
    async with AsyncClient(replica.address, tls=tls, retry=RetryPolicy(max_attempts=1)) as client:
        try:
            return len((await client.rerank("river", ["a"], timeout_s=30)).results) == 1
        except Unavailable:
            return False


async def is_let_in_by_http(replica: Replica, files: TlsFiles) -> bool:
    context = ssl.create_default_context(cafile=files.authority)
    context.load_cert_chain(files.certificate, files.private_key)
    asked = {"query": "river", "documents": ["a"]}
    async with aiohttp.ClientSession() as session:
        try:
            async with session.post(
                f"{replica.http_url}/v2/rerank", json=asked, ssl=context, server_hostname="farrank.test"
            ) as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


# For each endpoint: the protocol, and the beginning of a connection that the server answers.
BEGINNINGS = {
    "grpc": ("h2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))),
    "http": ("http/1.1", b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"),
}


class Returning:
    """A caller that offers the TLS session of its last connection with each new one."""

    def __init__(self, files: TlsFiles, version: ssl.TLSVersion, endpoint: str) -> None:
        protocol, self._begin = BEGINNINGS[endpoint]
        self._context = ssl.create_default_context(cafile=files.authority)
        self._context.load_cert_chain(files.certificate, files.private_key)
        self._context.minimum_version = self._context.maximum_version = version
        self._context.set_alpn_protocols([protocol])
        self._endpoint = endpoint
        self.session: ssl.SSLSession | None = None

    def is_let_in(self, replica: Replica) -> bool:
        url = f"{replica.http_url}" if self._endpoint == "http" else f"//{replica.address}"
        place = urlsplit(url)
        try:
            with (
                socket.create_connection((place.hostname, place.port), timeout=60) as connected,
                self._context.wrap_socket(
                    connected, server_hostname="farrank.test", session=self.session
                ) as secure,
            ):
                secure.sendall(self._begin)
                # With TLS 1.3 the server looks at the caller's certificate after the client's handshake.
                answer = secure.recv(100)
                self.session = secure.session
        except OSError:
            return False
        return answer != b""


def serving(ranker: Path, served: TlsFiles) -> ServerConfig:
    """Both endpoints, with client certificates."""
    tls = TlsConfig(served.certificate, served.private_key, served.authority)
    listen = ListenConfig(port=0, metrics_port=None, tls=tls, http=HttpConfig(port=0))
    return ServerConfig(rankers={"maxp": RankerConfig(str(ranker))}, listen=listen)


async def test_each_handshake_has_the_certificates_of_its_time(
    tiny_rankers: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second, served = (issued(tmp_path / name) for name in ("first", "second", "served"))
    put(first, served)
    config = serving(tiny_rankers["maxp"], served)

    async def let_in(files: TlsFiles) -> tuple[bool, bool]:
        return await is_let_in_by_grpc(replica, files), await is_let_in_by_http(replica, files)

    async with Replica(config) as replica:
        assert await let_in(first) == (True, True)
        assert await let_in(second) == (False, False)
        put(second, served)
        assert await let_in(second) == (True, True)
        assert await let_in(first) == (False, False)

        # Unusable files change nothing, and are reported once.
        served.certificate.write_bytes(first.certificate.read_bytes())
        assert await let_in(second) == (True, True)
        said = [each for each in caplog.messages if "were not reloaded" in each]
        assert len(said) == 1
        assert f"does not belong to {served.certificate}" in said[0]
        with pytest.raises(ConfigError, match=r"listen\.tls\.private_key: .* does not belong to"):
            await replica.reload()
        put(first, served)
        await replica.reload()
        assert await let_in(first) == (True, True)


async def test_a_kept_tls_session_does_not_let_in_whom_the_new_authority_would_refuse(
    tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    first, second, served = (issued(tmp_path / name) for name in ("first", "second", "served"))
    put(first, served)
    config = serving(tiny_rankers["maxp"], served)
    versions = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    callers = {
        (endpoint, version.name): Returning(first, version, endpoint)
        for endpoint in BEGINNINGS
        for version in versions
    }

    async def let_in() -> set[tuple[str, str]]:
        return {name for name, each in callers.items() if await asyncio.to_thread(each.is_let_in, replica)}

    async with Replica(config) as replica:
        # TLS 1.2 over HTTP has a cache of sessions that cannot be turned off.
        assert await let_in() == callers.keys() - {("http", "TLSv1_2")}
        assert await let_in() == callers.keys() - {("http", "TLSv1_2")}
        # The server's own certificate does not change.
        put(replace(first, authority=second.authority), served)
        await replica.reload()
        assert await let_in() == set()
        put(first, served)
        await replica.reload()
        assert await let_in() == callers.keys() - {("http", "TLSv1_2")}
