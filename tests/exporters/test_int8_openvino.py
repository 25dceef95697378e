"""OpenVINO's graph in int8: the products that take the time, and not those that decide the score."""

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import farrank_exporters.export
import farrank_exporters.int8_openvino
from farrank_exporters.export import export_ranker
from farrank_exporters.int8_openvino import OpenVinoInt8, products_in_int8
from farrank_exporters.parity import BeyondBound, measure
from farrank_exporters.texts import calibration_batches
from farrank_exporters.trace import trace_encoder
from farrank_rankers.exports.export_folder import Export
from farrank_rankers.exports.manifest import ExportParity, Quantization
from farrank_rankers.files.open import open_ranker
from support.exported_rankers import CALIBRATION, MEASURED, TracedRanker

LAYERS = 2
# Query, key, value and output of attention, and the feed-forward block's first product.
IN_INT8 = 5 * LAYERS
# Queries with keys, attention's weights with values, and the feed-forward block's second product.
PRODUCTS = IN_INT8 + 3 * LAYERS
# The last layer computes its keys and values for all tokens, and everything else for [CLS] alone.
OF_ALL_TOKENS = 5 * (LAYERS - 1) + 2
FILES = ("encoder.bin", "encoder.xml")


@pytest.fixture
def int8(traced_rankers: dict[str, TracedRanker], tmp_path: Path) -> OpenVinoInt8:
    traced = traced_rankers["biencoder"]
    return made_of(traced.folder / "encoder.onnx", traced, tmp_path)


def made_of(encoder: Path, traced: TracedRanker, folder: Path) -> OpenVinoInt8:
    reader = traced.ranker.reader
    batches = calibration_batches(reader, CALIBRATION.queries, CALIBRATION.documents, 12)
    return OpenVinoInt8(encoder, folder, batches)


def kinds(path: Path) -> Counter[str]:
    """Count a graph's operators."""
    import openvino

    return Counter(node.get_type_name() for node in openvino.Core().read_model(path).get_ops())


def rounded(path: Path) -> set[str]:
    import openvino

    return products_in_int8(openvino.Core().read_model(path))


def test_products_of_weights_are_in_int8_and_no_look_up(
    int8: OpenVinoInt8, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import openvino

    logger_class = logging.getLoggerClass()
    first = next(int8.ways())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.bin", "encoder.xml"]
    assert capfd.readouterr() == ("", "")
    assert logging.getLoggerClass() is logger_class
    assert first == Quantization("openvino", "SmoothQuant at 0.95", IN_INT8)
    assert len(rounded(tmp_path / "encoder.xml")) == IN_INT8
    assert kinds(tmp_path / "encoder.xml")["MatMul"] == PRODUCTS
    model = openvino.Core().read_model(tmp_path / "encoder.xml")
    assert {item.any_name for item in model.inputs} == {"input_ids", "roles", "token_type_ids"}
    tables = [
        node.input_value(0).get_element_type().get_type_name()
        for node in model.get_ops()
        if node.get_type_name() == "Gather" and node.input_value(0).get_node().get_type_name() == "Constant"
    ]
    assert tables
    assert "i8" not in tables


def test_products_of_one_token_are_left(tiny_rankers: dict[str, Path], tmp_path: Path) -> None:
    """A cross-encoder's last layer is computed for [CLS], but for keys and values, like the head."""
    ranker = open_ranker(tiny_rankers["cross-encoder"])
    trace_encoder(ranker, tmp_path)
    folder = tmp_path / "int8"
    folder.mkdir()
    batches = calibration_batches(ranker.reader, CALIBRATION.queries, CALIBRATION.documents, 4)
    assert next(OpenVinoInt8(tmp_path / "encoder.onnx", folder, batches).ways()).products == OF_ALL_TOKENS


def test_the_second_way_smooths_otherwise(traced_rankers: dict[str, TracedRanker], tmp_path: Path) -> None:
    traced = traced_rankers["biencoder"]
    ways = made_of(traced.folder / "encoder.onnx", traced, tmp_path).ways()
    first, written = next(ways), (tmp_path / "encoder.bin").read_bytes()
    second = next(ways)
    assert second == Quantization("openvino", "SmoothQuant at 0.7", first.products)
    assert (tmp_path / "encoder.bin").read_bytes() != written
    assert next(ways, None) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.bin", "encoder.xml"]


def test_nothing_to_calibrate_with_is_refused(
    traced_rankers: dict[str, TracedRanker], tmp_path: Path
) -> None:
    traced = traced_rankers["biencoder"]
    with pytest.raises(ValueError, match=r"^inputs is empty"):
        OpenVinoInt8(traced.folder / "encoder.onnx", tmp_path, [])
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def first_way(tmp_path_factory: pytest.TempPathFactory) -> Callable[[OpenVinoInt8], Quantization]:
    """Quantize a graph the first way, and copy the result for the others, because all have the same graph."""
    kept, ways = tmp_path_factory.mktemp("first-way"), OpenVinoInt8.ways
    made: list[Quantization] = []

    def first(int8: OpenVinoInt8) -> Quantization:
        if not made:
            made.append(next(ways(int8)))
            for name in FILES:
                shutil.copy(int8._folder / name, kept)
        for name in FILES:
            shutil.copy(kept / name, int8._folder)
        return made[0]

    return first


@pytest.fixture
def ways_written(
    first_way: Callable[[OpenVinoInt8], Quantization], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Ways to quantize that take no time: the first graph is reused, and each way records its name."""
    taken: list[str] = []

    def short(self: OpenVinoInt8) -> Iterator[Quantization]:
        for quantized in (
            first_way(self),
            Quantization("openvino", "second", 16),
            Quantization("openvino", "third", 16),
        ):
            taken.append(quantized.way)
            yield quantized

    monkeypatch.setattr(OpenVinoInt8, "ways", short)
    return taken


@pytest.mark.usefixtures("traced_before", "any_tau")
@pytest.mark.parametrize(("beyond", "kept"), [(0, 0), (1, 1), (2, 2), (3, None)])
def test_the_first_way_that_keeps_the_bound_is_kept(
    tiny_rankers: dict[str, Path],
    tmp_path: Path,
    ways_written: list[str],
    monkeypatch: pytest.MonkeyPatch,
    beyond: int,
    kept: int | None,
) -> None:
    tries = 0

    def measured(*arguments: Any, **named: Any) -> ExportParity:
        nonlocal tries
        parity = measure(*arguments, **named)
        if parity.runtime == "openvino":
            tries += 1
            if tries <= beyond:
                raise BeyondBound(f"beyond at try {tries}", parity)
        return parity

    monkeypatch.setattr(farrank_exporters.export, "measure", measured)
    artifact = Path(shutil.copytree(tiny_rankers["maxp"], tmp_path / "maxp"))
    made = export_ranker(
        open_ranker(artifact), artifact, "onnx", "int8", measured=MEASURED, calibration=CALIBRATION
    )
    manifest = Export.read(made.folder).manifest
    assert len(ways_written) == min(beyond + 1, 3)
    if kept is None:
        assert manifest.quantized == ()
        assert [each.runtime for each in manifest.refused] == ["openvino"]
        assert manifest.refused[0].reason == "beyond at try 3"
    else:
        assert [each.way for each in manifest.quantized] == [ways_written[kept]]
        assert manifest.refused == ()
        made.verify()
