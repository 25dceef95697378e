"""The kinds of first stages: the definition of a kind, Farrank's own kinds, and kinds of other packages.

A kind is one file with its options, its class and its row, and one line here. Another package adds its own by
an entry point of the group `farrank.first_stages`: the kind's name = "module:ROW".
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

from farrank_calls.telemetry.call_record import NO_CALL, CallRecord
from farrank_first_stage import FirstStage
from farrank_first_stage.config import DEFAULT_KIND, FirstStageConfig, IndexConfig
from farrank_first_stage.lucene_host import LuceneHost
from farrank_settings.errors import ConfigError
from farrank_settings.sources import Kinds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


KINDS: Mapping[str, str] = {
    "bm25": "farrank_first_stage.bm25:BM25",
    "rm3": "farrank_first_stage.bm25:RM3",
    "doc2query": "farrank_first_stage.bm25:DOC2QUERY",
    "impact": "farrank_first_stage.impact:IMPACT",
    "dense": "farrank_first_stage.dense:DENSE",
    "fusion": "farrank_first_stage.fusion:FUSION",
    "opensearch": "farrank_first_stage.search_engine:OPENSEARCH",
    "elasticsearch": "farrank_first_stage.search_engine:ELASTICSEARCH",
}

ENTRY_POINTS = "farrank.first_stages"


class QueryEncoder(Protocol):
    """A bi-encoder that computes a query's vector."""

    @property
    def version(self) -> str:
        """The `encodings_version` of its ranker."""
        ...

    async def encode(self, query: str, timeout_s: float, call: CallRecord = NO_CALL) -> "NDArray[np.float32]":
        """Encode a query for a call. Shapes: -> (H,).

        Raises: InvalidArgument if the query has no token; as the methods of `FirstStage`.
        """
        ...


async def no_encoders(ranker: str) -> QueryEncoder:
    """Refuse every name: no rankers are loaded."""
    raise ConfigError(f"no ranker {ranker!r} here: no rankers are loaded")


@dataclass(frozen=True, slots=True)
class StageContext:
    """The parts of the server that an index may need.

    `key` is the index's configuration key, for errors: `first_stage.indexes.NAME`. `stage` finds another
    index by its name, once all are opened. `lucene` is the process that searches local indexes. `encoder`
    finds a bi-encoder by the name of its ranker, and waits until it is loaded; it raises ConfigError if there
    is none.
    """

    name: str
    config: FirstStageConfig
    lucene: LuceneHost
    stage: Callable[[str], FirstStage]
    encoder: Callable[[str], Awaitable[QueryEncoder]] = no_encoders

    @property
    def key(self) -> str:
        """The index's key in the configuration."""
        return key_of(self.name)


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The rest of the configuration: all indexes, and the names of the rankers (None: without a server)."""

    indexes: Mapping[str, IndexConfig]
    rankers: Collection[str] | None = None


def no_problems(key: str, config: Any, context: CheckContext) -> Iterable[str]:
    """Find no problem: for kinds that cannot be checked before their start."""
    return ()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind's row. Its module imports nothing heavy, since it is imported to read the configuration.

    `options` is the dataclass of its settings. `open` creates the first stage of an index without starting
    it. `check` gets the key, the settings and the rest of the configuration. It finds the problems that can
    be found without starting anything, each as a line that begins with the key.
    """

    options: type[IndexConfig]
    open: Callable[[Any, StageContext], FirstStage]
    check: Callable[[str, Any, CheckContext], Iterable[str]] = no_problems


def key_of(name: str) -> str:
    """The configuration key of an index."""
    return f"first_stage.indexes.{name}"


@cache
def kind_named(name: str) -> Kind:
    """Find a kind here or in other packages.

    Raises: ConfigError that lists the known names, or describes the error in another package's kind.
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


# An entry of `first_stage.indexes` has the options of its kind.
INDEX_KINDS = Kinds(IndexConfig, DEFAULT_KIND, tuple(KINDS), lambda name: kind_named(name).options)
