"""The answer to a rerank: documents in their new order, with evidence, usage and timings."""

from dataclasses import dataclass
from enum import Enum
from typing import Self

from farrank.v1 import rerank_pb2


class Evidence(Enum):
    """What the score of a passage is, and so why it is said to have decided."""

    UNSPECIFIED = rerank_pb2.EVIDENCE_UNSPECIFIED
    """Not said."""
    CHUNK_SCORE = rerank_pb2.EVIDENCE_CHUNK_SCORE
    """The score that the ranker gives to this chunk alone."""
    ATTENTION = rerank_pb2.EVIDENCE_ATTENTION
    """The weight with which the aggregator attends to this chunk; a document's weights sum to 1."""
    LEAVE_ONE_OUT = rerank_pb2.EVIDENCE_LEAVE_ONE_OUT
    """How much the document's score falls when this chunk is left out."""

    @classmethod
    def from_pb(cls, value: int) -> Self:
        """Read the wire's number; one that a newer server added counts as not said."""
        try:
            return cls(value)
        except ValueError:
            return cls(rerank_pb2.EVIDENCE_UNSPECIFIED)


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
        return cls(message.start, message.end, message.score, Evidence.from_pb(message.evidence))

    def text_in(self, document_text: str) -> str:
        """Cut the passage out of its document's text."""
        return document_text[self.start : self.end]


@dataclass(frozen=True, slots=True)
class Result:
    """One document of a ranking.

    `index` is its place in the request (after a search: in the first stage's order). `score` is the raw
    logit, higher is better, comparable only within one query and ranker. `deciding_passage` is None for a
    document without tokens; `chunks` and `text` are filled where the call asked for them; `tokens_cut`
    counts the document's tokens that were not read; `first_stage_score` is set after a search.
    """

    id: str
    index: int
    score: float
    deciding_passage: Passage | None
    chunks: tuple[Passage, ...]
    text: str | None
    tokens_cut: int
    first_stage_score: float | None

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
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What a call took in and cost; `pairs` and `padded_tokens` count what ran on the device for it."""

    tokens: int
    chunks: int
    pairs: int
    padded_tokens: int
    cached_chunks: int

    @classmethod
    def from_pb(cls, message: rerank_pb2.Usage) -> Self:
        """Read the usage off the wire."""
        return cls(
            tokens=message.tokens,
            chunks=message.chunks,
            pairs=message.pairs,
            padded_tokens=message.padded_tokens,
            cached_chunks=message.cached_chunks,
        )


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the server's time went; stages overlap, so the parts may sum to more than the total."""

    total_ns: int
    first_stage_ns: int
    tokenization_ns: int
    queue_ns: int
    inference_ns: int
    aggregation_ns: int

    @classmethod
    def from_pb(cls, message: rerank_pb2.Timings) -> Self:
        """Read the timings off the wire."""
        return cls(
            total_ns=message.total_ns,
            first_stage_ns=message.first_stage_ns,
            tokenization_ns=message.tokenization_ns,
            queue_ns=message.queue_ns,
            inference_ns=message.inference_ns,
            aggregation_ns=message.aggregation_ns,
        )


@dataclass(frozen=True, slots=True)
class RankerVersion:
    """Who scored: the name to ask for, and the version that changes with weights and chunking."""

    name: str
    version: str


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

    @classmethod
    def from_pb(cls, message: rerank_pb2.RerankResponse | rerank_pb2.SearchAndRerankResponse) -> Self:
        """Read the response to either call off the wire."""
        return cls(
            results=tuple(map(Result.from_pb, message.results)),
            query_tokens_cut=message.query_tokens_cut,
            usage=Usage.from_pb(message.usage),
            timings=Timings.from_pb(message.timings),
            ranker=RankerVersion(message.ranker.name, message.ranker.version),
            index=message.index if isinstance(message, rerank_pb2.SearchAndRerankResponse) else None,
        )
