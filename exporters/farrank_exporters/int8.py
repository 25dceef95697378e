"""The encoder in int8: a graph for each runtime; this module makes those of ONNX Runtime and TensorRT."""

import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import onnx

from farrank_exporters.int8_openvino import OPENVINO_FILE, OpenVinoInt8
from farrank_exporters.products import nodes_apart
from farrank_exporters.texts import SampleTexts, calibration_batches
from farrank_exporters.trace import quiet
from farrank_rankers.exports.manifest import Graph, Quantization
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderBatch

FILE = "encoder.onnx"
DATA_SUFFIX = ".data"

# The number of values of a weight or an activation that share a scale. With one scale for a whole batch, as
# in ONNX Runtime's dynamic quantization, an outlier costs all other values their precision, also in other
# inputs: MiniLM-L6 keeps a Kendall's tau of 0.95. Blocks of 128 keep 0.97 at 1.45 times the speed of fp32,
# blocks of 32 keep 0.98 at 1.28 times.
BLOCK = 128
# The operator's `accuracy_level` for products of int8 with int8.
INT8_PRODUCTS = 4


def quantize_onnx(encoder: Path, folder: Path) -> None:
    """Write an fp32 encoder's graph in int8 into a folder, for ONNX Runtime.

    This needs no calibration: activations are rounded at run time by the range of each row's block, so a
    row's values depend on no other row.
    """
    with _prepared(encoder, folder) as (prepared, large):
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(
            onnx.load(prepared),
            bits=8,
            block_size=BLOCK,
            is_symmetric=True,
            accuracy_level=INT8_PRODUCTS,
            op_types_to_quantize=("MatMul",),
        )
        quantizer.process()
        quantizer.model.save_model_to_file(str(folder / FILE), use_external_data_format=large)


@contextmanager
def _prepared(encoder: Path, folder: Path) -> Iterator[tuple[Path, bool]]:
    """Fold the transpositions of a graph's weights, so that the weights are constants.

    The second value tells whether the weights are in a separate file.
    """
    large = encoder.with_name(encoder.name + DATA_SUFFIX).exists()
    with tempfile.TemporaryDirectory(dir=folder) as scratch, quiet("onnxruntime.quantization"):
        from onnxruntime.quantization import quant_pre_process

        prepared = Path(scratch) / FILE
        quant_pre_process(
            encoder,
            prepared,
            skip_symbolic_shape=True,
            save_as_external_data=large,
            all_tensors_to_one_file=True,
        )
        yield prepared, large


def quantize_tensorrt(encoder: Path, folder: Path, inputs: Sequence[EncoderBatch]) -> None:
    """Write an fp32 encoder's graph with int8 products into a folder, for TensorRT.

    All scales are symmetric, as TensorRT requires: one for each output channel of a weight, one for each
    activation, whose range is measured on `inputs`. Attention's products and products of an activation's
    output stay in fp32.
    Raises: ValueError if there is no input to calibrate with.
    """
    if not inputs:
        raise ValueError("inputs is empty; calibration needs at least 1")
    with _prepared(encoder, folder) as (prepared, large):
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

        graph = onnx.load(prepared, load_external_data=False).graph
        apart = nodes_apart(graph)
        feeds = iter([{item.name: getattr(batch, item.name) for item in graph.input} for batch in inputs])
        quantize_static(
            prepared,
            folder / FILE,
            SimpleNamespace(get_next=lambda: next(feeds, None)),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["MatMul"],
            nodes_to_exclude=apart.after_activations + apart.without_weights,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            use_external_data_format=large,
            extra_options={
                "ActivationSymmetric": True,
                "WeightSymmetric": True,
                # Weights stay in fp32 before their own Q/DQ pair: TensorRT folds them itself.
                "AddQDQPairToWeight": True,
            },
        )


# The files of each runtime's encoder.
_FILES = {"onnx": (FILE, FILE + DATA_SUFFIX), "openvino": (OPENVINO_FILE, "encoder.bin")}


class Int8Encoders(NamedTuple):
    """An encoder in int8, with a graph for each runtime.

    `graphs` are the export's. `ways` holds an iterator for a runtime whose graph can be made in several ways:
    each step writes another graph.
    """

    graphs: dict[str, Graph]
    quantized: dict[str, Quantization]
    ways: Mapping[str, Iterator[Quantization]]


def quantize(
    graphs: Mapping[str, Graph],
    traced: Path,
    folder: Path,
    reader: Reader,
    texts: SampleTexts,
    runtimes: Collection[str],
) -> Int8Encoders:
    """Write the encoder that was traced in fp32 as int8 into a folder; the aggregator stays in fp32.

    Each of `runtimes` gets its own encoder. The traced files must stay as long as `ways` are iterated.
    """
    encoder, aggregator = graphs["encoder"], graphs["aggregator"]
    batches = calibration_batches(reader, texts.queries, texts.documents)
    shutil.copyfile(traced / aggregator.file, folder / aggregator.file)
    if "tensorrt" in runtimes:
        quantize_tensorrt(traced / encoder.file, folder, batches)
    if "onnx" in runtimes:
        quantize_onnx(traced / encoder.file, folder)
    ways: dict[str, Iterator[Quantization]] = {}
    if "openvino" in runtimes:
        ways["openvino"] = OpenVinoInt8(traced / encoder.file, folder, batches).ways()
        encoder = replace(encoder, variants={"openvino": OPENVINO_FILE})
        if "onnx" not in runtimes:
            encoder = replace(encoder, file=OPENVINO_FILE, variants={})
    first = {runtime: next(each) for runtime, each in ways.items()}
    return Int8Encoders({"encoder": encoder, "aggregator": aggregator}, first, ways)


def leave_out(folder: Path, encoder: Graph, refused: Collection[str]) -> Graph:
    """Remove the encoders of some runtimes, but not of all."""
    for name in (name for runtime in refused for name in _FILES[runtime]):
        (folder / name).unlink(missing_ok=True)
    file, *variants = [(each, encoder.file_for(each)) for each in _FILES if each not in refused]
    return replace(encoder, file=file[1], variants=dict(variants))
