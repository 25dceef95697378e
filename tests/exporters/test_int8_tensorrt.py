"""TensorRT's requirements on a graph in int8, with which ONNX Runtime computes the model's scores."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from farrank_exporters.int8 import quantize_tensorrt
from farrank_exporters.texts import calibration_batches
from farrank_rankers.tokens import EncoderBatch
from farrank_runtimes.onnx_runtime import OnnxGraph, open_session
from support.exported_rankers import TracedRanker

LAYERS = 2
# Query, key, value and output of attention, and the first product of the feed-forward block.
PRODUCTS_IN_INT8 = 5 * LAYERS
QUERIES = ["where does the river rise", "what flows into the sea"]
TEXTS = [f"the river {word} in the mountains {'and goes on and on ' * n}" for n, word in enumerate("abcdef")]


@pytest.fixture(scope="module")
def graphs(
    traced_rankers: dict[str, TracedRanker], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, list[EncoderBatch]]:
    """A bi-encoder's graph in fp32 and in int8, and its calibration data."""
    traced, folder = traced_rankers["biencoder"], tmp_path_factory.mktemp("int8")
    batches = calibration_batches(traced.ranker.reader, QUERIES, TEXTS, 12)
    quantize_tensorrt(traced.folder / "encoder.onnx", folder, batches)
    assert [path.name for path in folder.iterdir()] == ["encoder.onnx"]
    return traced.folder / "encoder.onnx", folder / "encoder.onnx", batches


def test_every_scale_lies_around_zero(graphs: tuple[Path, Path, list[EncoderBatch]]) -> None:
    graph = onnx.load(graphs[1]).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    points = [constants[node.input[2]] for node in graph.node if node.op_type == "QuantizeLinear"]
    assert points
    for point in points:
        assert point.dtype == np.int8
        assert not point.any()


def test_products_with_weights_are_in_int8_but_those_after_activations(
    graphs: tuple[Path, Path, list[EncoderBatch]],
) -> None:
    graph = onnx.load(graphs[1]).graph
    made_by = {output: node.op_type for node in graph.node for output in node.output}
    weights = {tensor.name for tensor in graph.initializer}
    kinds = Counter(
        tuple("int8" if made_by.get(name) == "DequantizeLinear" else "fp32" for name in node.input)
        for node in graph.node
        if node.op_type == "MatMul"
    )
    # Two products per layer within attention, and the second of the feed-forward block.
    assert kinds == {("int8", "int8"): PRODUCTS_IN_INT8, ("fp32", "fp32"): 3 * LAYERS}
    of_weights = [n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] in weights]
    assert len(of_weights) == PRODUCTS_IN_INT8


def test_vectors_stay_close(graphs: tuple[Path, Path, list[EncoderBatch]]) -> None:
    before, after, batches = graphs
    whole, int8 = (
        OnnxGraph(open_session(path, {"cpu": {}}, 1), torch.device("cpu")) for path in (before, after)
    )
    for batch in batches:
        inputs = {name: torch.from_numpy(array) for name, array in batch._asdict().items()}
        (wanted, *_), (found, *_) = whole.run(inputs), int8.run(inputs)
        cosines = torch.nn.functional.cosine_similarity(wanted, found)
        assert float(cosines.min()) > 0.99
        assert not torch.allclose(wanted, found, atol=1e-5)


def test_nothing_to_calibrate_with_is_refused(
    graphs: tuple[Path, Path, list[EncoderBatch]], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="inputs is empty"):
        quantize_tensorrt(graphs[0], tmp_path, [])
