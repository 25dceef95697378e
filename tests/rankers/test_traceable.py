"""Every family and every backbone as graphs: traced at one size, correct at others, in other runtimes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from farrank_exporters.trace import AggregatorGraph, trace_aggregator, trace_encoder
from farrank_rankers.chunking import Chunking
from farrank_rankers.exports.export_folder import find_exports
from farrank_rankers.family import FAMILIES, TransformerShape
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput, Role, collate

MakeModel = Callable[..., Path]
Feed = dict[str, Tensor]
Run = Callable[[Feed], list[NDArray[Any]]]

CHUNKING = {
    "first": Chunking("first", 16, 16, 64),
    "disjoint": Chunking("disjoint", 16, 16, 64),
    "sliding": Chunking("sliding", 16, 10, 64),
}
TEXT = (
    "a search engine ranks passages of the long document by a query, while windows slide over text and "
    "chunks of command line arguments parse hello world"
)
# A query, and the number of words of each document: one chunk or several, an empty one, equal sizes or not.
SIZES: Sequence[tuple[str, Sequence[int]]] = (
    ("hello", [0]),
    ("neural search engine ranks documents by the query", [3, 24, 0, 12, 1]),
    ("the query", [24, 24]),
    # More documents with more chunks than in any tracing.
    ("a search engine", [60, 0, 33, 5, 1, 48]),
)

# KNRM's kernel of exact matches is 0.001 wide: a cosine's last digit moves it by up to 6e-5.
TOLERANCE = {name: family.rounding for name, family in FAMILIES.items()}

# For each kind of aggregator, the one with the most unusual operators.
ALSO_IN_OPENVINO = ["parade-attn", "cedr-pacrr", "neural-model1", "parade-transf-pretr-lateir"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_scores_alike_in_its_graphs(
    make_model: MakeModel,
    tiny_options: dict[str, dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
    encoders: dict[str, Path],
    tiny_exports: dict[str, Path],
    family: str,
) -> None:
    """A tiny ranker whose queries are padded if they can be."""
    chunking = CHUNKING[FAMILIES[family].chunking]
    padded = 14 if FAMILIES[family].plan == "pair" else None
    ranker = new_ranker(
        family,
        make_model("bert", num_hidden_layers=1),
        chunking,
        seed=3,
        options=one_layer(tiny_options).get(family),
        max_query_tokens=12,
        pad_query_to=padded,
    ).eval()
    folder = tmp_path_factory.mktemp(family)
    # Many families share an encoder, and tracing one takes seconds.
    encoder = f"{type(ranker.encoder)} {ranker.encoder} {ranker.spec.plan}"
    if encoder not in encoders:
        trace_encoder(ranker, folder)
        encoders[encoder] = folder / "encoder.onnx"
    check_encoder(ranker, in_onnx_runtime(encoders[encoder]))
    if padded is None and family in tiny_exports:  # its aggregator was traced for other tests
        aggregated, folder = read_in_parts(tiny_exports[family], chunking)
    else:
        aggregated = ranker
        trace_aggregator(ranker, folder)
    check_aggregator(aggregated, in_onnx_runtime(folder / "aggregator.onnx"))
    if family in ALSO_IN_OPENVINO:
        check_encoder(ranker, in_openvino(encoders[encoder]))
        check_aggregator(aggregated, in_openvino(folder / "aggregator.onnx"))


def read_in_parts(artifact: Path, chunking: Chunking) -> tuple[Ranker, Path]:
    """Open an exported ranker with such chunks. Also returns its graphs' folder."""
    (export,) = find_exports(artifact)
    ranker = open_ranker(
        artifact,
        window=chunking.window,
        stride=chunking.stride,
        max_document_tokens=chunking.max_document_tokens,
        max_query_tokens=12,
    )
    return ranker, export.folder


@pytest.fixture(scope="module")
def encoders() -> dict[str, Path]:
    """Graphs of encoders that were traced before, by encoder."""
    return {}


# Backbones with their own code, and, marked slow because they are many, those that transformers builds like
# BERT.
UNLIKE_BERT: Sequence[tuple[str, dict[str, int]]] = (
    ("llama", {}),
    ("qwen3", {}),
    ("gemma2", {"sliding_window": 8}),
    ("jina", {}),
    ("longformer", {"attention_window": 16}),
    ("big_bird", {"block_size": 8}),
    ("modernbert", {"num_hidden_layers": 2}),
)
LIKE_BERT: Sequence[tuple[str, dict[str, int]]] = tuple(
    (name, {}) for name in ("electra", "distilbert", "roberta", "deberta-v2", "mosaic", "big_bird")
)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [*UNLIKE_BERT, *(pytest.param(*each, marks=pytest.mark.slow) for each in LIKE_BERT)],
    ids=str,
)
def test_every_backbone_encodes_alike_in_its_graph(
    make_backbone: MakeModel, tmp_path: Path, architecture: str, changes: Mapping[str, Any]
) -> None:
    """Sparse attention sees far less than an input. BigBird's usual blocks need none here: it reads fully."""
    long = Chunking("first", 300, 300, 300)
    folder = make_backbone(architecture, positions=400, **{"num_hidden_layers": 1, **changes})
    ranker = new_ranker("longp", folder, long, seed=2, pretrained=False, max_query_tokens=12).eval()
    trace_encoder(ranker, tmp_path)
    runs = [in_onnx_runtime(tmp_path / "encoder.onnx")]
    if architecture in ("longformer", "big_bird", "jina", "modernbert"):
        runs.append(in_openvino(tmp_path / "encoder.onnx"))
    for run in runs:
        check_encoder(ranker, run)
        for words in ([50], [250, 3, 120]):
            check_encoder_on(ranker, run, inputs_of(ranker, "the query", words)[0])


