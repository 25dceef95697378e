"""Compare an export, run by the runtime that will serve it, with its ranker in torch and fp32."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from farrank_exporters.texts import SampleTexts
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.manifest import ExportParity, ExportPrecision
from farrank_rankers.family import family_named
from farrank_rankers.features import Features, stacked
from farrank_rankers.rank_correlation import kendall_tau
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import Chunk, EncoderInput, TokenizedText
from farrank_runtimes.runtime import Capabilities, Runtime
from farrank_runtimes.torch_runtime import TorchRuntime

Scores = NDArray[np.float64]


def top_overlap(first: Scores, second: Scores, depth: int) -> float:
    """Give the share of the first ranking's top documents that are also at the top of the second.

    Shapes: (D,), (D,).
    """
    tops = [set(np.argsort(-scores, kind="stable")[:depth].tolist()) for scores in (first, second)]
    return len(tops[0] & tops[1]) / len(tops[0])


def own_ndcg(first: Scores, second: Scores, depth: int) -> float:
    """Give the second ranking's nDCG if the first one's best `depth` documents have the grades `depth` to 1.

    Shapes: (D,), (D,).
    Source: Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", TOIS 2002.
    """
    best, found = (np.argsort(-scores, kind="stable")[:depth] for scores in (first, second))
    grades = np.zeros(len(first))
    grades[best] = np.arange(depth, depth - len(best), -1)
    discounts = 1 / np.log2(np.arange(2, len(best) + 2))
    return float((grades[found] * discounts).sum() / (grades[best] * discounts).sum())


# fp32: another order of additions moves a score by about 1e-5 of the spread in twelve layers. Ten times that
# is still far below any difference between documents that a judge could see.
SHARE_OF_SPREAD = 1e-4

# fp16 keeps 11 bits of a number, bf16 keeps 8, int8 keeps 8 of a calibrated range. The size of the change of
# a score says little by itself; a change of the documents' order matters.
MIN_TAU: Mapping[ExportPrecision, float] = {"fp16": 0.99, "bf16": 0.98, "int8": 0.95}

# An export that nobody asked for keeps this nDCG@10, too, judged by the ranker itself. On the demo's judged
# questions all-MiniLM-L6-v2 has 0.9988 in bf16 and 0.9816 in int8 with all products; by the judgements its
# nDCG@10 falls by 0.0018 and 0.0059.
MIN_OWN_NDCG = 0.995

# Nor may it change a single query's ranking more than this: a caller sees one ranking and not a mean. int8
# with a mean of 0.97 had a call with 0.88; in bf16 the worst call had 0.95.
MIN_WORST_TAU = 0.92


@dataclass(frozen=True, slots=True)
class Bound:
    """The limit that one measure of a parity report must reach, or must not exceed."""

    measure: Literal["max_difference", "kendall_tau", "worst_tau", "ndcg10"]
    limit: float

    def holds(self, parity: ExportParity) -> bool:
        """Tell whether a report is within the bound; NaN never is."""
        found: float = getattr(parity, self.measure)
        return found <= self.limit if self.measure == "max_difference" else found >= self.limit

    def within_reach(self, parity: ExportParity, queries: int) -> bool:
        """Tell after some of the queries whether the bound can still hold after all of them."""
        if self.measure in ("max_difference", "worst_tau"):
            return self.holds(parity)
        found: float = getattr(parity, self.measure)
        return (found * parity.queries + queries - parity.queries) / queries >= self.limit

    def __str__(self) -> str:
        return f"{self.measure} {'<=' if self.measure == 'max_difference' else '>='} {self.limit:.3g}"


def bounds_for(
    precision: ExportPrecision, family: str, expected: Sequence[Scores], *, unasked: bool = False
) -> list[Bound]:
    """Give the bounds of a precision, given the ranker's own scores. Shapes: (D,) for each query.

    With `unasked`, nobody asked for the export: each query's tau and the best documents have bounds, too.
    """
    if precision != "fp32":
        tau = Bound("kendall_tau", MIN_TAU[precision])
        if not unasked:
            return [tau]
        worst = min(MIN_WORST_TAU, _tau_after_a_swap(len(expected[0])))
        return [tau, Bound("worst_tau", worst), Bound("ndcg10", MIN_OWN_NDCG)]
    # The bound cannot be tighter than the change that batching alone makes to a score in torch.
    least = family_named(family).rounding
    return [Bound("max_difference", max(SHARE_OF_SPREAD * spread(expected), least))]


def _tau_after_a_swap(documents: int) -> float:
    """Give Kendall's tau of two rankings that differ by two neighbours: with few documents it is low."""
    return 1 - 4 / max(4, documents * (documents - 1))


