"""The encoder in int8: a graph for ONNX Runtime and one for OpenVINO, or TensorRT's own."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from farrank_exporters.calibration import calibration_batches
from farrank_exporters.int8_onnx import DATA_SUFFIX, FILE, quantize_onnx
from farrank_exporters.int8_openvino import FILES, quantize_openvino
from farrank_exporters.int8_tensorrt import quantize_tensorrt
from farrank_exporters.texts import Texts
from farrank_rankers.exports.manifest import ExportFormat, Graph
from farrank_rankers.reader import Reader

# What a runtime's encoder may lie in.
_FILES: Mapping[str, tuple[str, ...]] = {"onnx": (FILE, FILE + DATA_SUFFIX), "openvino": FILES}


def quantize(
    graphs: Mapping[str, Graph],
    traced: Path,
    folder: Path,
    reader: Reader,
    texts: Texts,
    form: ExportFormat,
) -> dict[str, Graph]:
    """Write the encoder that was traced in fp32 as int8 into a folder; the aggregator stays as it is.

    As ONNX the encoder's variant for OpenVINO is a file of its own.
    """
    encoder = graphs["encoder"]
    batches = calibration_batches(reader, texts.queries, texts.documents)
    if form == "tensorrt":
        quantize_tensorrt(traced / encoder.file, folder, batches)
    else:
        quantize_onnx(traced / encoder.file, folder)
        openvino, *_ = quantize_openvino(traced / encoder.file, folder, batches)
        encoder = replace(encoder, variants={"openvino": openvino})
    aggregator = graphs["aggregator"]
    (traced / aggregator.file).rename(folder / aggregator.file)
    return {"encoder": encoder, "aggregator": aggregator}


def leave_out(folder: Path, encoder: Graph, refused: Collection[str]) -> Graph:
    """Remove the encoders of some runtimes, but not of all."""
    for name in (name for runtime in refused for name in _FILES[runtime]):
        (folder / name).unlink(missing_ok=True)
    file, *variants = [(each, encoder.file_for(each)) for each in _FILES if each not in refused]
    return replace(encoder, file=file[1], variants=dict(variants))
