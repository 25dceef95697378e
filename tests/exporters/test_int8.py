import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from farrank_exporters.int8 import quantize_onnx
from farrank_exporters.int8_openvino import OpenVinoInt8
from farrank_exporters.texts import calibration_batches
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderBatch, EncoderInput, Role
from farrank_runtimes import onnx_runtime, openvino_runtime
from farrank_runtimes.graph_files import GraphFiles
from farrank_runtimes.onnx_runtime import OnnxGraph, open_session
from farrank_runtimes.runtime import Placement, Runtime
from support.exported_rankers import TracedRanker

LAYERS = 2
# Query, key, value and output of attention, and the first product of the feed-forward block.
PRODUCTS_IN_INT8 = 5 * LAYERS

QUERIES = ["where does the river rise", "what flows into the sea", "who dammed the valley"]
TEXTS = [
    f"the river {word} in the mountains {'and goes on and on ' * n}" for n, word in enumerate("abcdefgh")
]


@pytest.fixture(scope="module")
def ranker(traced_rankers: dict[str, TracedRanker]) -> Ranker:
    return traced_rankers["biencoder"].ranker


@pytest.fixture(scope="module")
def batches(ranker: Ranker) -> list[EncoderBatch]:
    return calibration_batches(ranker.reader, QUERIES, TEXTS, 12)


@pytest.fixture(scope="module")
def traced(traced_rankers: dict[str, TracedRanker]) -> Path:
    return traced_rankers["biencoder"].folder


def encoded(runtime: Runtime, batches: Sequence[EncoderBatch]) -> Any:
    inputs = [EncoderInput(*(array[0].astype(np.int32) for array in batch)) for batch in batches]
    return np.stack([runtime.encode([each]).rows()[0].vectors.numpy() for each in inputs])


def test_onnx_computes_all_products_in_int8(
    traced: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = logging.getLogger().handlers[:]
    quantize_onnx(traced / "encoder.onnx", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.onnx"]
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger().handlers == before

    graph = onnx.load(tmp_path / "encoder.onnx").graph
    products = [node for node in graph.node if node.op_type == "MatMulNBits"]
    # Also the second product of the feed-forward block: its outliers share their scale with few values.
    assert len(products) == PRODUCTS_IN_INT8 + LAYERS
    for node in products:
        given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        assert (given["bits"], given["accuracy_level"]) == (8, 4)


def test_large_weights_keep_their_own_file(traced: Path, tmp_path: Path) -> None:
    apart, folder = tmp_path / "apart", tmp_path / "int8"
    apart.mkdir()
    folder.mkdir()
    onnx.save_model(
        onnx.load(traced / "encoder.onnx"),
        apart / "encoder.onnx",
        save_as_external_data=True,
        location="encoder.onnx.data",
    )
    quantize_onnx(apart / "encoder.onnx", folder)
    assert sorted(path.name for path in folder.iterdir()) == ["encoder.onnx", "encoder.onnx.data"]
    graph, weights = folder / "encoder.onnx", folder / "encoder.onnx.data"
    assert graph.stat().st_size < 1_000_000 < weights.stat().st_size
    open_session(graph, {"cpu": {}}, threads=1)


def test_in_onnx_companions_change_nothing(traced: Path, tmp_path: Path, batches: list[EncoderBatch]) -> None:
    quantize_onnx(traced / "encoder.onnx", tmp_path)
    session = open_session(tmp_path / "encoder.onnx", {"cpu": {}}, threads=1)
    graph = OnnxGraph(session, torch.device("cpu"))
    shortest = min(batch.input_ids.shape[1] for batch in batches)

    def vectors(some: Sequence[EncoderBatch]) -> torch.Tensor:
        arrays = [
            np.concatenate([each[:, :shortest] for each in column]) for column in zip(*some, strict=True)
        ]
        return graph.run(dict(zip(EncoderBatch._fields, map(torch.from_numpy, arrays), strict=True)))[0]

    alone = torch.cat([vectors([batch]) for batch in batches])
    torch.testing.assert_close(vectors(batches), alone, rtol=0, atol=1e-6)


def test_int8_vectors_are_near_but_not_the_same(
    ranker: Ranker, traced: Path, tmp_path: Path, batches: list[EncoderBatch]
) -> None:
    aggregator = traced / "aggregator.onnx"
    longest = max(batch.input_ids.shape[1] for batch in batches)
    quantize_onnx(traced / "encoder.onnx", tmp_path)
    next(OpenVinoInt8(traced / "encoder.onnx", tmp_path, batches).ways())

    def runtimes() -> Iterator[Runtime]:
        cpu = Placement("cpu", 1)
        fp32 = GraphFiles(traced / "encoder.onnx", aggregator, "fp32", longest)
        yield onnx_runtime.open_graphs(fp32, cpu)
        int8 = GraphFiles(tmp_path / "encoder.onnx", aggregator, "int8", longest)
        yield onnx_runtime.open_graphs(int8, cpu)
        yield openvino_runtime.open_graphs(replace(int8, encoder=tmp_path / "encoder.xml"), cpu)

    wanted, *found = [encoded(runtime, batches) for runtime in runtimes()]
    for vectors in found:
        cosines = (wanted * vectors).sum(axis=1)
        assert cosines.min() > 0.999
        assert np.abs(wanted - vectors).max() > 1e-5  # fp32 differs by 1e-7


@pytest.mark.parametrize("family", ["biencoder", "maxp"])
def test_calibration_reads_as_the_ranker_does(tiny_rankers: dict[str, Path], family: str) -> None:
    reader = open_ranker(tiny_rankers[family]).reader
    batches = calibration_batches(reader, QUERIES, TEXTS, 24)
    assert len(batches) == 24
    lengths = [batch.input_ids.shape for batch in batches]
    assert all(rows == 1 for rows, _ in lengths)
    assert len({length for _, length in lengths}) > 6
    roles = [set(np.unique(batch.roles)) for batch in batches]
    assert not any(Role.PADDING in each for each in roles)
    if family == "maxp":
        assert all({Role.QUERY, Role.DOCUMENT} <= each for each in roles)
    else:
        queries = sum(Role.QUERY in each for each in roles)
        assert queries == 6
        assert sum(Role.DOCUMENT in each for each in roles) == 18
    again = calibration_batches(reader, QUERIES, TEXTS, 24)
    assert all(
        np.array_equal(one.input_ids, other.input_ids) for one, other in zip(batches, again, strict=True)
    )


@pytest.mark.parametrize(
    ("queries", "texts", "named"), [([], TEXTS, "queries"), (QUERIES, ["", " "], "texts")]
)
def test_calibration_without_texts_is_refused(
    ranker: Ranker, queries: list[str], texts: list[str], named: str
) -> None:
    with pytest.raises(ValueError, match=f"^{named} hold no token"):
        calibration_batches(ranker.reader, queries, texts)
