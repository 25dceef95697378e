"""Holds a new version of a ranker to recorded queries: whether it ranks like the old one, and as fast."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from farrank_calls.errors import FailedPrecondition, FarrankError
from farrank_calls.fairness.fair_order import Account, CallPriority
from farrank_calls.telemetry.call_record import CallRecord
from farrank_rankers.rank_correlation import kendall_tau
from farrank_server.config.schema import LimitsConfig
from farrank_server.engine.call import RerankCall, text_documents
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.ranker import Scorer

MIN_TAU = 0.8
MAX_LATENCY_RATIO = 1.5

# How often each version is asked each query, in turns. The first answers fill caches; their time is left out.
ROUNDS = 3

_ACCOUNT = Account("recorded queries", priority=CallPriority.BATCH)


@dataclass(frozen=True, slots=True)
class RecordedQuery:
    """A query and the texts of its documents."""

    query: str
    documents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a new version compares with the old one: mean Kendall's tau, and the ratio of median latencies."""

    queries: int
    tau: float
    latency_ratio: float


@dataclass(frozen=True, slots=True)
class Trial:
    """Recorded queries, and the bounds that a new version must keep."""

    recorded: Sequence[RecordedQuery]
    min_tau: float = MIN_TAU
    max_latency_ratio: float = MAX_LATENCY_RATIO

    def check(self, found: Comparison) -> None:
        """Raise if a bound is broken.

        Raises: FailedPrecondition with the figure and its bound.
        """
        wrong = []
        if not found.tau >= self.min_tau:
            wrong.append(f"the mean Kendall's tau is {found.tau:.4f}; min_tau is {self.min_tau:g}")
        if not found.latency_ratio <= self.max_latency_ratio:
            wrong.append(
                f"the latency ratio is {found.latency_ratio:.3f}; max_latency_ratio is "
                f"{self.max_latency_ratio:g}"
            )
        if wrong:
            raise FailedPrecondition(
                f"the new version is refused after {found.queries} recorded queries: {'; '.join(wrong)}"
            )


@dataclass(slots=True)
class _Answers:
    scores: list[NDArray[np.float64]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


async def compare(
    engine: Engine,
    limits: LimitsConfig,
    old: Scorer,
    new: Scorer,
    recorded: Sequence[RecordedQuery],
    is_stopped: Callable[[], bool],
) -> Comparison:
    """Ask both versions the recorded queries, one call at a time, while callers are served.

    The calls have batch priority: waiting callers go first.
    Raises: FailedPrecondition naming the query if a version cannot answer it, or if the trial is stopped.
    """
    answers = {id(each): _Answers() for each in (old, new)}
    for turn in range(ROUNDS):
        for number, each in enumerate(recorded):
            # Neither version always runs behind the other.
            for scorer in (old, new) if (turn + number) % 2 else (new, old):
                try:
                    scores, seconds = await _ask(engine, limits, scorer, each)
                except FarrankError as error:
                    raise FailedPrecondition(
                        f"recorded[{number}]: version {scorer.version} does not answer it: {error.message}"
                    ) from None
                if is_stopped():
                    raise FailedPrecondition("the trial was stopped before its end")
                if turn:
                    answers[id(scorer)].seconds.append(seconds)
                else:
                    answers[id(scorer)].scores.append(scores)
    before, after = answers[id(old)], answers[id(new)]
    return Comparison(
        len(recorded),
        fmean(kendall_tau(*pair) for pair in zip(before.scores, after.scores, strict=True)),
        median(after.seconds) / median(before.seconds),
    )


async def _ask(
    engine: Engine, limits: LimitsConfig, scorer: Scorer, asked: RecordedQuery
) -> tuple[NDArray[np.float64], float]:
    """Ask one version one query. Shapes: -> (D,), and the seconds that it took."""
    began_s = time.monotonic()
    call = RerankCall(
        scorer.name,
        asked.query,
        text_documents(asked.documents),
        None,
        began_s,
        began_s + limits.default_timeout_s,
        record=CallRecord(request_id="", account=_ACCOUNT),
        comparable_scores=True,
        scorer=scorer,
    )
    with engine.gate.passing(call.account):
        result = await engine.rerank(call)
    return np.array([each.score for each in result.documents]), time.monotonic() - began_s
