"""The bytes of a graph are those of its file and of its weights, wherever its format has them."""

from pathlib import Path

import pytest

from farrank_runtimes.graph_files import graph_bytes


@pytest.mark.parametrize(
    ("graph", "weights", "others"),
    [
        ("encoder.onnx", [], ["encoder.bin", "encoder.onnx.json"]),
        ("encoder.onnx", ["encoder.onnx.data"], ["aggregator.onnx"]),
        ("model.onnx", ["model.onnx_data"], ["model_fp16.onnx", "model_fp16.onnx_data"]),
        ("encoder.xml", ["encoder.bin"], ["encoder.onnx", "encoder.xml.data"]),
    ],
)
def test_weights_beside_a_graph_count(
    graph: str, weights: list[str], others: list[str], tmp_path: Path
) -> None:
    for name, size in ((graph, 3), *((each, 50) for each in weights), *((each, 1000) for each in others)):
        (tmp_path / name).write_bytes(bytes(size))

    assert graph_bytes(tmp_path / graph) == 3 + 50 * len(weights)
