"""Selectors and schedules at equal cost: chosen on one part of the questions, tested on the other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import numpy as np

from farrank_bench.depth.chunk_scores import Case
from farrank_bench.depth.replay import BINS, Measure, bins, interval, learned_prior, min_max
from farrank_rankers.depth.plan import MAX_CHUNKS, READ_ON, Round
from farrank_rankers.depth.replay import Mask, read_in_rounds
from farrank_rankers.depth.selection import Floats

FIRSTP_POSITIONS = 512
# A question is of the development part with this probability.
DEVELOPMENT = 1 / 3
# Non-inferior: the 95% interval of the difference from full reading lies above this.
MARGIN = -0.01
# A schedule may cost at most this multiple of FirstP.
BUDGET = 0.6

Selector = Callable[[Case], Floats]
Schedule = tuple[Round, ...]

FIRST, RANDOM, ORACLE, BM25 = "first chunks", "random", "oracle", "BM25"
COSINE, OWN = "bi-encoder, stored windows", "bi-encoder, the ranker's chunks"
BOTH, BOTH_OWN = f"BM25 + {COSINE}", f"BM25 + {OWN}"
SUM, PRIOR = "weighted sum", "weighted sum and position"
# The bi-encoder's weights; the rest is BM25's.
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
PRIOR_WEIGHTS = (0.05, 0.1, 0.2, 0.4)
# Weights of the score that BOTH gives a document, added to the ranker's, in standard deviations of both.
SHARES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
PLAIN = tuple((Round(1.0, chunks),) for chunks in (1, 2, 3, 4, 6, 8, 12, 16))
EVERYTHING = (Round(1.0, MAX_CHUNKS),)
CHOSEN_AT = (PLAIN[0], PLAIN[1], PLAIN[3])


def _rounds(*rounds: tuple[float, int]) -> Schedule:
    return tuple(Round(share, chunks) for share, chunks in rounds)


SCHEDULES: Sequence[Schedule] = (
    *PLAIN[:4],
    _rounds((1, 1), (0.5, 1)),
    _rounds((1, 1), (0.2, 3)),
    _rounds((1, 1), (0.5, 1), (0.2, 2)),
    _rounds((1, 1), (0.5, 3), (0.2, 4)),
    _rounds((1, 2), (0.5, 2)),
    _rounds((1, 2), (0.2, 6)),
    _rounds((1, 2), (0.5, 2), (0.2, 4)),
    _rounds((0.5, 1)),
    _rounds((0.5, 2)),
    _rounds((0.5, 2), (0.2, 4)),
    _rounds((0.2, 4)),
)


# Settings without any choice: the default plans, one chunk of all documents, and the first design's schedule.
FIXED = tuple(
    (name, each) for name in (BM25, BOTH) for each in (PLAIN[0], PLAIN[1], READ_ON.rounds, SCHEDULES[10])
)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One way to read a set of questions. Shapes: each (Q,).

    `chunks` are those read of a document, `cost` their positions as a multiple of FirstP's 512, both as means
    over a question's candidates.
    """

    quality: Floats
    chunks: Floats
    cost: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """The weights of a sum of selectors, each from 0 to 1: the bi-encoder's against BM25's, and the prior's.

    `own`: the bi-encoder's vectors are of the ranker's chunks.
    """

    own: bool
    cosine: float
    position: float = 0.0

    def scores(self, case: Case, prior: Floats) -> Floats:
        """Score chunks. Shapes: prior (BINS,) -> (D, C)."""
        cosine = case.cosine_of_chunks if self.own else case.cosine
        scores = self.cosine * min_max(cosine, case.mask) + (1 - self.cosine) * min_max(case.bm25, case.mask)
        position: Floats = self.position * prior[bins(np.arange(case.mask.shape[1]))]  # (C,)
        return scores + position


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The choices of the development part: the weights of SUM and of PRIOR, and the better one's name."""

    sum: Weights
    with_prior: Weights
    prior: Floats
    best: str


