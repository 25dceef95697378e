"""Calibrate the plan of a ranker's adaptive depth on judged queries, for a bound of the quality.

The chunks of a query's candidates are encoded once. The plans of a small grid are then replayed. One half of
the queries chooses the cheapest plan that keeps the bound, and the other half confirms it.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np
import torch

from farrank_rankers.adaptive import why_not_adaptive
from farrank_rankers.aggregate import SCORE_DECIMALS
from farrank_rankers.depth.plan import READ_ON, DepthPlan, Figures, Round
from farrank_rankers.depth.replay import Mask, read_in_rounds
from farrank_rankers.depth.selection import Floats, Ints, best_first, bm25, with_prior
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import Chunk, TokenizedText
from farrank_training.chunk_subsets import competing_chunks
from farrank_training.errors import TrainingError
from farrank_training.validation import ValidationSet
from farrank_trec import Run, rank
from farrank_trec.kept_shares import kept_shares
from farrank_trec.measures import evaluate, mean_name, parse_measures

_PRIORS = (0.0, 0.1, 0.2, 0.5)
_SCHEDULES = (
    *((Round(1.0, chunks),) for chunks in (1, 2, 3, 4, 6, 8)),
    READ_ON.rounds,
    *((Round(1.0, first), Round(0.5, more)) for first in (1, 2, 3, 4) for more in (first, 2 * first)),
)
# The simplest first: one round is one wait, and all its scores compare, whatever the family.
PLANS = tuple(DepthPlan(rounds, prior) for rounds in _SCHEDULES for prior in _PRIORS)
# The numbers of chunks of a document after any round of any plan.
_COUNTS = sorted({sum(each.chunks for each in plan[:end]) for plan in _SCHEDULES for end in (1, 2)})
# Plans cost about the same if the more expensive one costs at most this multiple.
_ABOUT = 1.05
_RESAMPLES = 10_000
_BATCH = 16
# The 97.5th percentile of how often a resample of many queries draws one of them.
_DRAWN = 3
_FEWEST_QUERIES = 50


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """The quality and the cost of full reading, which comes first, and of N plans, on Q queries.

    `chunks` and `tokens` are means of a document. Shapes: (1 + N, Q) each.
    """

    quality: Floats
    chunks: Floats
    tokens: Floats


def calibrate(
    ranker: Ranker,
    validation: ValidationSet,
    *,
    keep: float,
    measure: str,
    seed: int = 0,
    progress: Callable[[int], None] = lambda queries: None,
) -> DepthPlan:
    """Choose the cheapest plan that keeps the share `keep` of full reading's quality, and confirm it.

    A plan keeps the bound if the 95% interval of its share, of a paired bootstrap, lies above it.
    Raises: TrainingError if the ranker cannot be adaptive, there are too few queries, or no plan is
    confirmed; TrecError if the measure is unknown.
    """
    if (why := why_not_adaptive(ranker.spec)) is not None:
        raise TrainingError(f"depth cannot be calibrated: {why}")
    query_ids = sorted(validation.candidates, key=partial(_draw, seed))
    if len(query_ids) < (fewest := fewest_queries(keep)):
        raise TrainingError(
            f"{len(query_ids):,} queries have judgements and candidates; to keep {keep:.1%}, calibration "
            f"needs at least {fewest:,}"
        )
    ranker.eval()
    found = _outcomes(ranker, validation, query_ids, measure, progress)
    half = len(query_ids) // 2
    name = mean_name(measure)
    choosing, confirming = slice(0, half), slice(half, None)
    for part, use in ((choosing, "choose"), (confirming, "confirm")):
        if not found.quality[0, part].any():
            raise TrainingError(f"full reading has a {name} of 0 on the queries that {use} a plan")
    kept, low, _ = kept_shares(found.quality[:, choosing], resamples=_RESAMPLES, seed=seed)
    keeping = np.flatnonzero(low[1:] >= keep)
    if not len(keeping):
        best = int(low[1:].argmax()) + 1
        raise TrainingError(_refusal(PLANS[best - 1], name, keep, kept[best], low[best], half))
    chosen = simplest(keeping, found.tokens[1:, choosing].mean(axis=1))
    row = chosen + 1
    kept, low, high = kept_shares(found.quality[[0, row]][:, confirming], resamples=_RESAMPLES, seed=seed)
    queries = len(query_ids) - half
    if low[1] < keep:
        raise TrainingError(_refusal(PLANS[chosen], name, keep, kept[1], low[1], queries))
    figures = Figures(
        measure=name,
        keep=keep,
        kept=float(kept[1]),
        low=float(low[1]),
        high=float(high[1]),
        queries=queries,
        chunks=float(found.chunks[row, confirming].mean()),
        tokens=float(found.tokens[row, confirming].mean()),
    )
    return replace(PLANS[chosen], figures=figures)


def fewest_queries(keep: float) -> int:
    """Give the number of queries below which even a plan that loses nothing is not confirmed.

    See `kept_shares`.
    """
    return max(_FEWEST_QUERIES, 2 * round(_DRAWN / (1 - keep)))


def simplest(plans: Ints, costs: Floats) -> int:
    """Choose the simplest of the plans that cost about as much as the cheapest one.

    Some plans differ in cost only because chunks differ in length, and documents in their number of chunks.
    Shapes: the numbers of plans (K,), the costs of all (N,).
    """
    some = costs[plans]
    return int(plans[some <= _ABOUT * some.min()][0])


def _draw(seed: int, query_id: str) -> bytes:
    """Give queries a random order that depends on nothing else."""
    return hashlib.blake2b(f"{seed}/{query_id}".encode(), digest_size=8).digest()


def _refusal(plan: DepthPlan, name: str, keep: float, kept: float, low: float, queries: int) -> str:
    """Say why a plan is not confirmed, and how many queries would be enough."""
    found = (
        f"no plan is confirmed to keep {keep:.1%} of {name}: {plan} keeps {kept:.1%} on {queries} queries, "
        f"with a lower bound of {low:.1%}; "
    )
    if kept <= keep:
        return f"{found}a smaller bound is needed"
    # An interval is as wide as one over the root of the number of queries.
    needed = 2 * int(np.ceil(queries * ((kept - low) / (kept - keep)) ** 2))
    return f"{found}about {needed:,} judged queries in all are needed"


def _outcomes(
    ranker: Ranker,
    validation: ValidationSet,
    query_ids: Sequence[str],
    measure: str,
    progress: Callable[[int], None],
) -> Outcomes:
    """Read the candidates of one query after another, and replay full reading and all plans."""
    quality, chunks, tokens = (np.zeros((1 + len(PLANS), len(query_ids))) for _ in range(3))
    parsed = parse_measures([measure])
    queries = {each: ranker.reader.read_query(validation.queries[each]) for each in query_ids}
    if empty := [each for each, query in queries.items() if not len(query)]:
        raise TrainingError(f"query {empty[0]!r} holds no token; it needs at least 1")
    for column, (query_id, query) in enumerate(queries.items()):
        doc_ids = validation.candidates[query_id]
        texts = [validation.texts.text(doc_id) for doc_id in doc_ids]
        # Each plan's ranking is that of a query of its own, so that all are measured at once.
        run: Run = {}
        for row, (keys, read, cost) in enumerate(replayed(ranker, query, texts)):
            if not np.isfinite(keys).all():
                doc_id = doc_ids[int(np.flatnonzero(~np.isfinite(keys))[0])]
                raise TrainingError(f"query {query_id!r}: document {doc_id!r} has no finite score")
            run[str(row)] = rank(str(row), list(zip(doc_ids, keys.tolist(), strict=True)))
            chunks[row, column], tokens[row, column] = read, cost
        (values,) = evaluate(dict.fromkeys(run, validation.qrels[query_id]), run, parsed).values()
        quality[:, column] = [values[row] for row in run]
        progress(column + 1)
    return Outcomes(quality, chunks, tokens)


def replayed(
    ranker: Ranker, query: TokenizedText, texts: Sequence[str]
) -> Iterator[tuple[Floats, float, float]]:
    """Yield keys (D,), and the mean chunks and tokens of a document, for full reading and every plan.

    Each plan chooses, reads and orders as the server does.
    """
    reader, spec = ranker.reader, ranker.spec
    documents, terms = competing_chunks(reader, query, texts)
    selected = list(bm25(terms))
    selectors = {prior: with_prior(selected, prior) for prior in _PRIORS}
    counts = np.array([len(each) for each in documents])  # (D,)
    mask: Mask = np.arange(counts.max()) < counts[:, None]  # (D, C)
    most = spec.most_chunks()
    readable = np.minimum(counts, len(mask[0]) if most is None else most)
    # The chunks of each document that the ranker has positions for, most promising first.
    ordered = {
        prior: [best_first(each)[:end] for each, end in zip(its, readable, strict=True)]
        for prior, its in selectors.items()
    }
    framing = reader.chunk_input(query, documents[0][0]).tokens - len(documents[0][0])
    costs = [framing + each.lengths.astype(np.int64) for each in terms]
    full: list[float] = []
    scores: list[Mapping[tuple[int, ...], float]] = []
    for number, chunks in enumerate(documents):
        ways = {tuple(its[number][: _COUNTS[-1]].tolist()) for its in ordered.values()}
        everything = tuple(range(readable[number]))
        sets = {tuple(sorted(order[:count])) for order in ways for count in _COUNTS}
        found = _scores(ranker, query, chunks, sets | {everything})
        scores.append(found)
        full.append(found[everything])
    whole = [cost[:end].sum() for cost, end in zip(costs, readable, strict=True)]
    yield np.array(full), float(readable.mean()), float(np.mean(whole))
    for plan in PLANS:
        selector = np.full(mask.shape, -np.inf)
        selector[mask] = np.concatenate(selectors[plan.prior])

        def within(read: Mask, orders: Sequence[Ints] = ordered[plan.prior]) -> list[Ints]:
            """List the chunks of each document that the ranker reads."""
            return [np.sort(order[:end]) for order, end in zip(orders, read.sum(axis=1), strict=True)]

        def score(read: Mask, within: Callable[[Mask], list[Ints]] = within) -> Floats:
            # A document that is not read on keeps its last score.
            return np.array(
                [known[tuple(each.tolist())] for known, each in zip(scores, within(read), strict=True)]
            )

        keys, read = read_in_rounds(selector, mask, plan.rounds, score)
        chosen = within(read)
        cost = [each[numbers].sum() for each, numbers in zip(costs, chosen, strict=True)]
        yield keys, float(np.mean([len(each) for each in chosen])), float(np.mean(cost))


@torch.inference_mode()
def _scores(
    ranker: Ranker, query: TokenizedText, chunks: Sequence[Chunk], sets: set[tuple[int, ...]]
) -> Mapping[tuple[int, ...], float]:
    """Score a document by several sets of its chunks. Each chunk of any set is encoded once."""
    rows: dict[int, Features] = {}
    numbers = sorted({number for each in sets for number in each})
    for start in range(0, len(numbers), _BATCH):
        some = numbers[start : start + _BATCH]
        inputs = [ranker.reader.chunk_input(query, chunks[number]) for number in some]
        part: Features = ranker.encoder(*ranker.tensors(inputs))
        rows |= zip(some, Features(part.vectors.float(), part.roles).rows(), strict=True)
    found: dict[tuple[int, ...], float] = {}
    # Sets of one size together: those with few chunks are not padded to full reading.
    for _, group in groupby(sorted(sets, key=len), len):
        alike = list(group)
        features, chunk_mask = batched([stacked([rows[number] for number in each]) for each in alike])
        scores = ranker.aggregator(features, chunk_mask, None).tolist()
        found |= zip(alike, [round(score, SCORE_DECIMALS) for score in scores], strict=True)
    return found
