"""Selectors of the chunks that a ranker reads, and the quality of the ranking that comes out.

Everything here is a function of arrays: D candidates of a question, C places for chunks. A true value of
`mask` (D, C) marks a chunk. A *selector* gives every chunk a score at little cost, (D, C); a ranker reads the
chunks with the highest ones. *Keys* (D,) order documents, the higher the better; equal keys are a tie.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from farrank_rankers.depth.replay import Mask
from farrank_rankers.depth.selection import Floats, Ints

# Less than any difference between windows that matters.
_TIE = 1e-3


def of_chunks(scores: Floats, windows: Ints, chunks: Ints) -> Floats:
    """Give chunks the scores of other windows of the same text: the best of those that half coincide.

    Half of the shorter of the two must coincide. Two chunks may have the same best window: the mean of all
    scores, weighted by the shared characters, then decides between them. Windows cover the text.
    Shapes: scores (W,), windows (W, 2) and chunks (C, 2) as [start, end) -> (C,).
    """
    ends = np.minimum(chunks[:, None, 1], windows[None, :, 1])
    shared = np.maximum(0, ends - np.maximum(chunks[:, None, 0], windows[None, :, 0]))  # (C, W)
    lengths = np.minimum(np.diff(chunks), np.diff(windows).T)  # (C, W)
    # A chunk of a few characters may coincide with no window by half.
    enough = (2 * shared >= lengths) | (shared == shared.max(axis=1, keepdims=True))
    best: Floats = np.where(enough, scores, -np.inf).max(axis=1)
    mean: Floats = (shared * scores).sum(axis=1) / np.maximum(1, shared.sum(axis=1))
    return best + _TIE * mean


def min_max(scores: Floats, mask: Mask) -> Floats:
    """Bring scores of chunks to 0 … 1; all 0 if they are equal. Shapes: (D, C) each -> (D, C)."""
    least, most = scores[mask].min(), scores[mask].max()
    return np.where(mask, (scores - least) / (most - least), 0.0) if most > least else np.zeros(mask.shape)


# Bin b holds the chunks 2^b - 1 … 2^(b+1) - 2 of a document, the last one also all later chunks.
BINS = 8


def bins(places: Ints) -> Ints:
    """Give the bins of places of chunks, counted from 0. Shapes: (…) -> (…)."""
    return np.minimum(np.log2(places + 1).astype(np.int64), BINS - 1)


def learned_prior(deciding: Sequence[int], counts: Sequence[int]) -> Floats:
    """Learn where in a document the deciding chunk is, from documents judged relevant.

    Shapes: deciding, counts (N,): the place of each document's deciding chunk, and its number of chunks
    -> (BINS,) the logarithm of how much more often a bin's chunks decide than if all places were alike.
    """
    found = np.bincount(bins(np.asarray(deciding, dtype=np.int64)), minlength=BINS)
    alike = sum(np.bincount(bins(np.arange(count)), minlength=BINS) / count for count in counts)
    # One more of each: a bin without a document says little.
    prior: Floats = np.log((found + 1) / (alike + 1))
    return prior


def max_score(values: Floats, read: Mask) -> Floats:
    """Score as MaxP does. Shapes: values (D, C, 1) the chunks' scores, read (D, C) -> (D,)."""
    best: Floats = np.where(read, values[..., 0], -np.inf).max(axis=1)
    return best


def attended_score(values: Floats, read: Mask) -> Floats:
    """Score as PARADE Attn does.

    Its head is affine, so the score of a weighted mean of vectors is the weighted mean of their scores.
    Shapes: values (D, C, 2) the chunks' attention logits and scores, read (D, C) -> (D,).
    """
    logits = np.where(read, values[..., 0], -np.inf)
    some = read.any(axis=1)  # (D,)
    weights = np.exp(logits - np.where(some, logits.max(axis=1), 0.0)[:, None])  # (D, C)
    total = np.where(some, weights.sum(axis=1), 1.0)
    found: Floats = (weights * values[..., 1]).sum(axis=1) / total
    return found


def gains_by_place(keys: Floats, gains: Floats) -> Floats:
    """Order gains by keys; documents with equal keys share theirs evenly, as the mean over all their orders.

    Shapes: (D,) each -> (D,).
    """
    order = np.argsort(-keys, kind="stable")
    _, group = np.unique(-keys[order], return_inverse=True)
    means = np.bincount(group, gains[order]) / np.bincount(group)
    shared: Floats = means[group]
    return shared


def reciprocal_rank(keys: Floats, grades: Floats, judged: Sequence[int]) -> float:
    """Give 1 / rank of the only relevant document, 0 if it is no candidate. Shapes: (D,) each.

    Raises: ValueError if several documents were judged relevant.
    """
    if sum(grade > 0 for grade in judged) != 1:
        raise ValueError(f"judged is {list(judged)}; a reciprocal rank needs exactly one relevant document")
    return float((gains_by_place(keys, (grades > 0).astype(np.float64)) / np.arange(1, len(keys) + 1)).sum())


def ndcg_at_10(keys: Floats, grades: Floats, judged: Sequence[int]) -> float:
    """Compute nDCG@10 as trec_eval does; `judged` has the grades of all documents. Shapes: (D,) each."""
    ideal = np.sort(np.asarray(judged, dtype=np.float64))[::-1]
    cut = [each[:10] for each in (gains_by_place(keys, grades), ideal)]
    found, best = ((each / np.log2(np.arange(2, len(each) + 2))).sum() for each in cut)
    return float(found / best) if best else 0.0


Measure = Callable[[Floats, Floats, Sequence[int]], float]
MEASURES: Mapping[str, Measure] = {"MRR": reciprocal_rank, "nDCG@10": ndcg_at_10}


def interval(differences: Sequence[float], seed: int, resamples: int = 10_000) -> tuple[float, float]:
    """Give the 95% interval of a mean of paired differences, by the percentiles of a bootstrap.

    Raises: ValueError if there is no difference.
    """
    values = np.asarray(differences, dtype=np.float64)
    if not len(values):
        raise ValueError("differences is empty; an interval needs at least 1")
    drawn = np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))
    low, high = np.percentile(values[drawn].mean(axis=1), (2.5, 97.5))
    return float(low), float(high)
