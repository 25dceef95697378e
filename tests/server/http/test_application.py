"""Callers from a browser, certificates, ports, and the endpoint's own page."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from farrank_server.config.schema import HttpConfig, LimitsConfig, ListenConfig, ServerConfig, TlsConfig
from farrank_server.http.listen import HttpListener
from farrank_server.replica import check
from farrank_settings.errors import ConfigError
from support.http_endpoint import Opened, OpenEndpoint
from support.tls_files import TlsFiles

REQUEST = {"query": "river", "documents": ["the river rises", "flour and salt"]}
PAGE = "https://search.example"


@asynccontextmanager
async def preflight(endpoint: Opened, origin: str) -> AsyncIterator[aiohttp.ClientResponse]:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type,x-mine"}
    async with endpoint.session.options("/v2/rerank", headers={"Origin": origin, **asked}) as answer:
        yield answer


async def test_pages_elsewhere_may_ask_only_where_that_is_configured(open_endpoint: OpenEndpoint) -> None:
    async with open_endpoint() as endpoint:
        async with preflight(endpoint, PAGE) as answer:
            assert answer.status == 405
        async with endpoint.session.post("/v2/rerank", json=REQUEST, headers={"Origin": PAGE}) as answer:
            assert "Access-Control-Allow-Origin" not in answer.headers
    async with open_endpoint(cors_origins=(PAGE,)) as endpoint:
        async with preflight(endpoint, PAGE) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, PAGE)
        async with preflight(endpoint, "https://other.example") as answer:
            assert answer.status == 400
        async with endpoint.session.post("/v2/rerank", json=REQUEST, headers={"Origin": PAGE}) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == PAGE
            assert "X-Farrank-Tokens-Cut" in answer.headers["Access-Control-Expose-Headers"]


@pytest.mark.parametrize("origins", [(), (PAGE,)])
async def test_a_page_cannot_send_what_its_browser_sends_without_asking(
    open_endpoint: OpenEndpoint, origins: tuple[str, ...]
) -> None:
    body = json.dumps(REQUEST).encode()
    form = "application/x-www-form-urlencoded"
    async with open_endpoint(cors_origins=origins) as endpoint:
        for kind in ("text/plain", "text/plain; charset=application/json", form, "multipart/form-data", ""):
            for path in ("/v2/rerank", "/voyage/rerank", "/invocations"):
                headers = {"Origin": "https://other.example", "Content-Type": kind}
                async with endpoint.session.post(path, data=body, headers=headers) as answer:
                    said = await answer.text()
                assert answer.status == 415
                shown = kind.partition(";")[0]
                assert f"Content-Type: is '{shown}'; with an Origin it must be application/json" in said
        # curl declares the body as a form.
        async with endpoint.session.post("/v2/rerank", data=body, headers={"Content-Type": form}) as answer:
            assert answer.status == 200


async def test_only_callers_with_certificates_where_they_must_show_one(
    open_endpoint: OpenEndpoint, tls_files: TlsFiles
) -> None:
    tls = TlsConfig(tls_files.certificate, tls_files.private_key, tls_files.authority)
    async with open_endpoint(tls=tls) as endpoint:
        assert endpoint.listener.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=tls_files.authority)
        options: dict[str, Any] = {"ssl": trusting, "server_hostname": "farrank.test"}
        with pytest.raises(aiohttp.ClientError):
            await endpoint.session.post("/v2/rerank", json=REQUEST, **options)
        trusting.load_cert_chain(tls_files.certificate, tls_files.private_key)
        async with endpoint.session.post("/v2/rerank", json=REQUEST, **options) as answer:
            assert (answer.status, len((await answer.json())["results"])) == (200, 2)


async def test_a_taken_port_is_reported_before_anything_is_loaded(open_endpoint: OpenEndpoint) -> None:
    async with open_endpoint() as endpoint:
        listen = ListenConfig(http=HttpConfig(port=endpoint.listener.port))
        with pytest.raises(
            ConfigError, match=r"^listen\.http\.port: 127\.0\.0\.1:\d+ cannot be bound: another"
        ):
            HttpListener(listen, LimitsConfig())


async def test_a_listener_that_was_never_opened_frees_its_port() -> None:
    one = HttpListener(ListenConfig(http=HttpConfig(port=0)), LimitsConfig())
    await one.close(0)
    again = HttpListener(ListenConfig(http=HttpConfig(port=one.port)), LimitsConfig())
    await again.close(0)


async def test_the_page_is_served_with_its_rules_and_can_be_switched_off(open_endpoint: OpenEndpoint) -> None:
    async with open_endpoint() as endpoint:
        async with endpoint.session.get("/") as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
            etag = answer.headers["ETag"]
        async with endpoint.session.get("/", headers={"If-None-Match": etag}) as answer:
            assert answer.status == 304
        for path in ("/application.py", "/../application.py", "/%2e%2e/application.py", "/page"):
            async with endpoint.session.get(path) as answer:
                assert answer.status == 404
        # The same path belongs to text-embeddings-inference.
        assert (await endpoint.post("/", {"query": "river", "texts": ["a"]}))[0] == 200
    async with open_endpoint(page=False) as endpoint, endpoint.session.get("/") as answer:
        assert answer.status == 405


def test_models_lead_to_rankers_that_there_are() -> None:
    listen = ListenConfig(
        port=0, metrics_port=None, http=HttpConfig(models={"a": "", "b": "minilm", "c": "x"})
    )
    with pytest.raises(ConfigError, match=r"listen\.http\.models\.c: no ranker 'x' .* known are: minilm"):
        check(ServerConfig(listen=listen))
