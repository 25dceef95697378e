"""The encoder in int8 for OpenVINO: the products that take the time, and not those that decide the score."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from farrank_exporters.products import nodes_apart
from farrank_exporters.trace import quiet
from farrank_rankers.exports.manifest import Quantization
from farrank_rankers.tokens import EncoderBatch

if TYPE_CHECKING:
    import openvino

OPENVINO_FILE = "encoder.xml"

# SmoothQuant divides an input's dimensions by their largest values to this power, and multiplies the weights
# by the same factors (Xiao et al., "SmoothQuant", ICML 2023). The first is NNCF's default; the better one
# depends on the ranker.
ALPHAS = (0.95, 0.7)


class OpenVinoInt8:
    """Writes a traced encoder as OpenVINO's graph in int8, in several ways, one after the other."""

    def __init__(self, traced: Path, folder: Path, inputs: Sequence[EncoderBatch]) -> None:
        """Take the encoder as traced in fp32; graphs are written into `folder`, calibrated on `inputs`.

        Raises: ValueError if `inputs` is empty.
        """
        if not inputs:
            raise ValueError("inputs is empty; calibration needs at least 1")
        self._traced, self._folder, self._inputs = traced, folder, inputs

    def ways(self) -> Iterator[Quantization]:
        """Write one graph at each step, with another calibration.

        Embeddings are never rounded: int8 does not speed up a look-up.
        """
        for alpha in ALPHAS:
            rounded = self._write(alpha)
            yield Quantization("openvino", f"SmoothQuant at {alpha:g}", rounded)

    def _write(self, alpha: float) -> int:
        """Quantize and write the graph; return the number of the products computed in int8."""
        with quiet("nncf"):
            import nncf
            import openvino
            from openvino.passes import ConstantFolding, Manager

            nncf.set_log_level(logging.ERROR)
            model = openvino.Core().read_model(str(self._traced))
            # NNCF silently leaves weights in fp32 that are not constants; folding their transpositions helps.
            folding = Manager()
            folding.register_pass(ConstantFolding())
            folding.run_passes(model)
            look_ups = [op.get_friendly_name() for op in model.get_ops() if op.get_type_name() == "Gather"]
            apart = nodes_apart(onnx.load(self._traced, load_external_data=False).graph)
            names = [item.any_name for item in model.inputs]
            feeds = [{name: getattr(batch, name) for name in names} for batch in self._inputs]
            quantized = nncf.quantize(
                model,
                nncf.Dataset(feeds),
                model_type=nncf.ModelType.TRANSFORMER,
                # Symmetric ranges for weights, asymmetric ones for activations.
                preset=nncf.QuantizationPreset.MIXED,
                subset_size=len(feeds),
                ignored_scope=nncf.IgnoredScope(
                    names=[
                        *look_ups,
                        *products_of_one_token(model),
                        *apart.after_activations,
                        *apart.without_weights,
                    ],
                    # ONNX and OpenVINO name few nodes differently, a Gemm for example.
                    validate=False,
                ),
                advanced_parameters=nncf.AdvancedQuantizationParameters(
                    smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=alpha)
                ),
            )
        openvino.save_model(quantized, str(self._folder / OPENVINO_FILE), compress_to_fp16=False)
        return len(products_in_int8(quantized))


def products_of_one_token(model: "openvino.Model") -> list[str]:
    """Name the products of one row for each input of a batch: the last layer's for [CLS], and the head's.

    They take hardly any time, and their rounding moves the score itself. With them in int8, MiniLM-L6 as a
    cross-encoder with a random head keeps a Kendall's tau of 0.88 for texts of equal length, and without them
    0.95, at the same speed.
    """
    return [
        op.get_friendly_name()
        for op in model.get_ops()
        if op.get_type_name() == "MatMul" and _rows(op.input_value(0).get_partial_shape()) == 1
    ]


def _rows(shape: "openvino.PartialShape") -> int | None:
    """Give the number of a factor's rows for each input of the batch; None if it varies."""
    rows = list(shape)[1:-1]
    if not rows:
        return 1
    # An interval like 0..1 comes from a slice of one token.
    longest = rows[-1].get_max_length()
    return longest if longest > 0 else None


def products_in_int8(model: "openvino.Model") -> set[str]:
    """Name a graph's products with both factors rounded to 8 bits."""
    return {
        op.get_friendly_name()
        for op in model.get_ops()
        if op.get_type_name() == "MatMul" and all(map(_is_rounded, op.input_values()))
    }


# Operators between a factor of a product and its rounding: a weight's scales, another layout.
_BETWEEN = frozenset({"Convert", "Multiply", "Reshape", "Subtract", "Transpose"})


def _is_rounded(value: "openvino.Output") -> bool:
    node = value.get_node()
    while node.get_type_name() in _BETWEEN:
        node = node.input_value(0).get_node()
    return node.get_type_name() == "FakeQuantize" or node.get_element_type().get_type_name() in ("i8", "u8")
