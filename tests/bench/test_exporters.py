"""The tables of torch's exporter and optimum's, for a tiny ranker in fp32."""

import importlib.util
from pathlib import Path

import onnx
import pytest

from farrank_bench import exporters
from farrank_bench.exporting import write_random
from farrank_bench.modernbert import BASE

HERE = importlib.util.find_spec("optimum") is not None
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def test_each_graph_has_a_row_or_the_reason_why_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exporters, "PRECISIONS", ("fp32",))
    monkeypatch.setattr(
        exporters, "RANKERS", {"tiny": lambda folder, layers: write_random(folder, BASE | SIZES).ranker}
    )
    monkeypatch.setattr(exporters, "DEFAULT", ("tiny",))
    page = tmp_path / "page.md"
    sizes = ("--rounds", "2", "--calls", "1", "--queries", "2", "--documents", "3")
    assert exporters.main([*sizes, "--out", str(page)]) == 0
    cells = [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    found = {first: second for first, second, *_ in cells}
    assert found["inputs"].startswith("16 of ")
    tracers = ("torch", "optimum") if HERE else ("torch",)
    for tracer in tracers:
        for runtime in ("onnx", "openvino"):
            row = found[f"fp32, traced by {tracer}, {runtime}"]
            for part in (" inputs/s; ", " nodes, ", " MiB; scores off by ", "Kendall's tau 1.0000"):
                assert part in row
    ratio = found.get("fp32, optimum's speed over torch's, onnx")
    if HERE:
        assert ratio is not None
        assert float(ratio.partition(" ")[0]) > 0
    else:
        assert ratio is None
        assert "constraints-transformers-4.txt" in found["fp32, traced by optimum"]


def test_a_graphs_size_has_its_own_weights_and_no_other_runtimes(tmp_path: Path) -> None:
    graph = tmp_path / "encoder.onnx"
    nodes = [onnx.helper.make_node("Identity", ["a"], ["b"], doc_string="x" * 2**20)]
    onnx.save_model(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], [])), graph)
    for name in ("encoder.xml", "encoder.bin"):
        (tmp_path / name).write_bytes(bytes(2**20))
    assert exporters.size_of(graph) == "1 nodes, 1.0 MiB"
    assert exporters.size_of(graph.with_suffix(".xml")) == "2.0 MiB"