def divided(cases: Sequence[Case], seed: int) -> tuple[list[Case], list[Case]]:
    """Divide questions between the development and the test part; more questions move none of them."""
    parts: tuple[list[Case], list[Case]] = ([], [])
    for case in cases:
        parts[Random(f"{seed}/{case.query_id}").random() >= DEVELOPMENT].append(case)
    return parts


def selectors(choice: Choice, seed: int) -> dict[str, Selector]:
    """Give every selector by name. The oracle is the ranker's own score of a chunk, or its attention."""
    weights = {
        BM25: Weights(False, 0.0),
        COSINE: Weights(False, 1.0),
        OWN: Weights(True, 1.0),
        BOTH: Weights(False, 0.5),
        BOTH_OWN: Weights(True, 0.5),
        SUM: choice.sum,
        PRIOR: choice.with_prior,
    }
    return {
        FIRST: lambda case: np.broadcast_to(-np.arange(case.mask.shape[1], dtype=float), case.mask.shape),
        RANDOM: lambda case: _seeded(f"{seed}/{case.query_id}").random(case.mask.shape),
        **{name: partial(each.scores, prior=choice.prior) for name, each in weights.items()},
        ORACLE: lambda case: case.values[..., 0],
    }


def _seeded(key: str) -> np.random.Generator:
    return np.random.default_rng(list(key.encode()))


def outcome(cases: Sequence[Case], measure: Measure, read: Callable[[Case], tuple[Floats, Mask]]) -> Outcome:
    """Measure a way to read, which gives keys (D,) and the chunks that it read (D, C)."""
    rows = []
    for case in cases:
        keys, mask = read(case)
        positions = case.positions[mask].sum() / len(mask) / FIRSTP_POSITIONS
        rows.append((measure(keys, case.grades, case.judged), mask.sum() / len(mask), positions))
    return Outcome(*np.array(rows).T)


def by_schedule(
    cases: Sequence[Case], measure: Measure, selector: Selector, schedule: Schedule, share: float = 0.0
) -> Outcome:
    """Measure a schedule; an empty one reads nothing, and the selector alone orders the documents.

    `share` of a document's `first_score` is added to the ranker's.
    """

    def read(case: Case) -> tuple[Floats, Mask]:
        own = share * first_score(case) if share else 0.0
        return read_in_rounds(selector(case), case.mask, schedule, lambda some: case.score(some) + own)

    return outcome(cases, measure, read)


def first_score(case: Case) -> Floats:
    """Score documents by their best chunks of BOTH, as that selector alone does. Shapes: -> (D,)."""
    scores = Weights(False, 0.5).scores(case, np.zeros(BINS))
    best: Floats = np.where(case.mask, scores, -np.inf).max(axis=1)
    return best


def firstp(cases: Sequence[Case], measure: Measure) -> Outcome:
    """Measure the ranker of documents' first 512 positions."""
    found = outcome(cases, measure, lambda case: (case.firstp, np.zeros_like(case.mask)))
    costs = np.array([case.firstp_positions for case in cases]) / FIRSTP_POSITIONS
    return Outcome(found.quality, np.ones(len(cases)), costs)


def chosen_weights(cases: Sequence[Case], measure: Measure) -> Choice:
    """Learn the prior from the relevant documents, and choose the weights by quality at 1, 2 and 4 chunks."""
    relevant = [(case, row) for case in cases for row in np.flatnonzero(case.grades > 0)]
    prior = learned_prior(
        [int(np.argmax(np.where(case.mask, case.values[..., 0], -np.inf)[row])) for case, row in relevant],
        [int(case.mask[row].sum()) for case, row in relevant],
    )

    def quality(weights: Weights) -> float:
        selector = partial(weights.scores, prior=prior)
        means = [by_schedule(cases, measure, selector, each).quality.mean() for each in CHOSEN_AT]
        return float(np.mean(means))

    best = max((Weights(own, each) for own in (False, True) for each in WEIGHTS), key=quality)
    with_prior = max((replace(best, position=each) for each in PRIOR_WEIGHTS), key=quality)
    return Choice(best, with_prior, prior, PRIOR if quality(with_prior) > quality(best) else SUM)


