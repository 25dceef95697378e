"""Documents in several groups: the same scores, each group bounded."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from farrank_exporters.trace import AggregatorGraph
from farrank_rankers.features import Features
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput, Role
from farrank_runtimes import exported_runtime
from farrank_runtimes.batcher import BatchPolicy, in_two
from farrank_runtimes.exported_runtime import GROUP_LIMIT, ExportedRuntime
from farrank_runtimes.graph_files import EncoderGraph, GraphFiles, RunGraph
from farrank_runtimes.loaded_runtime import even_batch
from farrank_runtimes.onnx_runtime import OnnxGraph, open_session
from farrank_runtimes.runtime import Capabilities, OutOfMemory

DOCUMENTS, CHUNKS, TOKENS, QUERY_TOKENS = 40, 3, 120, 6


class Observed:
    """Runs a graph and records the shapes of its inputs."""

    def __init__(self, graph: RunGraph) -> None:
        self.graph = graph
        self.seen: list[dict[str, tuple[int, ...]]] = []

    def __call__(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        self.seen.append({name: tuple(each.shape) for name, each in inputs.items()})
        return self.graph(inputs)


def runtime_of(aggregator: RunGraph) -> ExportedRuntime:
    files = GraphFiles(Path("encoder.onnx"), Path("aggregator.onnx"), "fp32", longest_input=64)
    encoder = EncoderGraph(aggregator, Capabilities("onnx", "cpu", "fp32", 1024))
    return ExportedRuntime(encoder, aggregator, files)


def token_features(ranker: Ranker, drawn: torch.Generator) -> tuple[Features, Tensor, Features | None]:
    """Draw features of documents of one to three chunks, whose last tokens are padding."""
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


def taken(features: Features, row: int, chunks: int) -> Features:
    """Take a document out of a batch."""
    assert features.roles is not None
    return Features(features.vectors[row, :chunks], features.roles[row, :chunks])


def graph_of(ranker: Ranker, artifact: Path | None) -> RunGraph:
    """Load the aggregator's graph from an artifact's export, or run the module that would be traced."""
    if artifact is not None:
        path = artifact / "exports" / "onnx-fp32" / "aggregator.onnx"
        return OnnxGraph(open_session(path, {"cpu": {}}, threads=1), torch.device("cpu")).run
    graph = AggregatorGraph(ranker.aggregator)
    return lambda inputs: list(graph(**inputs))


@pytest.mark.parametrize("family", ["neural-model1", "cedr-knrm", "parade-transf-pretr-lateir"])
def test_in_several_groups_scores_are_the_aggregators_own(
    tiny_rankers: dict[str, Path], tiny_exports: dict[str, Path], family: str
) -> None:
    ranker = open_ranker(tiny_rankers[family])
    observed = Observed(graph_of(ranker, tiny_exports.get(family)))
    with torch.inference_mode():
        features, chunk_mask, query = token_features(ranker, torch.Generator().manual_seed(5))
        wanted = ranker.aggregator.explain(features, chunk_mask, query)

    documents = [taken(features, row, int(count)) for row, count in enumerate(chunk_mask.sum(dim=1))]
    found = runtime_of(observed).score(documents, query.rows() if query else None)

    assert len(observed.seen) > 1
    assert sum(shapes["chunk_mask"][0] for shapes in observed.seen) == DOCUMENTS
    positions = GROUP_LIMIT.positions
    assert positions is not None
    assert all(shapes["chunk_mask"][0] * CHUNKS * TOKENS <= positions for shapes in observed.seen)
    spread = float(wanted.scores.std())
    assert found.scores == pytest.approx(wanted.scores.tolist(), rel=1e-4, abs=1e-3 * spread)
    for chunk_scores, each in zip(found.chunk_scores, wanted.chunk_scores.tolist(), strict=True):
        assert chunk_scores == pytest.approx(each[: len(chunk_scores)], rel=1e-4, abs=1e-3 * spread)


def test_a_batch_beyond_the_hosts_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory can also run out before the graph gets the batch. The server then tries halves."""

    def exhausted(inputs: Sequence[EncoderInput], pad_id: int, **_how: object) -> None:
        raise MemoryError("Unable to allocate 2.00 MiB for an array")

    monkeypatch.setattr(exported_runtime, "collate", exhausted)
    with pytest.raises(OutOfMemory, match=r"2\.00 MiB"):
        runtime_of(lambda _: []).encode(even_batch(2, 9))


@given(lengths=st.lists(st.integers(1, 512), min_size=1, max_size=40))
def test_a_batch_in_two_parts_is_the_batch_and_no_other_cut_of_it_is_done_sooner(lengths: list[int]) -> None:
    parts = in_two(lengths, 16)
    assert sorted(place for part in parts for place in part) == list(range(len(lengths)))
    assert len(parts) == min(2, len(lengths))

    def positions(part: list[int]) -> int:
        return len(part) * -(-max(lengths[place] for place in part) // 16) * 16

    order = [place for part in parts for place in part]
    assert [lengths[place] for place in order] == sorted(lengths, reverse=True)
    slower = max(map(positions, parts))
    for cut in range(1, len(order)):
        assert slower <= max(positions(order[:cut]), positions(order[cut:]))
    # Never more positions than in the batch padded as a whole.
    assert sum(map(positions, parts)) <= positions(order)
    divided = BatchPolicy(2048, 1.2, 32, parts=2, length_step=16).positions(lengths)
    assert sum(divided) == sum(map(positions, parts))
    assert all(found >= length for found, length in zip(divided, lengths, strict=True))