def spread(scores: Sequence[Scores]) -> float:
    """Give the mean standard deviation within a query. Shapes: (D,) for each query."""
    return float(np.mean([each.std() for each in scores]))


# Features of tokens are large: 40 MB a chunk for all layers of a base-sized backbone.
DOCUMENTS_TOGETHER = 4


class TextScores:
    """Scores the same documents for several queries. A dual ranker encodes the documents once."""

    def __init__(self, runtime: Runtime, reader: Reader, documents: Sequence[str]) -> None:
        self._runtime, self._reader = runtime, reader
        split = [reader.split(reader.read_document(text)) for text in documents]
        self._groups = [
            split[start : start + DOCUMENTS_TOGETHER] for start in range(0, len(split), DOCUMENTS_TOGETHER)
        ]
        self._kept = [self._encoded(group) for group in self._groups] if reader.spec.plan == "dual" else None

    def score(self, query: str) -> Scores:
        """Give the documents' scores; NaN if a document's evidence is NaN. Shapes: -> (D,)."""
        reader, runtime = self._reader, self._runtime
        read_query = reader.read_query(query)
        scores: list[float] = []
        if self._kept is not None:
            [of_query] = encode_all(runtime, [reader.query_input(read_query)])
            found = [runtime.score(parts, [of_query] * len(parts)) for parts in self._kept]
        else:
            found = [runtime.score(self._encoded(group, read_query)) for group in self._groups]
        for each in found:
            scores += [
                float("nan") if np.isnan(of_chunks).any() else score
                for score, of_chunks in zip(each.scores, each.chunk_scores, strict=True)
            ]
        return np.array(scores, dtype=np.float64)

    def _encoded(
        self, group: Sequence[Sequence[Chunk]], query: TokenizedText | None = None
    ) -> list[Features]:
        inputs = [self._reader.chunk_input(query, chunk) for chunks in group for chunk in chunks]
        features = iter(encode_all(self._runtime, inputs))
        return [stacked([next(features) for _ in chunks]) for chunks in group]


def encode_all(runtime: Runtime, inputs: Sequence[EncoderInput]) -> list[Features]:
    """Encode inputs in full batches of similar lengths; give their features in the order of the inputs."""
    order = sorted(range(len(inputs)), key=lambda index: -inputs[index].tokens)
    longest_first = [inputs[index] for index in order]
    features: dict[int, Features] = {}
    places = iter(order)
    for batch in batches_in_order(longest_first, runtime.capabilities().max_batch_tokens, padded=True):
        features |= {next(places): row.to("cpu") for row in runtime.encode(batch).rows()}
    return [features[index] for index in range(len(inputs))]


def batches_in_order(
    inputs: Sequence[EncoderInput], max_tokens: int, *, padded: bool
) -> Iterator[list[EncoderInput]]:
    """Divide inputs into batches of at most `max_tokens` tokens, or of one longer input.

    With `padded`, each input counts as many positions as the longest of its batch.
    """
    batch: list[EncoderInput] = []
    longest = total = 0
    for item in inputs:
        widest = max(longest, item.tokens)
        positions = widest * (len(batch) + 1) if padded else total + item.tokens
        if batch and positions > max_tokens:
            yield batch
            batch, widest, total = [], item.tokens, 0
        batch.append(item)
        longest, total = widest, total + item.tokens
    if batch:
        yield batch


TOP = 10


class BeyondBound(ExportError):
    """A runtime's scores are beyond their bound; `parity` is None if a score is not a number."""

    def __init__(self, reason: str, parity: ExportParity | None = None) -> None:
        super().__init__(reason)
        self.parity = parity