def test_masks_are_added_and_stretched_positions_follow_each_inputs_own_length(
    make_model: MakeModel, tmp_path: Path
) -> None:
    options = {"position_step": 4, "query_prefix": "query: ", "document_prefix": "passage: "}
    folder = make_model("bert", num_hidden_layers=1)
    ranker = new_ranker("biencoder", folder, Chunking("sliding", 60, 40, 100), seed=2, options=options).eval()
    trace_encoder(ranker, tmp_path)
    run = in_onnx_runtime(tmp_path / "encoder.onnx")
    # Boolean masks, as transformers 5 makes them, would cost a tenth of the time: see `added_mask`.
    graph = onnx.load(tmp_path / "encoder.onnx", load_external_data=False).graph
    kinds = {node.op_type for node in graph.node}
    assert "Softmax" in kinds
    assert not {"IsNaN", "GatherND"} & kinds
    for words in ([2], [24, 1, 0, 8], [3, 5]):  # 32 of the 128 positions fit 4 times
        check_encoder_on(ranker, run, inputs_of(ranker, "the query", words)[0])


def one_layer(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Make all transformers of aggregators as quick to trace as possible."""
    return {
        family: {
            name: replace(value, layers=1) if isinstance(value, TransformerShape) else value
            for name, value in each.items()
        }
        for family, each in options.items()
    }


def in_onnx_runtime(path: Path) -> Run:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(feed: Feed) -> list[NDArray[Any]]:
        found: list[NDArray[Any]] = session.run(None, {name: feed[name].numpy() for name in names})
        return found

    return run


def in_openvino(path: Path) -> Run:
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    model = openvino.Core().compile_model(path, "CPU", settings)
    # An input that is sliced from end to end also has the slice's name, and may report either name.
    names = [each.node.friendly_name for each in model.inputs]

    def run(feed: Feed) -> list[NDArray[Any]]:
        found = model([feed[name].numpy() for name in names])
        return [np.array(found[each]) for each in model.outputs]

    return run


def inputs_of(
    ranker: Ranker, query: str, words: Sequence[int]
) -> tuple[list[EncoderInput], list[int], EncoderInput | None]:
    """Return all chunks of documents of these lengths, their numbers, and the query if encoded separately."""
    reader = ranker.reader
    asked, dual = reader.read_query(query), ranker.spec.plan == "dual"
    texts = [" ".join(np.resize(TEXT.split(), count)) for count in words]
    split = [reader.split(reader.read_document(text)) for text in texts]
    chunks = [reader.chunk_input(None if dual else asked, chunk) for each in split for chunk in each]
    return chunks, [len(each) for each in split], reader.query_input(asked) if dual else None


def encoded(ranker: Ranker, inputs: Sequence[EncoderInput]) -> tuple[Feed, Features]:
    batch = collate(inputs, ranker.reader.pad_id)
    feed = {name: torch.from_numpy(array) for name, array in batch._asdict().items()}
    with torch.inference_mode():
        features: Features = ranker.encoder(*feed.values())
    return feed, features


def check_encoder(ranker: Ranker, run: Run) -> None:
    for query, words in SIZES:
        chunks, _, asked = inputs_of(ranker, query, words)
        check_encoder_on(ranker, run, chunks)
        if asked is not None:
            check_encoder_on(ranker, run, [asked])


def check_encoder_on(ranker: Ranker, run: Run, inputs: Sequence[EncoderInput]) -> None:
    feed, expected = encoded(ranker, inputs)
    vectors, *roles = run(feed)
    assert vectors.shape == expected.vectors.shape
    real: Any = ...
    if expected.roles is not None:
        assert np.array_equal(roles[0], expected.roles)
        real = expected.roles.numpy() != Role.PADDING
    else:
        assert not roles
    np.testing.assert_allclose(vectors[real], expected.vectors.numpy()[real], rtol=0, atol=1e-5)


def check_aggregator(ranker: Ranker, run: Run) -> None:
    tolerance = TOLERANCE[ranker.spec.family]
    for query, words in SIZES:
        feed = aggregator_feed(ranker, query, words)
        with torch.inference_mode():
            expected = AggregatorGraph(ranker.aggregator)(**feed)
        found = run(feed)
        assert np.isfinite(found[0]).all()
        for each, literal in zip(found, expected, strict=True):
            np.testing.assert_allclose(each, literal.numpy(), rtol=1e-5, atol=tolerance)


def aggregator_feed(ranker: Ranker, query: str, words: Sequence[int]) -> Feed:
    """Return the encoder's features of documents, with NaN where there is no token."""
    chunks, counts, asked = inputs_of(ranker, query, words)
    rows = encoded(ranker, chunks)[1].rows()
    bounds = np.cumsum([0, *counts])
    documents = [stacked(rows[first:end]) for first, end in pairwise(bounds)]
    features, mask = batched(documents)
    feed = {"vectors": features.vectors.clone(), "chunk_mask": mask}
    feed["vectors"][~mask] = torch.nan
    if features.roles is not None:
        feed["roles"] = features.roles
        feed["vectors"][features.roles == Role.PADDING] = torch.nan
    if asked is not None:
        of_query = stacked(encoded(ranker, [asked])[1].rows() * len(words))
        feed["query_vectors"] = of_query.vectors
        if of_query.roles is not None:
            feed["query_roles"] = of_query.roles
    return feed
