"""An export's graph files: their bytes with the weights, and the work of the aggregator."""

from pathlib import Path

import pytest

from farrank_rankers.exports.export_folder import find_exports, open_exported
from farrank_runtimes.graph_files import GraphFiles, graph_bytes


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


@pytest.mark.parametrize(
    ("family", "leaves_out"), [("maxp", False), ("biencoder", False), ("parade-transf-pretr-q", True)]
)
def test_an_aggregator_that_leaves_chunks_out_is_known(
    tiny_exports: dict[str, Path], family: str, leaves_out: bool
) -> None:
    (export,) = find_exports(tiny_exports[family])
    assert GraphFiles.of(open_exported(export), "openvino").leaves_chunks_out == leaves_out
