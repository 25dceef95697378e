"""A passage of a document and what its score means."""

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