def reference(ranker: Ranker, texts: SampleTexts, progress: Callable[[str], None]) -> list[Scores]:
    """Score the texts with the ranker itself, each document alone. Shapes: -> (D,) for each query.

    Raises: ExportError if a score is not a number.
    """
    encoded_once = None
    if ranker.spec.plan == "dual":
        torch = TorchRuntime(ranker, "fp32", device="cpu")
        encoded_once = TextScores(torch, ranker.reader, texts.documents)
    scores: list[Scores] = []
    for number, query in enumerate(texts.queries, 1):
        progress(f"scoring with torch, query {number} of {len(texts.queries)}")
        if encoded_once:
            scores.append(encoded_once.score(query))
        else:
            scored = ranker.score(query, texts.documents, batch_size=4)
            scores.append(np.array([each.score for each in scored]))
        if not np.isfinite(scores[-1]).all():
            raise ExportError(
                "the ranker itself gives scores that are not finite: no export can be compared with them"
            )
    return scores


def measure(
    ranker: Ranker,
    runtime: Runtime,
    texts: SampleTexts,
    expected: Sequence[Scores],
    precision: ExportPrecision,
    progress: Callable[[str], None],
    *,
    unasked: bool = False,
    to_the_end: bool = False,
) -> ExportParity:
    """Score the texts with a runtime and compare the scores with the precision's bounds (see `bounds_for`).

    Scoring stops once a bound is out of reach, unless `to_the_end`.
    Raises: BeyondBound naming the measure that is beyond its bound, or a score that is not a number.
    """
    capabilities = runtime.capabilities()
    bounds = bounds_for(precision, ranker.spec.family, expected, unasked=unasked)
    documents = TextScores(runtime, ranker.reader, texts.documents)
    found: list[Scores] = []
    queries, so_far = len(texts.queries), ""
    for number, query in enumerate(texts.queries, 1):
        progress(f"scoring with {capabilities.runtime}, query {number} of {queries}{so_far}")
        found.append(documents.score(query))
        parity = _compare(expected[:number], found, capabilities, bounds)
        beyond = [each for each in bounds if not each.holds(parity)]
        lost = [each for each in beyond if not each.within_reach(parity, queries)]
        so_far = "".join(f" ({_measured(parity, each)} so far; it must be {each})" for each in beyond[:1])
        if lost and not to_the_end:
            break
    if beyond:
        after = "" if number == queries else f" after {number} of {queries} queries"
        bound = (lost or beyond)[0]
        measured = _measured(parity, bound)
        raise BeyondBound(f"with {parity.runtime} {measured}{after}, but it must be {bound}", parity)
    return parity


def _measured(parity: ExportParity, bound: Bound) -> str:
    return f"{bound.measure} is {getattr(parity, bound.measure):.3g}"


def _compare(
    expected: Sequence[Scores], found: Sequence[Scores], capabilities: Capabilities, bounds: Sequence[Bound]
) -> ExportParity:
    """Compare scores, query by query.

    Shapes: (D,) for each query, in both.
    Raises: BeyondBound if a score is not finite, whatever else would be measured.
    """
    for query, scores in enumerate(found, 1):
        wrong = np.flatnonzero(~np.isfinite(scores))
        if len(wrong):
            raise BeyondBound(
                f"with {capabilities.runtime} query {query}, document {wrong[0] + 1} has the score "
                f"{scores[wrong[0]]}, or evidence that is not a number"
            )
    pairs = list(zip(expected, found, strict=True))
    taus = [kendall_tau(*pair) for pair in pairs]
    differences = np.concatenate([np.abs(first - second) for first, second in pairs])
    return ExportParity(
        runtime=capabilities.runtime,
        device=capabilities.device,
        computed_in=capabilities.precision,
        queries=len(pairs),
        documents=len(expected[0]),
        max_difference=float(differences.max()),
        mean_difference=float(differences.mean()),
        spread=spread(expected),
        kendall_tau=float(np.mean(taus)),
        worst_tau=min(taus),
        top10_overlap=float(np.mean([top_overlap(*pair, TOP) for pair in pairs])),
        ndcg10=float(np.mean([own_ndcg(*pair, TOP) for pair in pairs])),
        bound=", ".join(map(str, bounds)),
    )
