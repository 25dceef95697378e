"""Dynamic int8 for ONNX Runtime: weights beforehand, activations by the range that each batch has."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx

from farrank_exporters.sensitive_nodes import products_after_activations

FILE = "encoder.onnx"
DATA_SUFFIX = ".data"

# What the quantizer calls the product that it makes of a Gemm.
AS_PRODUCT = "_MatMul"


def quantize_onnx(encoder: Path, folder: Path) -> tuple[str, ...]:
    """Write an fp32 encoder's graph in int8 into a folder, each output of a product at a scale of its own.

    For machines without OpenVINO; it needs no calibration. Returns the names of the files written.
    """
    from onnxruntime.quantization import QuantType, quant_pre_process, quantize_dynamic

    large = encoder.with_name(encoder.name + DATA_SUFFIX).exists()
    with tempfile.TemporaryDirectory(dir=folder) as scratch, _quiet():
        # Weights are constants of the graph only once their transpositions are folded.
        prepared = Path(scratch) / FILE
        quant_pre_process(
            encoder,
            prepared,
            skip_symbolic_shape=True,
            save_as_external_data=large,
            all_tensors_to_one_file=True,
        )
        model = onnx.load(prepared, load_external_data=False)
        sensitive = products_after_activations(model.graph)
        # Shapes come anew: a Gemm's weights are transposed under their name, whose old shape would stay.
        del model.graph.value_info[:]
        onnx.save(model, prepared)
        quantize_dynamic(
            prepared,
            folder / FILE,
            op_types_to_quantize=["MatMul"],
            weight_type=QuantType.QInt8,
            per_channel=True,
            nodes_to_exclude=sensitive + [f"{name}{AS_PRODUCT}" for name in sensitive],
            use_external_data_format=large,
        )
    return (FILE, FILE + DATA_SUFFIX) if large else (FILE,)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what is written straight to the root logger, which would also configure it for everybody."""
    root, silence = logging.getLogger(), logging.NullHandler()
    root.addHandler(silence)
    root.addFilter(_nothing)
    try:
        yield
    finally:
        root.removeFilter(_nothing)
        root.removeHandler(silence)


def _nothing(record: logging.LogRecord) -> bool:
    return False
