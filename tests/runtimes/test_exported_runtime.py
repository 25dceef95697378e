"""Documents in as many runs of the aggregator as memory asks for: the same scores, each run bounded."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from farrank_exporters.trace import trace_ranker
from farrank_rankers.features import Features
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import Role
from farrank_runtimes.exported_runtime import FEATURE_BYTES, POSITIONS, ExportedRuntime, LoadedGraph
from farrank_runtimes.onnx_runtime import open_onnx
from farrank_runtimes.runtime import Capabilities

DOCUMENTS, CHUNKS, TOKENS, QUERY_TOKENS = 40, 3, 120, 6


class Observed:
    """Runs a graph, or gives each document its first value, and keeps the shapes that it was given."""

    def __init__(self, graph: LoadedGraph | None = None) -> None:
        self.graph = graph
        self.seen: list[dict[str, tuple[int, ...]]] = []

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        self.seen.append({name: tuple(each.shape) for name, each in inputs.items()})
        if self.graph is not None:
            return self.graph.run(inputs)
        first = inputs["vectors"]
        while first.ndim > 1:
            first = first[:, 0]
        return [first, torch.where(inputs["chunk_mask"], first[:, None], -torch.inf)]


def runtime_of(aggregator: LoadedGraph) -> ExportedRuntime:
    return ExportedRuntime(Observed(), aggregator, Capabilities("onnx", "cpu", "fp32", 1024), 64)


def token_features(ranker: Ranker, drawn: torch.Generator) -> tuple[Features, Tensor, Features | None]:
    """Draw features of documents of one to three chunks, whose last have tokens of padding."""
    width = ranker.encoder(*(torch.full((1, 4), value) for value in (7, Role.DOCUMENT, 0))).vectors.shape[2:]
    counts = torch.arange(DOCUMENTS) % CHUNKS + 1
    chunk_mask = torch.arange(CHUNKS) < counts[:, None]
    roles = torch.full((DOCUMENTS, CHUNKS, TOKENS), Role.DOCUMENT)
    roles[:, :, 0] = Role.SPECIAL
    if ranker.spec.plan == "pair":
        roles[:, :, 1 : 1 + QUERY_TOKENS] = Role.QUERY
    roles[:, 1:, TOKENS // 2 :] = Role.PADDING
    features = Features(torch.randn(DOCUMENTS, CHUNKS, TOKENS, *width, generator=drawn), roles)
    if ranker.spec.plan == "pair":
        return features, chunk_mask, None
    query_roles = torch.full((DOCUMENTS, QUERY_TOKENS), Role.QUERY)
    vectors = torch.randn(DOCUMENTS, QUERY_TOKENS, *width, generator=drawn)
    return features, chunk_mask, Features(vectors, query_roles)


@pytest.mark.parametrize("family", ["neural-model1", "cedr-knrm", "parade-transf-pretr-lateir"])
def test_in_several_runs_scores_are_the_aggregators_own(
    tiny_rankers: dict[str, Path], tmp_path: Path, family: str
) -> None:
    ranker = open_ranker(tiny_rankers[family])
    trace_ranker(ranker, tmp_path)
    loaded = open_onnx(
        tmp_path / "encoder.onnx",
        tmp_path / "aggregator.onnx",
        precision="fp32",
        longest_input=64,
        device="cpu",
        threads=1,
    )
    observed = Observed(loaded._aggregator)
    with torch.inference_mode():
        features, chunk_mask, query = token_features(ranker, torch.Generator().manual_seed(5))
        wanted = ranker.aggregator(features, chunk_mask, query)

    scores, chunk_scores = runtime_of(observed).aggregate(features, chunk_mask, query)

    assert len(observed.seen) > 1
    assert sum(shapes["chunk_mask"][0] for shapes in observed.seen) == DOCUMENTS
    assert all(shapes["chunk_mask"][0] * CHUNKS * TOKENS <= POSITIONS for shapes in observed.seen)
    spread = float(wanted.scores.std())
    torch.testing.assert_close(torch.tensor(scores), wanted.scores, rtol=1e-4, atol=1e-3 * spread)
    torch.testing.assert_close(torch.tensor(chunk_scores), wanted.chunk_scores, rtol=1e-4, atol=1e-3 * spread)


def features_of(documents: int, chunks: int, tokens: int | None, width: int) -> Features:
    """Give features that take no memory, whatever their shape; a document's first value is its number."""
    leading = (documents, chunks) if tokens is None else (documents, chunks, tokens)
    numbers = torch.arange(documents, dtype=torch.float32)
    vectors = numbers.reshape(-1, *[1] * len(leading)).expand(*leading, width)
    return Features(vectors, None if tokens is None else torch.full((1, 1, 1), Role.DOCUMENT).expand(leading))


@pytest.mark.parametrize(
    ("chunks", "tokens", "asked", "width", "together"),
    [
        pytest.param(1, None, 0, 8, POSITIONS // 2, id="one chunk each"),
        pytest.param(9, None, 0, 8, POSITIONS // 90, id="chunks that evidence leaves out"),
        pytest.param(4, 64, 0, 8, POSITIONS // 256, id="tokens"),
        pytest.param(4, 48, 16, 8, POSITIONS // 256, id="tokens beside a query's"),
        pytest.param(2, 32, 0, 2**15, FEATURE_BYTES // 2**23, id="wide tokens"),
        pytest.param(4, POSITIONS, 0, 8, 1, id="a document beyond the bound is read alone"),
        pytest.param(2, 64, 0, FEATURE_BYTES // 128, 1, id="bytes beyond the bound, too"),
    ],
)
@pytest.mark.parametrize("more", [0, 1])
def test_no_run_reads_more_than_is_affordable(
    chunks: int, tokens: int | None, asked: int, width: int, together: int, more: int
) -> None:
    observed = Observed()
    documents = 2 * together + more
    features = features_of(documents, chunks, tokens, width)
    mask = torch.ones(documents, chunks, dtype=torch.bool)
    query = None
    if asked:
        query = Features(torch.zeros(documents, asked, width), torch.full((documents, asked), Role.QUERY))

    scores, chunk_scores = runtime_of(observed).aggregate(features, mask, query)

    assert [shapes["vectors"][0] for shapes in observed.seen] == [together] * 2 + [1] * more
    for shapes in observed.seen:
        assert len({shape[0] for shape in shapes.values()}) == 1
        assert ("query_vectors" in shapes) == (query is not None)
    assert scores == [float(number) for number in range(documents)]
    assert chunk_scores == [[score] * chunks for score in scores]


def test_what_is_affordable_goes_in_one_run() -> None:
    observed = Observed()
    for documents, chunks, tokens in ((1, 500, None), (1, 64, 512), (200, 5, None), (4, 4, 512)):
        mask = torch.ones(documents, chunks, dtype=torch.bool)
        runtime_of(observed).aggregate(features_of(documents, chunks, tokens, 8), mask, None)
    assert [shapes["vectors"][0] for shapes in observed.seen] == [1, 1, 200, 4]
