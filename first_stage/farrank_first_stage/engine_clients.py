"""The clients of the two search engines behind one interface, with one set of errors.

Neither client retries by itself: only the caller knows how much time is left. Both avoid a host for a while
after it did not answer, and continue with the others.
"""

import logging
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# How long OpenSearch's client first avoids a failed host; Elasticsearch's begins with one second.
_AVOID_HOST_S = 2


@dataclass(frozen=True, slots=True)
class Access:
    """The hosts of an engine and the way to connect to them. `headers` hold the credentials.

    At most `connections` are open to each host. A host that is silent for `host_timeout_s` counts as failed.
    """

    hosts: Sequence[str]
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None
    connections: int
    host_timeout_s: float


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
    """A host sent nothing within its time limit."""

    def __init__(self, access: Access) -> None:
        super().__init__(f"it did not answer for {access.host_timeout_s:g} s")


class EngineClient(Protocol):
    """Sends requests to an engine over HTTP, on the event loop that created the client."""

    async def request(
        self, method: str, path: str, params: Mapping[str, str], body: object | None = None
    ) -> Any:
        """Send a request to one of the hosts; return its answer, read from JSON.

        If the caller is cancelled, its connection is closed, and the engine then ends the search.
        Raises: EngineRefused, EngineUnreachable, EngineTimeout.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class OpenSearchClient:
    """A client for OpenSearch, and for any product with the same API."""

    def __init__(self, access: Access) -> None:
        import opensearchpy

        # The library would log each failure with a traceback; the caller logs the outcome.
        logging.getLogger("opensearch").setLevel(logging.CRITICAL)
        self._access = access
        self._errors = opensearchpy.exceptions
        self._client = opensearchpy.AsyncOpenSearch(
            hosts=list(access.hosts),
            headers=dict(access.headers),
            ssl_context=access.tls,
            timeout=access.host_timeout_s,
            pool_maxsize=access.connections,
            max_retries=0,
            # Without retries these settings only decide which hosts are avoided.
            retry_on_timeout=True,
            dead_timeout=_AVOID_HOST_S,
        )

    async def request(
        self, method: str, path: str, params: Mapping[str, str], body: object | None = None
    ) -> Any:
        """As `EngineClient`."""
        errors = self._errors
        try:
            # The library annotates `body` as bytes, but takes an object and writes the JSON itself.
            ask: Callable[..., Any] = self._client.transport.perform_request
            return await ask(method, path, params=dict(params), body=body)
        except errors.ConnectionTimeout:
            raise EngineTimeout(self._access) from None
        except errors.ConnectionError as error:
            lasting = isinstance(error.info, (ssl.SSLError, _certificate_errors()))
            raise EngineUnreachable(_one_line(error.error), lasting=lasting) from None
        except errors.SerializationError as error:
            raise EngineUnreachable(f"its answer is not JSON: {_one_line(error)}") from None
        except errors.TransportError as error:
            raise EngineRefused(int(error.status_code), _error_in(error.info)) from None

    async def close(self) -> None:
        """As `EngineClient`."""
        # The library closes only connections to hosts that are not avoided.
        for each in getattr(self._client.transport.connection_pool, "orig_connections", ()):
            await each.close()
        await self._client.close()


class ElasticsearchClient:
    """A client for Elasticsearch; its library refuses other products."""

    def __init__(self, access: Access) -> None:
        import elastic_transport
        import elasticsearch

        logging.getLogger("elastic_transport").setLevel(logging.CRITICAL)
        self._access = access
        self._transport_errors = elastic_transport
        self._errors = elasticsearch
        self._client = elasticsearch.AsyncElasticsearch(
            hosts=list(access.hosts),
            headers=dict(access.headers),
            ssl_context=access.tls,
            request_timeout=access.host_timeout_s,
            connections_per_node=access.connections,
            max_retries=0,
        )

    async def request(
        self, method: str, path: str, params: Mapping[str, str], body: object | None = None
    ) -> Any:
        """As `EngineClient`."""
        headers = {"accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
        transport = self._transport_errors
        try:
            answer = await self._client.perform_request(
                method, path, params=params, headers=headers, body=body
            )
        except transport.ConnectionTimeout:
            raise EngineTimeout(self._access) from None
        except transport.ConnectionError as error:
            lasting = isinstance(error, transport.TlsError)
            # The whole text lacks the reason once the library has looked for other hosts.
            raise EngineUnreachable(_one_line(error.message), lasting=lasting) from None
        except transport.SerializationError as error:
            raise EngineUnreachable(f"its answer is not JSON: {_one_line(error)}") from None
        except self._errors.UnsupportedProductError:
            raise EngineUnreachable("it is not Elasticsearch", lasting=True) from None
        except self._errors.ApiError as error:
            raise EngineRefused(error.meta.status, _error_in(error.body)) from None
        return answer.body

    async def close(self) -> None:
        """As `EngineClient`."""
        await self._client.close()


def _certificate_errors() -> type[Exception]:
    import aiohttp

    return aiohttp.ClientSSLError


def _error_in(body: object) -> object:
    return body.get("error", body) if isinstance(body, Mapping) else body


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
