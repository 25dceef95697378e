"""The HTTP client for search engines: OpenSearch, Elasticsearch and products with the same API."""

import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farrank_first_stage.engine_hosts import Hosts
from farrank_rankers.json_values import loads

# A proxy without its engine answers with one of these, and a node that lost its cluster with 503.
_HOST_IS_DOWN = (502, 503, 504)

# Both engines' words for a search that took longer than its `timeout`, each with another status: OpenSearch
# with 500, Elasticsearch with 504, as if it were a proxy, or in later versions with 429, as if it were full.
_TOO_LATE = ("time exceeded", "search_timeout_exception")


@dataclass(frozen=True, slots=True)
class Access:
    """The hosts of an engine and the way to connect to them. `headers` hold the credentials.

    At most `connections` are open to each host. A host that does not answer within `host_timeout_s` counts as
    failed. With `product`, answers must have it in their header X-Elastic-Product.
    """

    hosts: Sequence[str]
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None
    connections: int
    host_timeout_s: float
    product: str | None = None


class EngineError(Exception):
    """The engine gave no usable answer."""


class EngineRefused(EngineError):
    """The engine answered with an HTTP error status; `error` is the answer's content, mostly a JSON tree."""

    def __init__(self, status: int, error: object) -> None:
        super().__init__(f"HTTP status {status}: {_kind_of(error)}")
        self.status = status
        self.error = error

    @property
    def text(self) -> str:
        """All texts of the error, joined by spaces."""
        return " ".join(texts_in(self.error))

    @property
    def too_late(self) -> bool:
        """Whether the search took longer than its `timeout`."""
        text = self.text.lower()
        return any(each in text for each in _TOO_LATE)

    @property
    def reasons(self) -> str:
        """The reasons in the error, each once, up to 300 characters. They may contain the caller's query."""
        reasons = dict.fromkeys(_reasons_in(self.error))
        return "; ".join(reasons)[:300] if reasons else _one_line(self.text)


class EngineUnreachable(EngineError):
    """No connection, a broken connection, an incomplete answer, or one that is not from a search engine.

    `lasting` means that a retry would fail in the same way: a wrong certificate, another product.
    """

    def __init__(self, why: str, *, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


class EngineTimeout(EngineError):
    """A host sent no complete answer within its time limit."""

    def __init__(self, access: Access) -> None:
        super().__init__(f"no complete answer within {access.host_timeout_s:g} s")


class EngineClient:
    """Sends requests to an engine over HTTP, on the event loop that created the client.

    It does not retry: only the caller knows how much time is left. After a host did not answer, the client
    avoids it for a while and sends later requests to the others.
    """

    def __init__(self, access: Access) -> None:
        import aiohttp

        self._access = access
        self._hosts = Hosts(access.hosts)
        self._errors = (aiohttp.ClientError, OSError)
        self._tls_errors = (aiohttp.ClientSSLError, ssl.SSLError)
        self._session = aiohttp.ClientSession(
            headers={"user-agent": "farrank", "accept": "application/json", **access.headers},
            # Unpacking takes more time of the event loop than reading the texts as they are.
            skip_auto_headers=["accept-encoding"],
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(
                limit=0,
                limit_per_host=access.connections,
                ssl=access.tls if access.tls is not None else True,
                # A host that hangs does not confirm the end of TLS. asyncio keeps its connection for 30 s,
                # aiohttp with this option for 2 s. From Python 3.12.8 on, it ignores the option and warns.
                enable_cleanup_closed=sys.version_info < (3, 12, 8),
            ),
            timeout=aiohttp.ClientTimeout(total=access.host_timeout_s),
        )

    async def request(
        self, method: str, path: str, params: Mapping[str, str], body: object | None = None
    ) -> Any:
        """Send a request to one of the hosts; return its answer, read from JSON.

        If the caller is cancelled, its connection is closed, and the engine then ends the search.
        Raises: EngineRefused, EngineUnreachable, EngineTimeout.
        """
        host = self._hosts.choose()
        try:
            # A redirected POST would lose its body, and a search without one finds any documents.
            async with self._session.request(
                method, host.url.rstrip("/") + path, params=params, json=body, allow_redirects=False
            ) as answer:
                content = await answer.read()
        except TimeoutError:
            self._hosts.failed(host)
            raise EngineTimeout(self._access) from None
        except self._errors as error:
            self._hosts.failed(host)
            lasting = isinstance(error, self._tls_errors)
            raise EngineUnreachable(_one_line(error), lasting=lasting) from None
        if not 200 <= answer.status < 300:
            refused = EngineRefused(answer.status, _error_in(content))
            if answer.status in _HOST_IS_DOWN and not refused.too_late:
                self._hosts.failed(host)
            else:
                self._hosts.answered(host)
            raise refused
        self._hosts.answered(host)
        try:
            tree = loads(content)
        except ValueError as error:
            raise EngineUnreachable(f"its answer is not JSON: {_one_line(error)}") from None
        if self._access.product not in (None, answer.headers.get("x-elastic-product")):
            raise EngineUnreachable(f"it is not {self._access.product}", lasting=True)
        return tree

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


def _error_in(content: bytes) -> object:
    """Read the error in an answer: JSON of an engine, or the text of a proxy."""
    try:
        body = loads(content)
    except ValueError:
        return content.decode(errors="replace")
    return body.get("error", body) if isinstance(body, dict) else body


def _kind_of(error: object) -> str:
    """Name an error without its reason, which may contain the caller's query."""
    return str(error.get("type", "no type")) if isinstance(error, Mapping) else "no error of an engine"


def texts_in(tree: object) -> Iterator[str]:
    """Yield the texts of a tree that was read from JSON; its keys are not texts."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, (dict, list)):
        for below in tree.values() if isinstance(tree, dict) else tree:
            yield from texts_in(below)


def _reasons_in(tree: object) -> Iterator[str]:
    """Yield the reasons of an error and of its causes, except the general "all shards failed"."""
    reason = tree.get("reason") if isinstance(tree, dict) else None
    if isinstance(reason, str) and reason != "all shards failed":
        yield reason
    if isinstance(tree, (dict, list)):
        for below in tree.values() if isinstance(tree, dict) else tree:
            yield from _reasons_in(below)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]
