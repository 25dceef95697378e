"""Requests, answers and failures of a load test's calls, in the same terms for every protocol."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CandidateDocument:
    """One candidate: its id in the workload, and its whole text."""

    doc_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The documents' scores, in the order in which they were sent, and the server's own figures.

    `stages_s` holds the server's seconds by stage, `counts` its counts (`chunks`, `cached_chunks`, `pairs`,
    `padded_tokens`). Both are empty if a peer reports none.
    """

    scores: tuple[float, ...]
    stages_s: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


class TargetError(Exception):
    """One call failed.

    Failures are counted by `status` ("RESOURCE_EXHAUSTED", "HTTP 429", "unreachable"); `message` is the
    server's, or the reason why it could not be reached.
    """

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Target(Protocol):
    """One server under test, asked from one event loop."""

    async def rerank(
        self, query: str, documents: Sequence[CandidateDocument], *, ranker: str = "", timeout_s: float
    ) -> Answer:
        """Score the documents; an empty `ranker` leaves the choice to the server.

        Raises: TargetError if the call fails, or its answer is not one score for each document.
        """

    async def close(self) -> None:
        """Close the connections."""


MALFORMED = "malformed answer"


def scores_by_index(scored: Iterable[tuple[int, float]], documents: int) -> tuple[float, ...]:
    """Place each score at its document's index.

    Raises: TargetError if a document has no score, several scores or a score that is not finite, or an index
        is out of range.
    """
    scores: dict[int, float] = {}
    for index, score in scored:
        if not 0 <= index < documents:
            raise TargetError(MALFORMED, f"index {index} of {documents} documents")
        if index in scores:
            raise TargetError(MALFORMED, f"two scores for index {index}")
        if not math.isfinite(score):
            raise TargetError(MALFORMED, f"score {score} for index {index}")
        scores[index] = score
    if len(scores) != documents:
        raise TargetError(MALFORMED, f"{len(scores)} scores for {documents} documents")
    return tuple(scores[index] for index in range(documents))
