"""BM25 over a Lucene index: alone, with the relevance model RM3, or over texts with their expansions."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from farrank_first_stage.config import IndexConfig
from farrank_first_stage.kinds import CheckContext, Kind, StageContext
from farrank_first_stage.lucene_stage import LuceneStage, check_lucene
from farrank_settings.checked import CheckedConfig, at_least, between


@dataclass(frozen=True, slots=True)
class Rm3Config(CheckedConfig):
    """Pseudo-relevance feedback with a relevance model (Abdul-Jaleel et al., TREC 2004)."""

    feedback_terms: int = at_least(1, 10)
    feedback_documents: int = at_least(1, 10)
    original_query_weight: float = between(0, 1, 0.5)


@dataclass(frozen=True, slots=True)
class Bm25Config(IndexConfig):
    """BM25 with Anserini's defaults, and RM3 if it has settings."""

    path: Path
    k1: float = at_least(0, 0.9)
    b: float = between(0, 1, 0.4)
    rm3: Rm3Config | None = None


@dataclass(frozen=True, slots=True)
class Bm25Rm3Config(Bm25Config):
    """The same with RM3, unless `rm3` is set to None."""

    kind: str = field(default="rm3", kw_only=True)
    rm3: Rm3Config | None = field(default_factory=Rm3Config)


@dataclass(frozen=True, slots=True)
class Doc2QueryConfig(IndexConfig):
    """BM25 over each document's text and the expansions that the collection has for it.

    Documents without expansions are searched by their text only.
    """

    kind: str = field(default="doc2query", kw_only=True)
    path: Path
    k1: float = at_least(0, 0.9)
    b: float = between(0, 1, 0.4)


def _ranking(config: Bm25Config) -> str:
    """Name an index's way to rank and its parameters."""
    ranking = f"bm25(k1={config.k1:g},b={config.b:g})"
    if config.rm3 is None:
        return ranking
    terms, documents = config.rm3.feedback_terms, config.rm3.feedback_documents
    weight = config.rm3.original_query_weight
    return f"{ranking}+rm3(terms={terms},documents={documents},weight={weight:g})"


class Bm25Stage(LuceneStage):
    """The index of one `Bm25Config`."""

    def __init__(self, config: Bm25Config, context: StageContext) -> None:
        ranks: dict[str, Any] = {"by": "bm25", "k1": config.k1, "b": config.b}
        ranks["rm3"] = None if config.rm3 is None else asdict(config.rm3)
        super().__init__(context, config.kind, config.path, ranks, _ranking(config))


class Doc2QueryStage(LuceneStage):
    """The index of one `Doc2QueryConfig`."""

    def __init__(self, config: Doc2QueryConfig, context: StageContext) -> None:
        ranks = {"by": "expanded", "k1": config.k1, "b": config.b}
        ranking = f"doc2query+bm25(k1={config.k1:g},b={config.b:g})"
        super().__init__(context, config.kind, config.path, ranks, ranking)


def _check(key: str, config: Bm25Config | Doc2QueryConfig, context: CheckContext) -> Iterable[str]:
    return check_lucene(key, config.path)


BM25 = Kind(Bm25Config, Bm25Stage, _check)
RM3 = Kind(Bm25Rm3Config, Bm25Stage, _check)
DOC2QUERY = Kind(Doc2QueryConfig, Doc2QueryStage, _check)
