"""Static int8 for TensorRT: the graph says by pairs of quantize and dequantize where, and at which scales."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx

from farrank_exporters.int8_onnx import DATA_SUFFIX, FILE, quiet_quantization
from farrank_exporters.sensitive_nodes import products_after_activations, products_without_weights
from farrank_rankers.collate import Batch, LongArray


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
