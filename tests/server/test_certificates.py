"""Certificates are replaced while a server runs: handshakes at both doors have what the files hold then."""

import logging
import os
import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme

from farrank_client import AsyncClient, RetryPolicy, Tls, Unavailable
from farrank_server.config.schema import HttpConfig, ListenConfig, RankerConfig, ServerConfig, TlsConfig
from farrank_server.errors import ConfigError
from farrank_server.replica import Replica
from support.tls_files import TlsFiles


def issued(folder: Path) -> TlsFiles:
    """What a new authority issues."""
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


async def test_each_handshake_has_the_certificates_of_its_time(
    tiny_rankers: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second, served = (issued(tmp_path / name) for name in ("first", "second", "served"))
    put(first, served)
    tls = TlsConfig(served.certificate, served.private_key, served.authority)
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None, tls=tls, http=HttpConfig(port=0)),
    )

    async def let_in(files: TlsFiles) -> tuple[bool, bool]:
        return await is_let_in_by_grpc(replica, files), await is_let_in_by_http(replica, files)

    async with Replica(config) as replica:
        assert await let_in(first) == (True, True)
        assert await let_in(second) == (False, False)
        put(second, served)
        assert await let_in(second) == (True, True)
        assert await let_in(first) == (False, False)

        # What cannot be used changes nothing, and is said once.
        served.certificate.write_bytes(first.certificate.read_bytes())
        assert await let_in(second) == (True, True)
        said = [each for each in caplog.messages if "stay as they are" in each]
        assert len(said) == 1
        assert f"does not belong to {served.certificate}" in said[0]
        with pytest.raises(ConfigError, match=r"listen\.tls\.private_key: .* does not belong to"):
            await replica.reload()
        put(first, served)
        await replica.reload()
        assert await let_in(first) == (True, True)
