"""The encoder in int8: a graph for ONNX Runtime, one for OpenVINO and one for TensorRT."""

import io
import logging
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from farrank_exporters.texts import Texts, calibration_batches
from farrank_rankers.exports.manifest import ExportFormat, Graph
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import Batch, LongArray

if TYPE_CHECKING:
    import openvino


ACTIVATIONS = frozenset(
    {"Celu", "Elu", "Erf", "Gelu", "HardSwish", "LeakyRelu", "Mish", "Relu", "Selu", "Sigmoid", "Softplus"}
    | {"Swish", "Tanh"}
)

# What may stand between an activation and the product: its own arithmetic, gates, casts.
_ELEMENTWISE = frozenset(
    {"Add", "Cast", "CastLike", "Div", "Dropout", "Identity", "Mul", "Neg", "Pow", "Reshape", "Sub"}
)
_PRODUCTS = frozenset({"Gemm", "MatMul"})
# What makes a constant of a constant.
_OF_WEIGHTS = frozenset({"Cast", "Identity", "Transpose"})


def products_after_activations(graph: onnx.GraphProto) -> list[str]:
    """Name the products of weights with what comes out of an activation: each feed-forward block's second.

    What an activation lets through has outliers in a few of its thousands of dimensions: rounded at one scale
    with them, all others lose their digits.
    """
    producers = {output: node for node in graph.node for output in node.output}
    weights = _weights(graph)
    return [
        node.name
        for node in graph.node
        if node.op_type in _PRODUCTS
        and node.input[1] in weights
        and _from_activation(node.input[0], producers)
    ]


def products_without_weights(graph: onnx.GraphProto) -> list[str]:
    """Name the products of two values that each input has its own of: attention's."""
    weights = _weights(graph)
    return [node.name for node in graph.node if node.op_type in _PRODUCTS and node.input[1] not in weights]


def embeddings(graph: onnx.GraphProto) -> list[str]:
    """Name the look-ups in tables of weights: they take no arithmetic that int8 could speed up."""
    weights = _weights(graph)
    return [node.name for node in graph.node if node.op_type == "Gather" and node.input[0] in weights]


def _weights(graph: onnx.GraphProto) -> set[str]:
    """Collect the values that are the same for every input."""
    weights = {tensor.name for tensor in graph.initializer}
    for node in graph.node:  # in topological order, as ONNX prescribes
        if node.op_type in _OF_WEIGHTS and node.input[0] in weights:
            weights.update(node.output)
    return weights


def _from_activation(value: str, producers: Mapping[str, onnx.NodeProto]) -> bool:
    """Look for an activation behind a value, through elementwise operations alone."""
    waiting, seen = [value], set[str]()
    while waiting:
        value = waiting.pop()
        node = producers.get(value)
        if node is None or value in seen:
            continue
        seen.add(value)
        if node.op_type in ACTIVATIONS:
            return True
        if node.op_type in _ELEMENTWISE:
            waiting.extend(node.input)
    return False


FILE = "encoder.onnx"
DATA_SUFFIX = ".data"

# Values that share a scale, of a weight and of an activation. One scale for a whole batch, as in ONNX
# Runtime's dynamic quantization, leaves MiniLM-L6 a Kendall's tau of 0.95, where an outlier decides on all
# digits, companions' too; blocks of 128 leave it 0.97 at 1.45 times the speed of fp32, of 32 0.98 at 1.28.
BLOCK = 128
# What the operator's `accuracy_level` calls products of int8 with int8.
INT8_PRODUCTS = 4


def quantize_onnx(encoder: Path, folder: Path) -> tuple[str, ...]:
    """Write an fp32 encoder's graph in int8 into a folder, its products with weights by blocks.

    For machines without OpenVINO; it needs no calibration, and a row's values depend on no other row.
    Returns the names of the files written.
    """
    large = encoder.with_name(encoder.name + DATA_SUFFIX).exists()
    with tempfile.TemporaryDirectory(dir=folder) as scratch, quiet_quantization():
        from onnxruntime.quantization import quant_pre_process
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        # Weights are constants of the graph only once their transpositions are folded.
        prepared = Path(scratch) / FILE
        quant_pre_process(
            encoder,
            prepared,
            skip_symbolic_shape=True,
            save_as_external_data=large,
            all_tensors_to_one_file=True,
        )
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
    return (FILE, FILE + DATA_SUFFIX) if large else (FILE,)


@contextmanager
def quiet_quantization() -> Iterator[None]:
    """Keep back what is logged on the way, and the root logger from being configured for everybody."""
    root, silence = logging.getLogger(), logging.NullHandler()
    library = logging.getLogger("onnxruntime.quantization")
    level = library.level
    root.addHandler(silence)
    root.addFilter(_nothing)
    library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.setLevel(level)
        root.removeFilter(_nothing)
        root.removeHandler(silence)


