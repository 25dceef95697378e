"""The requests to a search engine, and the meaning of its answers and errors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farrank_calls.errors import (
    DeadlineExceeded,
    DroppedAt,
    FarrankError,
    InvalidArgument,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from farrank_first_stage import Candidate
from farrank_first_stage.engine_client import EngineError, EngineRefused, texts_in
from farrank_rankers.json_values import bounded_text, loads
from farrank_settings.errors import ConfigError

QUERY, K = "{{query}}", "{{k}}"

_OURS = ("size", "from", "_source", "timeout", "track_total_hits", "sort", "post_filter")

# An engine that refuses a search has a full queue; an unavailable one mostly loses a node and finds another.
_FULL_HINT_MS = 1000
_DOWN_HINT_MS = 2000

_TOO_MANY_TERMS = ("too_many_clauses", "too_many_nested_clauses", "maxclausecount")
_TOO_MANY_CANDIDATES = ("result window is too large",)


class QueryBody:
    """The body of a search: `match` on the text field, or the content of a JSON file.

    In the file, `{{query}}` in any text is replaced by the query, and every value `"{{k}}"` by the number of
    candidates. The query is put into the parsed tree, so it can only be text there.

    `origin` is the configuration key of the body.
    Raises: ConfigError if the file cannot be used.
    """

    def __init__(self, text_field: str, path: Path | None) -> None:
        self.origin = "text_field" if path is None else "body"
        match = {"query": {"match": {text_field: {"query": QUERY}}}}
        self._tree: Mapping[str, Any] = match if path is None else _tree_of(path)

    def filled(
        self, query: str, k: int, timeout_s: float, *, among: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Build the body of one search, in the whole index or `among` documents, with the same scores."""
        body: dict[str, Any] = _filled(self._tree, query, k)
        if among is not None:
            only = {"ids": {"values": [*among]}}
            if self.origin == "body":
                # Not every query of a body may be nested in another one.
                body["post_filter"] = only
            else:
                body["query"] = {"bool": {"must": body["query"], "filter": only}}
        return {**body, "size": k, "timeout": duration(timeout_s)}


def duration(seconds: float) -> str:
    """Write a time as engines read it."""
    return f"{max(1, int(seconds * 1000))}ms"


def _tree_of(path: Path) -> dict[str, Any]:
    try:
        tree = loads(bounded_text(path))
    except OSError as error:
        raise ConfigError(f"body: {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"body: {path}: is not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"body: {path}: is not a JSON object, as the body of a search must be")
    if ours := [key for key in _OURS if key in tree]:
        raise ConfigError(f"body: {path}: sets {', '.join(ours)}, which the server sets itself; leave it out")
    if not any(QUERY in text for text in texts_in(tree)):
        raise ConfigError(f"body: {path}: no text in it contains {QUERY}, the place of the query")
    return tree


def _filled(node: Any, query: str, k: int) -> Any:
    if isinstance(node, dict):
        return {key: _filled(value, query, k) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(each, query, k) for each in node]
    if node == K:
        return k
    return node.replace(QUERY, query) if isinstance(node, str) else node


def candidates_in(answer: Any, fields: Sequence[str]) -> list[Candidate]:
    """Read the answer to a search: best first, equal scores in the order of doc_id.

    A document's text is the content of `fields` in its `_source`, joined by line feeds. A field that a
    document does not have is skipped.
    Raises: DeadlineExceeded if the engine stopped at the timeout; Unavailable if a part of the index did not
    answer, or the answer is not one to a search.
    """
    try:
        if answer["timed_out"]:
            raise too_late()
        if failed := answer["_shards"]["failed"]:
            raise down(f"{failed} of {answer['_shards']['total']} parts of the index did not answer")
        found = [
            Candidate(hit["_id"], text_of(hit.get("_source", {}), fields), float(hit["_score"]))
            for hit in answer["hits"]["hits"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise down(f"its answer is not a search result ({type(error).__name__}: {error})") from None
    return sorted(found, key=lambda each: (-each.score, each.doc_id))


def text_of(source: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Join the content of a document's `fields`, without those that it does not have."""
    return "\n".join(text for field in fields for text in texts_in(_value(source, field)))


def _value(source: Any, field: str) -> Any:
    """Find a field by its name, or by its path with dots, as engines name nested fields."""
    if not isinstance(source, Mapping):
        return None
    if field in source:
        return source[field]
    first, _, rest = field.partition(".")
    return _value(source.get(first), rest) if rest else None


def error_of(failure: EngineError) -> FarrankError:
    """Translate an engine's failure into an error for the caller.

    A 400 counts as the query's fault: the rest of the body was tried at the start.
    """
    if not isinstance(failure, EngineRefused):
        return down(str(failure))
    if failure.too_late:
        return too_late()
    if failure.status == 429:
        return ResourceExhausted(
            f"the search engine has no room for this search ({failure})",
            reason=Reason.FIRST_STAGE_FULL,
            retry_after_ms=_FULL_HINT_MS,
        )
    text = failure.text.lower()
    if any(each in text for each in _TOO_MANY_TERMS):
        return InvalidArgument(
            "query: has more terms than the search engine searches for (its "
            "indices.query.bool.max_clause_count); shorten it, or send the documents to Rerank"
        )
    if any(each in text for each in _TOO_MANY_CANDIDATES):
        return InvalidArgument("k: is larger than the index's index.max_result_window")
    if failure.status == 400:
        return InvalidArgument(f"query: the search engine rejects it: {failure.reasons}")
    return down(str(failure))


def too_late() -> DeadlineExceeded:
    """The error for a search that did not end within its caller's time."""
    return DeadlineExceeded("the search engine did not finish in time", dropped_at=DroppedAt.FIRST_STAGE)


def down(why: str) -> Unavailable:
    """The error for an engine that cannot be reached now."""
    return Unavailable(
        f"the search engine does not answer: {why}",
        reason=Reason.FIRST_STAGE_DOWN,
        retry_after_ms=_DOWN_HINT_MS,
    )


def ranking_in(settings: Any, mappings: Any, field: str) -> str:
    """Name how an index scores `match` on a field, e.g. `bm25(k1=1.2,b=0.75)`, from its settings and mapping.

    If several indexes behind one name score differently, all ways are named.
    """
    named = dict.fromkeys(
        _similarity(settings.get(index, {}).get("settings", {}), _mapped(mapping, field))
        for index, mapping in mappings.items()
    )
    return " or ".join(named) or "bm25"


def _mapped(mapping: Any, field: str) -> Mapping[str, Any]:
    """Find a field's mapping in the answer of `_mapping`."""
    below: Any = mapping.get("mappings", {})
    for name in field.split("."):
        # A nested field is one of its parent's `properties` or `fields`.
        below = (below.get("properties", {}) | below.get("fields", {})).get(name, {})
    return below if isinstance(below, Mapping) else {}


def _similarity(settings: Mapping[str, Any], mapped: Mapping[str, Any]) -> str:
    name = mapped.get("similarity", "default")
    below = f"index.similarity.{name}."
    values = {key.removeprefix(below): each for key, each in settings.items() if key.startswith(below)}
    kind = str(values.pop("type", "BM25" if name == "default" else name))
    if kind == "BM25":
        return f"bm25(k1={float(values.get('k1', 1.2)):g},b={float(values.get('b', 0.75)):g})"
    parameters = ",".join(f"{key}={each}" for key, each in sorted(values.items()))
    return f"{kind}({parameters})" if parameters else kind
