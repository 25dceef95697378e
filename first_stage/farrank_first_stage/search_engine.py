"""OpenSearch and Elasticsearch as first stage."""

import asyncio
import base64
import importlib.util
import logging
import os
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from farrank_calls.errors import FarrankError, Gone, Unavailable
from farrank_calls.telemetry.call_record import NO_CALL, CallRecord
from farrank_first_stage import Candidate, FirstStage, IndexDescription
from farrank_first_stage.config import IndexConfig
from farrank_first_stage.engine_client import (
    Access,
    EngineClient,
    EngineError,
    EngineRefused,
    EngineUnreachable,
)
from farrank_first_stage.engine_messages import (
    QueryBody,
    candidates_in,
    down,
    duration,
    error_of,
    ranking_in,
    text_of,
)
from farrank_first_stage.kinds import CheckContext, Kind, StageContext
from farrank_rankers.json_values import bounded_text
from farrank_settings.checked import above_0, must
from farrank_settings.errors import ConfigError

_log = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.25
_LONGEST_DELAY_S = 5.0

# Number of documents that are read at the start, to find their length and to check the text field.
_SAMPLED = 50
_TRIAL_QUERY = "test"

_MAX_CREDENTIALS_BYTES = 2**16


def _are_hosts(texts: Sequence[str]) -> bool:
    try:
        urls = [urlsplit(text) for text in texts]
        whole = all(url.hostname and url.hostname.encode("idna") and url.port for url in urls)
    except ValueError:  # a port that is not a number, a name with an empty or too long part
        return False
    return whole and {url.scheme for url in urls} in ({"http"}, {"https"})


@dataclass(frozen=True, slots=True)
class SearchEngineConfig(IndexConfig):
    """One index of an OpenSearch or Elasticsearch that runs elsewhere.

    `index` is a name, an alias or a pattern. A document's text is its `title_field`, if one is set, and its
    `text_field`, in which `match` searches; `body` is a JSON file with another search. `credentials_env`
    names an environment variable, or `credentials_file` a file, with NAME:PASSWORD, `ApiKey KEY` or `Bearer
    TOKEN`. A host that does not answer completely within `host_timeout_s` is avoided for a while.
    """

    hosts: tuple[str, ...] = must(
        (),
        _are_hosts,
        "hosts with their ports, such as https://search.example:9200, all https or all http",
    )
    index: str = must("", bool, "the name of an index")
    text_field: str = must("", bool, "the name of a field")
    title_field: str | None = None
    body: Path | None = None
    ca_file: Path | None = None
    credentials_env: str | None = None
    credentials_file: Path | None = None
    host_timeout_s: float = above_0(10.0)

    def __post_init__(self) -> None:
        """Also refuse credentials in an address, and leave them out of the error: addresses are logged."""
        if any("@" in host for host in self.hosts):
            problem = "an address contains credentials; put them in credentials_file or credentials_env"
            raise ConfigError(f"hosts: {problem}")
        IndexConfig.__post_init__(self)


@dataclass(frozen=True, slots=True)
class Product:
    """One of the two products: its name (also of its extra), and its name in the header X-Elastic-Product."""

    name: str
    header: str | None = None