def chosen_schedule(cases: Sequence[Case], measure: Measure, selector: Selector) -> Schedule:
    """Choose the schedule of the best quality among those within the budget; of equal ones the cheaper."""
    found = {each: by_schedule(cases, measure, selector, each) for each in SCHEDULES}
    within = {each: of for each, of in found.items() if of.cost.mean() <= BUDGET} or found
    return max(within, key=lambda each: (within[each].quality.mean(), -within[each].cost.mean()))


def chosen_share(cases: Sequence[Case], measure: Measure, selector: Selector, schedule: Schedule) -> float:
    """Choose the share of documents' `first_score` that is added to the ranker's."""
    whole, first = (
        np.std(np.concatenate([score(case) for case in cases]))
        for score in (lambda case: case.score(case.mask), first_score)
    )
    spread = whole / first
    shares = [float(each * spread) for each in SHARES]
    return max(shares, key=lambda each: by_schedule(cases, measure, selector, schedule, each).quality.mean())


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean of paired differences and its 95% interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def difference(one: Outcome, other: Outcome, seed: int) -> Difference:
    """Compare the quality of two ways to read the same questions."""
    values = one.quality - other.quality
    return Difference(float(values.mean()), *interval(values.tolist(), seed))


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """One ranker on one collection.

    `curves` have every selector at the numbers of chunks of PLAIN, and `alone` the selectors as rankers;
    `schedules` are read by the chosen selector, on the development and the test part; all others are of the
    test part. `rivals` read by the chosen schedule with other selectors. `mixed` and `mixed_full` add `share`
    of a document's `first_score`, to the chosen schedule's score and to full reading's. `fixed` and
    `fixed_full` are of all questions.
    """

    development: int
    test: int
    choice: Choice
    full: Outcome
    firstp: Outcome
    curves: Mapping[str, Sequence[Outcome]]
    alone: Mapping[str, Outcome]
    schedules: Mapping[Schedule, tuple[Outcome, Outcome]]
    chosen: Schedule
    rivals: Mapping[str, Outcome]
    share: float
    mixed: Outcome
    mixed_full: Outcome
    fixed: Mapping[tuple[str, Schedule], Outcome]
    fixed_full: Outcome


def judge(cases: Sequence[Case], measure: Measure, seed: int) -> Judgement:
    """Choose on the development part, and measure on the test part.

    Raises: ValueError if a part has no question.
    """
    development, test = divided(cases, seed)
    if not development or not test:
        raise ValueError(
            f"{len(cases)} questions divide into {len(development)} to choose by and {len(test)} to test; "
            "each part needs at least 1"
        )
    choice = chosen_weights(development, measure)
    every = selectors(choice, seed)
    selector = every[choice.best]
    chosen = chosen_schedule(development, measure, selector)
    share = chosen_share(development, measure, selector, chosen)
    return Judgement(
        len(development),
        len(test),
        choice,
        by_schedule(test, measure, selector, EVERYTHING),
        firstp(test, measure),
        {name: [by_schedule(test, measure, rival, each) for each in PLAIN] for name, rival in every.items()},
        {
            name: by_schedule(test, measure, every[name], ())
            for name in (BM25, COSINE, OWN, BOTH, BOTH_OWN, SUM)
        },
        {
            each: (
                by_schedule(development, measure, selector, each),
                by_schedule(test, measure, selector, each),
            )
            for each in SCHEDULES
        },
        chosen,
        {name: by_schedule(test, measure, rival, chosen) for name, rival in every.items()},
        share,
        by_schedule(test, measure, selector, chosen, share),
        by_schedule(test, measure, selector, EVERYTHING, share),
        {(name, each): by_schedule(cases, measure, every[name], each) for name, each in (*FIXED, (BOTH, ()))},
        by_schedule(cases, measure, selector, EVERYTHING),
    )
