"""The answer to a rerank: documents in their new order, with evidence, usage and timings."""

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Self

from google.protobuf.message import Message

from farrank.v1 import rerank_pb2


class FlatMessage:
    """A dataclass whose fields are those of its message, by name, and plain values."""

    __slots__ = ()

    @classmethod
    def from_pb(cls, message: Message) -> Self:
        """Read it off the wire."""
        names: Any = cls
        return cls(**{each.name: getattr(message, each.name) for each in fields(names)})


class WireEnum(Enum):
    """An enum of the wire. A value that a newer server added counts as UNSPECIFIED, 0."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        return cls(0)


class Evidence(WireEnum):
    """What the score of a passage means, and so why the passage counts as the deciding one."""

    UNSPECIFIED = rerank_pb2.EVIDENCE_UNSPECIFIED
    """Not set."""
    CHUNK_SCORE = rerank_pb2.EVIDENCE_CHUNK_SCORE
    """The score that the ranker gives to this chunk alone."""
    ATTENTION = rerank_pb2.EVIDENCE_ATTENTION
    """The weight with which the aggregator attends to this chunk; a document's weights sum to 1."""
    LEAVE_ONE_OUT = rerank_pb2.EVIDENCE_LEAVE_ONE_OUT
    """How much the document's score falls when this chunk is left out."""


class ScoreScale(WireEnum):
    """The scale of scores. It never changes the order."""

    UNSPECIFIED = rerank_pb2.SCORE_SCALE_UNSPECIFIED
    """Not set: RAW."""
    RAW = rerank_pb2.SCORE_SCALE_RAW
    """As the ranker computes them: a cross-encoder's logit, a bi-encoder's cosine or dot product."""
    SIGMOID = rerank_pb2.SCORE_SCALE_SIGMOID
    """1 / (1 + exp(-raw)), between 0 and 1: sentence-transformers' default for a cross-encoder."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk of a document: characters `start` to `end` (exclusive), its score and the score's meaning.

    Offsets count Unicode code points, as Python's strings do: not bytes, not UTF-16 units.
    """

    start: int
    end: int
    score: float
    evidence: Evidence

    @classmethod
    def from_pb(cls, message: rerank_pb2.Passage) -> Self:
        """Read a passage off the wire."""
        return cls(message.start, message.end, message.score, Evidence(message.evidence))

    def text_in(self, document_text: str) -> str:
        """Cut the passage out of its document's text."""
        return document_text[self.start : self.end]


@dataclass(frozen=True, slots=True)
class Result:
    """One document of a ranking.

    `index` is its place in the request (after a search: in the first stage's order). `score` is higher for
    better documents, and comparable only within one query and ranker. `deciding_passage` is None for a
    document without tokens; `chunks` and `text` are filled where the call asked for them. `characters_cut`
    counts the characters after the last token that was read; `tokens_cut` is estimated from them, unless the
    call asked to count. `first_stage_score` is set after a search.
    """

    id: str
    index: int
    score: float
    deciding_passage: Passage | None
    chunks: tuple[Passage, ...]
    text: str | None
    tokens_cut: int
    first_stage_score: float | None
    characters_cut: int = 0

    @classmethod
    def from_pb(cls, message: rerank_pb2.Result) -> Self:
        """Read a result off the wire."""
        deciding = message.deciding_passage if message.HasField("deciding_passage") else None
        return cls(
            id=message.id,
            index=message.index,
            score=message.score,
            deciding_passage=None if deciding is None else Passage.from_pb(deciding),
            chunks=tuple(map(Passage.from_pb, message.chunks)),
            text=message.text if message.HasField("text") else None,
            tokens_cut=message.tokens_cut,
            first_stage_score=message.first_stage_score if message.HasField("first_stage_score") else None,
            characters_cut=message.characters_cut,
        )


@dataclass(frozen=True, slots=True)
class Usage(FlatMessage):
    """What a call took in and cost; `pairs` and `padded_tokens` count what ran on the device for it."""

    tokens: int
    chunks: int
    pairs: int
    padded_tokens: int
    cached_chunks: int


@dataclass(frozen=True, slots=True)
class Timings(FlatMessage):
    """Where the server's time went; stages overlap, so the parts may sum to more than the total."""

    total_ns: int
    first_stage_ns: int
    tokenization_ns: int
    queue_ns: int
    inference_ns: int
    aggregation_ns: int


@dataclass(frozen=True, slots=True)
class RankerVersion(FlatMessage):
    """Which ranker scored: its name, a version that changes with weights and chunking, and what ran it."""

    name: str
    version: str
    runtime: str = ""
    precision: str = ""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents, best first; equal scores keep the order of the request.

    `query_tokens_cut` counts the query's tokens beyond the ranker's limit; `index` names the index that
    was searched, None where the caller brought the documents.
    """

    results: tuple[Result, ...]
    query_tokens_cut: int
    usage: Usage
    timings: Timings
    ranker: RankerVersion
    index: str | None = None
    score_scale: ScoreScale = ScoreScale.UNSPECIFIED

    @classmethod
    def from_pb(cls, message: rerank_pb2.RerankResponse | rerank_pb2.SearchAndRerankResponse) -> Self:
        """Read the response to either call off the wire."""
        return cls(
            results=tuple(map(Result.from_pb, message.results)),
            query_tokens_cut=message.query_tokens_cut,
            usage=Usage.from_pb(message.usage),
            timings=Timings.from_pb(message.timings),
            ranker=RankerVersion.from_pb(message.ranker),
            index=message.index if isinstance(message, rerank_pb2.SearchAndRerankResponse) else None,
            score_scale=ScoreScale(message.score_scale),
        )
