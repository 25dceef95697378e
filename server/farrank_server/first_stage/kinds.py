"""The kinds of first stages: what a kind is, which ones Farrank has, and where those of others come from.

A kind is one file with its options, its class and its row, and one line here. Another package brings its own
by an entry point of the group `farrank.first_stages`: the kind's name = "module:ROW".
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

from farrank_server.batching.fair_order import NOBODY, Account
from farrank_server.config.schema import FirstStageConfig, IndexConfig
from farrank_server.errors import ConfigError
from farrank_server.first_stage import FirstStage
from farrank_server.first_stage.lucene_host import LuceneHost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


KINDS: Mapping[str, str] = {
    "bm25": "farrank_server.first_stage.bm25:BM25",
    "rm3": "farrank_server.first_stage.bm25:RM3",
    "doc2query": "farrank_server.first_stage.bm25:DOC2QUERY",
    "impact": "farrank_server.first_stage.impact:IMPACT",
    "dense": "farrank_server.first_stage.dense:DENSE",
    "fusion": "farrank_server.first_stage.fusion:FUSION",
    "opensearch": "farrank_server.first_stage.search_engine:OPENSEARCH",
    "elasticsearch": "farrank_server.first_stage.search_engine:ELASTICSEARCH",
}

ENTRY_POINTS = "farrank.first_stages"


class QueryEncoder(Protocol):
    """A bi-encoder that makes a query's vector."""

    @property
    def version(self) -> str:
        """Its ranker's `encodings_version`."""
        ...

    async def encode(self, query: str, timeout_s: float, account: Account = NOBODY) -> "NDArray[np.float32]":
        """Encode a query for an account. Shapes: -> (H,).

        Raises: InvalidArgument if it holds no token; as the methods of `FirstStage`.
        """
        ...


async def no_encoders(ranker: str) -> QueryEncoder:
    """Refuse: there is nothing around that has rankers."""
    raise ConfigError(f"no ranker {ranker!r} here: no rankers are loaded")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an index may need of the server around it.

    `key` is the configuration's, for errors: `first_stage.indexes.NAME`. `stage` finds another index by its
    name, once all are opened. `lucene` is the process in which the local ones are searched. `encoder` finds a
    bi-encoder by the name of its ranker, and waits until it is loaded; it raises ConfigError where there is
    none.
    """

    name: str
    config: FirstStageConfig
    lucene: LuceneHost
    stage: Callable[[str], FirstStage]
    encoder: Callable[[str], Awaitable[QueryEncoder]] = no_encoders

    @property
    def key(self) -> str:
        """Where the configuration speaks of the index."""
        return key_of(self.name)


@dataclass(frozen=True, slots=True)
class Configured:
    """What else is configured: all indexes, and the names of the rankers (None: without a server)."""

    indexes: Mapping[str, IndexConfig]
    rankers: Collection[str] | None = None


def no_problems(key: str, config: Any, configured: Configured) -> Iterable[str]:
    """Find nothing: for kinds of which nothing can be known before their start."""
    return ()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind's row. Its module imports nothing heavy: it is read with the configuration.

    `options` are its settings. `open` makes the first stage of an index, and starts nothing yet. `check` is
    given the key, the settings and what else is configured; it finds what can be found without starting
    anything: every problem as a line that begins with the key.
    """

    options: type[IndexConfig]
    open: Callable[[Any, Surroundings], FirstStage]
    check: Callable[[str, Any, Configured], Iterable[str]] = no_problems


def key_of(name: str) -> str:
    """Name an index as the configuration does."""
    return f"first_stage.indexes.{name}"


@cache
def kind_named(name: str) -> Kind:
    """Look a kind up, here and among those of other packages.

    Raises: ConfigError that lists the known names, or says what is wrong with another package's.
    """
    offered = entry_points(group=ENTRY_POINTS)
    where = KINDS.get(name) or (offered[name].value if name in offered.names else None)
    if where is None:
        known = ", ".join([*KINDS, *sorted(offered.names)])
        raise ConfigError(f"kind: {name!r} is not allowed; it must be one of {known}")
    module, _, attribute = where.partition(":")
    try:
        row = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"kind: {name}: {where} cannot be imported: {error}") from error
    if not isinstance(row, Kind):
        raise ConfigError(f"kind: {name}: {where} is {row!r}; it must be a Kind")
    return row
