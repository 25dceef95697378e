"""The encoder in int8: a file for ONNX Runtime, and one for OpenVINO, which is calibrated."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from farrank_exporters.calibration import calibration_batches
from farrank_exporters.int8_onnx import quantize_onnx
from farrank_exporters.int8_openvino import quantize_openvino
from farrank_exporters.texts import Texts
from farrank_rankers.exports.manifest import Graph
from farrank_rankers.reader import Reader


def quantize(
    graphs: Mapping[str, Graph], traced: Path, folder: Path, reader: Reader, texts: Texts
) -> dict[str, Graph]:
    """Write the encoder that was traced in fp32 as int8 into a folder; the aggregator stays as it is.

    The encoder's variant for OpenVINO is a file of its own.
    """
    encoder = graphs["encoder"]
    batches = calibration_batches(reader, texts.queries, texts.documents)
    quantize_onnx(traced / encoder.file, folder)
    openvino, *_ = quantize_openvino(traced / encoder.file, folder, batches)
    aggregator = graphs["aggregator"]
    (traced / aggregator.file).rename(folder / aggregator.file)
    return {"encoder": replace(encoder, variants={"openvino": openvino}), "aggregator": aggregator}
