"""The clients of the two search engines behind one way to ask, and their failures as one set of errors.

Neither client tries again by itself: whoever waits knows how much time is left. Both leave a host aside for a
while after it did not answer, and go on with the others.
"""

import logging
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# How long OpenSearch's client first leaves a failed host aside; Elasticsearch's begins with a second.
_ASIDE_S = 2


@dataclass(frozen=True, slots=True)
class Access:
    """Where an engine is and how it is spoken to. `headers` hold the credentials.

    At most `connections` are open to each host, and a host that says nothing for `host_timeout_s` has failed.
    """

    hosts: Sequence[str]
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None
    connections: int
    host_timeout_s: float


class EngineError(Exception):
    """The engine gave no answer that can be used."""


class Refused(EngineError):
    """It answered with an HTTP status that is no success; `error` is what it said of it, mostly a tree."""

    def __init__(self, status: int, error: object) -> None:
        super().__init__(f"HTTP status {status}: {_kind_of(error)}")
        self.status = status
        self.error = error

    @property
    def said(self) -> str:
        """All of its texts, one after the other."""
        return " ".join(texts_in(self.error))

    @property
    def reasons(self) -> str:
        """Its reasons, each once and not too many; a caller's query may be among them."""
        reasons = dict.fromkeys(_reasons_in(self.error))
        return "; ".join(reasons)[:300] if reasons else _one_line(self.said)


class Unreachable(EngineError):
    """No connection, one that broke, an answer that broke off, or one that is none of an engine's.

    `lasting` says that another try would meet the same: a wrong certificate, another product.
    """

    def __init__(self, why: str, *, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


class Silent(EngineError):
    """A host said nothing for as long as hosts get."""

    def __init__(self, access: Access) -> None:
        super().__init__(f"it said nothing for {access.host_timeout_s:g} s")


class EngineClient(Protocol):
    """Asks an engine over HTTP, on the event loop that made it."""

    async def request(
        self, method: str, path: str, params: Mapping[str, str], body: object | None = None
    ) -> Any:
        """Ask one of the hosts; return what it answered, read from JSON.

        A caller that is cancelled closes its connection, at which engines end the search.
        Raises: Refused, Unreachable, Silent.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class OpenSearchClient:
    """Speaks with OpenSearch, and with whatever else answers as it does."""

    def __init__(self, access: Access) -> None:
        import opensearchpy

        # It would write each failure with a traceback; who asks writes what became of it.
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
            # With no retries left these only decide which hosts are left aside.
            retry_on_timeout=True,
            dead_timeout=_ASIDE_S,
        )

    async def request(
        self, method: str, path: str, params: Mapping[str, str], body: object | None = None
    ) -> Any:
        """As `EngineClient`."""
        errors = self._errors
        try:
            # The library's own annotation of `body`, bytes, is not what it takes: it writes the JSON itself.
            ask: Callable[..., Any] = self._client.transport.perform_request
            return await ask(method, path, params=dict(params), body=body)
        except errors.ConnectionTimeout:
            raise Silent(self._access) from None
        except errors.ConnectionError as error:
            lasting = isinstance(error.info, (ssl.SSLError, _certificate_errors()))
            raise Unreachable(_one_line(error.error), lasting=lasting) from None
        except errors.SerializationError as error:
            raise Unreachable(f"its answer is no JSON: {_one_line(error)}") from None
        except errors.TransportError as error:
            raise Refused(int(error.status_code), _error_in(error.info)) from None

    async def close(self) -> None:
        """As `EngineClient`."""
        # The library closes those alone that are not left aside.
        for each in getattr(self._client.transport.connection_pool, "orig_connections", ()):
            await each.close()
        await self._client.close()


class ElasticsearchClient:
    """Speaks with Elasticsearch; its library refuses other products, and so does this."""

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
            raise Silent(self._access) from None
        except transport.ConnectionError as error:
            lasting = isinstance(error, transport.TlsError)
            # Its text as a whole leaves the reason out once the library has looked for other hosts.
            raise Unreachable(_one_line(error.message), lasting=lasting) from None
        except transport.SerializationError as error:
            raise Unreachable(f"its answer is no JSON: {_one_line(error)}") from None
        except self._errors.UnsupportedProductError:
            raise Unreachable("it is no Elasticsearch", lasting=True) from None
        except self._errors.ApiError as error:
            raise Refused(error.meta.status, _error_in(error.body)) from None
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
    """Name an error without its reason, which may hold a caller's query."""
    return str(error.get("type", "no type")) if isinstance(error, Mapping) else "no error of an engine"


def texts_in(tree: object) -> Iterator[str]:
    """Walk through the texts of a tree that was read from JSON; its keys are none."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, (dict, list)):
        for below in tree.values() if isinstance(tree, dict) else tree:
            yield from texts_in(below)


def _reasons_in(tree: object) -> Iterator[str]:
    """Walk through the reasons of an error and of its causes; that all shards failed is none."""
    reason = tree.get("reason") if isinstance(tree, dict) else None
    if isinstance(reason, str) and reason != "all shards failed":
        yield reason
    if isinstance(tree, (dict, list)):
        for below in tree.values() if isinstance(tree, dict) else tree:
            yield from _reasons_in(below)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]
