"""The configuration of the first stages: the limits of all, and the options that every kind of index has."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from farrank_settings.checked import CheckedConfig, above_0, at_least

DEFAULT_KIND = "bm25"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig(CheckedConfig):
    """The options that every kind of index has; each kind adds its own in another frozen dataclass.

    Fields may have the types that `farrank_settings.sources` reads; `farrank_settings.checked`
    declares limits. An entry
    of the configuration has the options of the kind that it names.
    """

    kind: str = DEFAULT_KIND


@dataclass(frozen=True, slots=True)
class FirstStageConfig(CheckedConfig):
    """The sources of candidates for calls without documents: indexes by name, with the options of their kind.

    `default_k` is the number of candidates to rerank if the caller gives none; None means 20 on a CPU, which
    scores about as many long documents within the default deadline, and 100 on an accelerator. `max_searches`
    limits the searches that run or wait at once, `max_query_terms` the distinct terms of one (by default
    Lucene's own limit). A search process is restarted if it is silent for `hang_after_s`, or if all its
    threads are busy for six times as long and none finishes a search. With `verify_stores`, the data stored
    with an index is read whole at the start, and every file is compared with its digest; otherwise only sizes
    are compared.
    """

    indexes: Mapping[str, IndexConfig] = field(default_factory=dict)
    default_k: int | None = at_least(1, None)
    search_threads: int = at_least(1, 2)
    max_searches: int = at_least(1, 256)
    max_query_terms: int = at_least(1, 1024)
    start_timeout_s: float = above_0(120.0)
    hang_after_s: float = above_0(10.0)
    verify_stores: bool = True
