"""Static int8 for OpenVINO: weights and activations, their ranges measured on calibration inputs by NNCF."""

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from farrank_exporters.sensitive_nodes import embeddings, products_after_activations
from farrank_rankers.collate import Batch

if TYPE_CHECKING:
    import openvino

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
