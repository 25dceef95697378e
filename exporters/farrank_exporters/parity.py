"""Hold an export, run by the runtime that will serve it, against its ranker in torch, fp32."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from farrank_exporters.bounds import bound_for, spread
from farrank_exporters.rank_agreement import Scores, kendall_tau, top_overlap
from farrank_exporters.scoring import score_documents
from farrank_exporters.texts import Texts
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.manifest import ExportPrecision, Parity
from farrank_rankers.ranker import Ranker
from farrank_runtimes.interface import Capabilities, Runtime

TOP = 10


class BeyondBound(ExportError):
    """A runtime's scores are beyond their bound; `parity` is None where they are no numbers."""

    def __init__(self, reason: str, parity: Parity | None = None) -> None:
        super().__init__(reason)
        self.parity = parity


@dataclass(frozen=True, slots=True)
class Reference:
    """The texts, and what the ranker says of them. Shapes: scores (D,) for each query."""

    texts: Texts
    scores: tuple[Scores, ...]


def reference(ranker: Ranker, texts: Texts, progress: Callable[[str], None]) -> Reference:
    """Score the texts with the ranker itself, each document alone.

    Raises: ExportError if a score is not a number.
    """
    scores: list[Scores] = []
    for number, query in enumerate(texts.queries, 1):
        progress(f"scoring with torch, query {number} of {len(texts.queries)}")
        scores.append(np.array([each.score for each in ranker.score(query, texts.documents, batch_size=4)]))
        if not np.isfinite(scores[-1]).all():
            raise ExportError(
                "the ranker itself gives scores that are not finite: nothing can be held to them"
            )
    return Reference(texts, tuple(scores))


def measure(
    ranker: Ranker,
    runtime: Runtime,
    expected: Reference,
    precision: ExportPrecision,
    progress: Callable[[str], None],
) -> Parity:
    """Score the texts with a runtime and hold the scores to the precision's bound.

    Raises: BeyondBound naming the measure that is beyond its bound, or a score that is not a number.
    """
    capabilities = runtime.capabilities()
    found: list[Scores] = []
    for number, query in enumerate(expected.texts.queries, 1):
        progress(f"scoring with {capabilities.runtime}, query {number} of {len(expected.texts.queries)}")
        found.append(score_documents(runtime, ranker.reader, query, expected.texts.documents))
    bound = bound_for(precision, ranker.spec.family, expected.scores)
    parity = compare(
        expected.scores,
        found,
        runtime=capabilities.runtime,
        device=capabilities.device,
        computed_in=_arithmetic(capabilities),
        bound=str(bound),
    )
    if not bound.holds(parity):
        raise BeyondBound(
            f"with {parity.runtime} {bound.measure} is {getattr(parity, bound.measure):.3g}, and it must be "
            f"{bound}",
            parity,
        )
    return parity


def _arithmetic(capabilities: Capabilities) -> str:
    """Say what really was computed in, where that is not what the graph is written in."""
    if (capabilities.runtime, capabilities.device, capabilities.precision) == ("onnx", "cpu", "fp16"):
        return "fp32 between fp16 values"  # a CPU's kernels take fp32; casts stand around them
    return capabilities.precision


def compare(
    expected: Sequence[Scores],
    found: Sequence[Scores],
    *,
    runtime: str,
    device: str,
    computed_in: str,
    bound: str,
) -> Parity:
    """Compare scores, query by query.

    Shapes: (D,) for each query, in both.
    Raises: BeyondBound if a score is not finite, whatever else would be measured.
    """
    for query, scores in enumerate(found, 1):
        wrong = np.flatnonzero(~np.isfinite(scores))
        if len(wrong):
            raise BeyondBound(
                f"with {runtime} query {query}, document {wrong[0] + 1} has the score {scores[wrong[0]]}, or "
                "evidence that is not a number"
            )
    pairs = list(zip(expected, found, strict=True))
    differences = np.concatenate([np.abs(first - second) for first, second in pairs])
    return Parity(
        runtime=runtime,
        device=device,
        computed_in=computed_in,
        queries=len(pairs),
        documents=len(expected[0]),
        max_difference=float(differences.max()),
        mean_difference=float(differences.mean()),
        spread=spread(expected),
        kendall_tau=float(np.mean([kendall_tau(*pair) for pair in pairs])),
        top10_overlap=float(np.mean([top_overlap(*pair, TOP) for pair in pairs])),
        bound=bound,
    )