class SearchEngine(FirstStage):
    """Searches one index of an engine that runs, is filled and is monitored elsewhere.

    This class stores no data: each search is one request. A cancelled search closes its connection, and the
    engine then ends the search.
    """

    def __init__(self, product: Product, config: SearchEngineConfig, context: StageContext) -> None:
        self._product = product
        self._config = config
        self._key = context.key
        self._name = context.name
        self._start_timeout_s = context.config.start_timeout_s
        self._connections = context.config.max_searches
        self._fields = _fields(config)
        self._path = "/" + quote(config.index, safe=",*-")
        self._body = _body(config)
        self._answers = True
        self._client: EngineClient | None = None
        self._description: IndexDescription | None = None

    async def start(self) -> None:
        """Wait until the engine answers, try a search, and read the description of the index.

        Raises: ConfigError if the engine does not answer within first_stage.start_timeout_s, has no such
        index or field, or refuses the credentials or the body.
        """
        config = self._config
        self._client = EngineClient(
            Access(
                config.hosts,
                _headers(config),
                _tls(config),
                self._connections,
                config.host_timeout_s,
                self._product.header,
            )
        )
        self._description = await self._wait_until_ready(self._client)

    async def stop(self) -> None:
        """Close the connections."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    def describe(self) -> IndexDescription:
        """Describe the index's content at the start, and how it ranks."""
        assert self._description is not None, "not started"
        return self._description

    async def search(
        self, query: str, k: int, timeout_s: float, *, texts: bool = True, call: CallRecord = NO_CALL
    ) -> list[Candidate]:
        """Return at most `k` candidates, best first, equal scores in the order of doc_id."""
        return await self._candidates(self._body.filled(query, k, timeout_s), self._fields if texts else [])

    async def texts(
        self, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> list[str]:
        """Return the texts of documents, in the order given.

        Raises: Gone, naming the documents that the index does not have (any more); the errors of `search`.
        """
        body = {
            "query": {"ids": {"values": [*doc_ids]}},
            "size": len(doc_ids),
            "timeout": duration(timeout_s),
        }
        found = {each.doc_id: each.text for each in await self._candidates(body, self._fields)}
        if gone := [doc_id for doc_id in doc_ids if doc_id not in found]:
            raise Gone(gone)
        return [found[doc_id] for doc_id in doc_ids]

    async def scores(
        self, query: str, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> Mapping[str, float]:
        """Score these documents as `search` would; documents that it would not find are left out."""
        body = self._body.filled(query, len(doc_ids), timeout_s, among=doc_ids)
        return {each.doc_id: each.score for each in await self._candidates(body, [])}

    async def _candidates(self, body: Mapping[str, Any], fields: Sequence[str]) -> list[Candidate]:
        """Search once. Raises: the error for the caller."""
        if self._client is None:
            raise down("this server ends")
        try:
            answer = await self._ask(self._client, body, fields)
            found = candidates_in(answer, fields)
        except EngineError as failure:
            error = error_of(failure)
            self._log_state(error)
            raise error from None
        except Unavailable as error:
            self._log_state(error)
            raise
        self._log_state(None)
        return found

    async def _ask(self, client: EngineClient, body: Mapping[str, Any], fields: Sequence[str]) -> Any:
        # A part of the best hits would look like all of them: an engine that cannot return all must fail.
        params = {"allow_partial_search_results": "false"}
        asked = {**body, "_source": [*fields] or False, "track_total_hits": False}
        return await client.request("POST", f"{self._path}/_search", params, asked)

    def _log_state(self, error: FarrankError | None) -> None:
        """Log once that the engine is down, and once that it answers again, however many searches fail."""
        if isinstance(error, Unavailable) and self._answers:
            self._answers = False
            _log.error("%s: %s", self._key, error)
        elif error is None and not self._answers:
            self._answers = True
            _log.info("%s: the search engine answers again", self._key)

    async def _wait_until_ready(self, client: EngineClient) -> IndexDescription:
        """Describe the index; an engine that is down gets time to start."""
        delay_s, why = _FIRST_DELAY_S, "no answer yet"
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while True:
                    try:
                        return await self._describe_index(client)
                    except EngineError as failure:
                        if problem := self._lasting_problem(failure):
                            raise ConfigError(f"{self._key}.{problem}") from None
                        why = str(failure)
                    if delay_s == _FIRST_DELAY_S:
                        _log.warning("%s: waiting for %s: %s", self._key, self._hosts, why)
                    await asyncio.sleep(delay_s)
                    delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
        except TimeoutError:
            waited = f"no answer within first_stage.start_timeout_s, {self._start_timeout_s:g} s: {why}"
            raise ConfigError(f"{self._key}.hosts: {self._hosts}: {waited}") from None

    async def _describe_index(self, client: EngineClient) -> IndexDescription:
        counted = await client.request("GET", f"{self._path}/_count", {"allow_no_indices": "false"})
        sample = await self._ask(client, {"query": {"match_all": {}}, "size": _SAMPLED}, self._fields)
        try:
            documents = int(counted["count"])
            sources = [hit.get("_source", {}) for hit in sample["hits"]["hits"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise EngineUnreachable("it answers, but not like a search engine", lasting=True) from None
        if sources and not any(text_of(source, [self._config.text_field]) for source in sources):
            looked = f"none of {len(sources)} documents has a text of that name in its _source"
            raise ConfigError(f"{self._key}.text_field: {self._config.text_field!r}: {looked}")
        try:
            trial = self._body.filled(_TRIAL_QUERY, 1, self._config.host_timeout_s)
            await self._ask(client, trial, self._fields)
        except EngineRefused as failure:
            if failure.status != 400:
                raise
            problem = f"the engine rejects it: {failure.reasons}"
            raise ConfigError(f"{self._key}.{self._body.origin}: {problem}") from None
        lengths = [len(text_of(source, self._fields)) for source in sources]
        return IndexDescription(
            self._name,
            kind=self._product.name,
            documents=documents,
            ranking=f"{self._product.name}({await self._ranking(client)})",
            mean_characters=round(sum(lengths) / len(lengths)) if lengths else 0,
        )

    async def _ranking(self, client: EngineClient) -> str:
        if self._config.body is not None:
            return self._config.body.name
        try:
            settings = await client.request("GET", f"{self._path}/_settings", {"flat_settings": "true"})
            mappings = await client.request("GET", f"{self._path}/_mapping", {})
        except EngineRefused:
            # Credentials that allow searching need not allow this.
            return "match"
        return ranking_in(settings, mappings, self._config.text_field)

    def _lasting_problem(self, failure: EngineError) -> str | None:
        """Name the wrong key if waiting would not help; otherwise return None."""
        if isinstance(failure, EngineUnreachable) and failure.lasting:
            return f"hosts: {self._hosts}: {failure}"
        match failure:
            case EngineRefused(status=404):
                return f"index: there is no index {self._config.index!r} at {self._hosts}"
            case EngineRefused(status=401 | 403):
                key = "credentials_env" if self._config.credentials_env else "credentials_file"
                return f"{key}: the engine denies access to {self._config.index!r} ({failure})"
            case EngineRefused(status=status) if status < 500 and status != 429:
                return f"hosts: {self._hosts}: {failure}"
        return None

    @property
    def _hosts(self) -> str:
        return ", ".join(self._config.hosts)


def _fields(config: SearchEngineConfig) -> list[str]:
    """List the fields that form a document's text, in their order."""
    return [field for field in (config.title_field, config.text_field) if field is not None]


def _body(config: SearchEngineConfig) -> QueryBody:
    return QueryBody(config.text_field, config.body)


def _tls(config: SearchEngineConfig) -> ssl.SSLContext | None:
    if config.hosts[0].startswith("http://"):
        if config.ca_file is not None:
            raise ConfigError(f"ca_file: {config.ca_file}: is for https, but the hosts are http")
        return None
    try:
        return ssl.create_default_context(cafile=config.ca_file)
    except OSError as error:  # ssl's own errors are among them
        raise ConfigError(f"ca_file: {config.ca_file}: {error.strerror or error}") from None


def _headers(config: SearchEngineConfig) -> dict[str, str]:
    """Build the header with the credentials, which are held only here and never logged."""
    if config.credentials_env is not None:
        place = f"credentials_env: {config.credentials_env}"
        secret = os.environ.get(config.credentials_env, "")
    elif config.credentials_file is not None:
        place = f"credentials_file: {config.credentials_file}"
        try:
            secret = bounded_text(config.credentials_file, _MAX_CREDENTIALS_BYTES)
        except OSError as error:
            raise ConfigError(f"{place}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{place}: is not UTF-8") from None
        except ValueError as error:
            raise ConfigError(f"{place}: {error}") from None
    else:
        return {}
    secret = secret.strip()
    scheme, _, rest = secret.partition(" ")
    if secret.isprintable():
        if scheme in ("ApiKey", "Bearer") and rest and secret.isascii():
            return {"authorization": secret}
        if ":" in secret:
            return {"authorization": "Basic " + base64.b64encode(secret.encode()).decode()}
    problem = "holds none of these" if secret else "is empty or missing"
    raise ConfigError(f"{place}: {problem}: NAME:PASSWORD, ApiKey KEY, Bearer TOKEN")


def _check(product: Product, key: str, config: SearchEngineConfig, context: CheckContext) -> Iterable[str]:
    """Find problems without a request to the engine: the client's package, files and credentials."""
    if importlib.util.find_spec("aiohttp") is None:
        yield f"{key}.kind: {product.name} needs a package: pip install 'farrank[{product.name}]'"
    if config.credentials_env is not None and config.credentials_file is not None:
        yield f"{key}.credentials_file: credentials_env is set, too; set one of them"
    for read in (_body, _tls, _headers):
        try:
            read(config)
        except ConfigError as error:
            yield from (f"{key}.{problem}" for problem in error.problems)


def _kind(product: Product) -> Kind:
    return Kind(SearchEngineConfig, partial(SearchEngine, product), partial(_check, product))


OPENSEARCH = _kind(Product("opensearch"))
ELASTICSEARCH = _kind(Product("elasticsearch", "Elasticsearch"))