def _nothing(record: logging.LogRecord) -> bool:
    return False


FILES = ("encoder.xml", "encoder.bin")


def quantize_openvino(encoder: Path, folder: Path, inputs: Sequence[Batch]) -> tuple[str, ...]:
    """Write an fp32 encoder's ONNX graph as OpenVINO's, in int8, into a folder; name the files.

    Products of what an activation lets through stay as they are, embeddings too.
    Raises: ValueError if there is no input to calibrate with.
    """
    if not inputs:
        raise ValueError("inputs is empty; calibration needs at least 1")
    graph = onnx.load(encoder, load_external_data=False).graph
    sensitive = {*products_after_activations(graph), *embeddings(graph)}
    with _quiet():
        import nncf
        import openvino
        from openvino.passes import ConstantFolding, Manager

        nncf.set_log_level(logging.ERROR)
        model = openvino.Core().read_model(str(encoder))
        # Weights are constants only once their transpositions are folded: others stay in fp32 unnoticed.
        folding = Manager()
        folding.register_pass(ConstantFolding())
        folding.run_passes(model)
        names = [item.any_name for item in model.inputs]
        feeds = [{name: getattr(batch, name) for name in names} for batch in inputs]
        quantized = nncf.quantize(
            model,
            nncf.Dataset(feeds),
            model_type=nncf.ModelType.TRANSFORMER,
            # Weights around zero, activations wherever they lie.
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(feeds),
            ignored_scope=nncf.IgnoredScope(names=_names_in(model, sensitive)),
        )
        openvino.save_model(quantized, str(folder / FILES[0]), compress_to_fp16=False)
    return FILES


def _names_in(model: "openvino.Model", names: set[str]) -> list[str]:
    """Name what OpenVINO made of nodes: of a Gemm, a product called NAME/WithoutBiases and an addition.

    A look-up whose positions are constants is a constant itself, and no longer there.
    """
    read = [op.get_friendly_name() for op in model.get_ops() if op.get_type_name() in ("Gather", "MatMul")]
    return [name for name in read if name in names or name.rpartition("/")[0] in names]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back progress bars and warnings, and the logger class and levels that NNCF gives to everybody."""
    logger_class = logging.getLoggerClass()
    levels = [(handler, handler.level) for handler in logging.getLogger().handlers]
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.setLoggerClass(logger_class)
        for handler, level in levels:
            handler.setLevel(level)


def quantize_tensorrt(encoder: Path, folder: Path, inputs: Sequence[Batch]) -> tuple[str, ...]:
    """Write an fp32 encoder's graph with its products with weights in int8 into a folder; name the files.

    All scales lie around zero, as TensorRT asks: of weights one for each output, of activations one, by the
    range measured on `inputs`. Products of what an activation lets through stay as they are, and attention's.
    Raises: ValueError if there is no input to calibrate with.
    """
    if not inputs:
        raise ValueError("inputs is empty; calibration needs at least 1")
    large = encoder.with_name(encoder.name + DATA_SUFFIX).exists()
    with tempfile.TemporaryDirectory(dir=folder) as scratch, quiet_quantization():
        from onnxruntime.quantization import QuantFormat, QuantType, quant_pre_process, quantize_static

        prepared = Path(scratch) / FILE
        quant_pre_process(
            encoder,
            prepared,
            skip_symbolic_shape=True,
            save_as_external_data=large,
            all_tensors_to_one_file=True,
        )
        graph = onnx.load(prepared, load_external_data=False).graph
        quantize_static(
            prepared,
            folder / FILE,
            _Reader([item.name for item in graph.input], inputs),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["MatMul"],
            nodes_to_exclude=[*products_after_activations(graph), *products_without_weights(graph)],
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            use_external_data_format=large,
            extra_options={
                "ActivationSymmetric": True,
                "WeightSymmetric": True,
                # Weights stay in fp32 before a pair of their own: TensorRT folds them itself.
                "AddQDQPairToWeight": True,
            },
        )
    return (FILE, FILE + DATA_SUFFIX) if large else (FILE,)


class _Reader:
    """Gives the calibrator one input after the other, by the graph's names."""

    def __init__(self, names: Sequence[str], inputs: Sequence[Batch]) -> None:
        self._left: Iterator[Mapping[str, LongArray]] = iter(
            [{name: getattr(batch, name) for name in names} for batch in inputs]
        )

    def get_next(self) -> Mapping[str, LongArray] | None:
        """Give the next input, None behind the last."""
        return next(self._left, None)


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
