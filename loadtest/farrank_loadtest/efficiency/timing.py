"""Time a ranker and its FirstP in turns, on one server."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from farrank_client import Client, FarrankError, Ranking
from farrank_loadtest.errors import TargetFailed


@dataclass(frozen=True, slots=True)
class Timed:
    """What one ranker's calls took, a value for each round, in seconds, and what each call encoded.

    `client_s` is what the caller waited; encoder and aggregator are the server's own times. `inputs` counts
    what the encoder was given, `padded_tokens` their positions, padding included, `chunks` what the documents
    were split into: as many, but for queries that are inputs of their own.
    """

    client_s: tuple[float, ...]
    encoder_s: tuple[float, ...]
    aggregator_s: tuple[float, ...]
    inputs: int
    chunks: int
    padded_tokens: int

    @property
    def median_s(self) -> float:
        """The median of what the caller waited."""
        return median(self.client_s)


@dataclass(frozen=True, slots=True)
class Work:
    """One call, and how often it is made."""

    query: str
    texts: Sequence[str]
    rounds: int
    timeout_s: float


def time_in_turns(
    address: str, rankers: Sequence[str], work: Work, tell: Callable[[str], None]
) -> dict[str, Timed]:
    """Warm each ranker up by a call of one document, then let them take turns.

    Every other round goes backwards, so that a machine that slows down slows them all.
    Raises: TargetFailed at the first call that fails.
    """
    answers: dict[str, list[tuple[float, Ranking]]] = {name: [] for name in rankers}
    with Client(address) as client:
        for name in rankers:
            _call(client, name, work, work.texts[:1])
        for number in range(work.rounds):
            for name in rankers if number % 2 == 0 else reversed(rankers):
                answers[name].append(_call(client, name, work, work.texts))
            took = ", ".join(f"{name} {answers[name][-1][0]:.2f} s" for name in rankers)
            tell(f"round {number + 1} of {work.rounds}: {took}")
    return {name: _timed(calls) for name, calls in answers.items()}


def _call(client: Client, name: str, work: Work, texts: Sequence[str]) -> tuple[float, Ranking]:
    started_s = time.perf_counter()
    try:
        ranking = client.rerank(work.query, texts, ranker=name, timeout_s=work.timeout_s)
    except FarrankError as error:
        said = " ".join(error.message.split())
        raise TargetFailed(f"ranker {name}: {said} [{error.code.name}]", error.code.name) from error
    return time.perf_counter() - started_s, ranking


def _timed(calls: Sequence[tuple[float, Ranking]]) -> Timed:
    _, last = calls[-1]
    return Timed(
        client_s=tuple(seconds for seconds, _ in calls),
        encoder_s=tuple(ranking.timings.inference_ns / 1e9 for _, ranking in calls),
        aggregator_s=tuple(ranking.timings.aggregation_ns / 1e9 for _, ranking in calls),
        inputs=last.usage.pairs,
        chunks=last.usage.chunks,
        padded_tokens=last.usage.padded_tokens,
    )
