"""Vectors: finds documents whose chunks lie nearest to the query's vector."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farrank_calls.telemetry.call_record import CallRecord
from farrank_first_stage.config import IndexConfig
from farrank_first_stage.kinds import CheckContext, Kind, QueryEncoder, StageContext
from farrank_first_stage.lucene_stage import LuceneStage, check_lucene
from farrank_indexes.index_manifest import read_manifest
from farrank_lucene.lucene_fields import NO_VECTORS, VECTORS
from farrank_settings.checked import at_least
from farrank_settings.errors import ConfigError

# A query that is encoded at the start, to find the width of its vector.
_TRIAL_QUERY, _TRIAL_S = "a query", 60.0


@dataclass(frozen=True, slots=True)
class DenseConfig(IndexConfig):
    """An index of chunk vectors, and the bi-encoder for the queries' vectors.

    A document's score is the highest inner product of its chunks' vectors with the query's. This is the
    cosine if the bi-encoder makes unit vectors. `encoder` is the name of a ranker of this server, the same
    that made the index's vectors. An index of at most `exact_below` chunks is scanned. In a larger one,
    Lucene's HNSW graph is searched for the best `ef_search` chunks, or for the mean number of chunks of k
    documents if that is more.
    """

    kind: str = field(default="dense", kw_only=True)
    path: Path
    encoder: str = field(metadata={"holds": bool, "allowed": "the name of a bi-encoder among the rankers"})
    ef_search: int = at_least(1, 400)
    exact_below: int = at_least(0, 50_000)


class DenseStage(LuceneStage):
    """The index of one `DenseConfig`."""

    def __init__(self, config: DenseConfig, context: StageContext) -> None:
        ranks = {"by": "dense", "ef_search": config.ef_search, "exact_below": config.exact_below}
        parameters = f"encoder={config.encoder},ef={config.ef_search},exact_below={config.exact_below}"
        super().__init__(context, config.kind, config.path, ranks, f"dense({parameters})")
        # Keep only the parts that are needed: `context` leads to all stages, which would form a reference
        # cycle.
        self._config, self._encoder_named = config, context.encoder
        self._encoder: QueryEncoder | None = None

    async def start(self) -> None:
        """Wait until the bi-encoder is loaded, and check it against the index's vectors.

        Raises: ConfigError if the ranker is not a bi-encoder, or did not make these vectors.
        """
        await super().start()
        key, name = f"{self._key}.encoder", self._config.encoder
        try:
            encoder = await self._encoder_named(name)
        except ConfigError as error:
            raise ConfigError(*(f"{key}: {problem}" for problem in error.problems)) from None
        manifest = await asyncio.to_thread(read_manifest, self._config.path)
        made_by = manifest.vectors.version if manifest and manifest.vectors else None
        if made_by not in (None, encoder.version):
            raise ConfigError(
                f"{key}: {name} has version {encoder.version}; the vectors of {self._config.path} were "
                f"made by version {made_by}: index again with --encode, or configure that ranker"
            )
        width = len(await encoder.encode(_TRIAL_QUERY, _TRIAL_S))
        if width != (held := self._host.opened[self._name]["width"]):
            raise ConfigError(
                f"{key}: the vectors of {name} have {width} dimensions; those of {self._config.path} have "
                f"{held}"
            )
        self._encoder = encoder

    async def query_of(self, query: str, timeout_s: float, call: CallRecord) -> Mapping[str, Any]:
        """Encode the query."""
        assert self._encoder is not None, "not started"
        return {"vector": (await self._encoder.encode(query, timeout_s, call)).tolist()}


def _check(key: str, config: DenseConfig, context: CheckContext) -> Iterator[str]:
    yield from check_lucene(key, config.path)
    if any(config.path.glob("segments_*")) and not any((config.path / VECTORS).glob("segments_*")):
        yield f"{key}.path: {config.path}: {NO_VECTORS}"
    # A member of an ensemble is named NAME/MEMBER.
    if context.rankers is not None and config.encoder.partition("/")[0] not in context.rankers:
        known = ", ".join(context.rankers)
        yield f"{key}.encoder: no ranker {config.encoder!r} is configured; known are: {known}"


DENSE = Kind(DenseConfig, DenseStage, _check)
