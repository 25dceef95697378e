"""The runtimes of exports by name; each imports its library when it is asked for, and not before."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from farrank_rankers.exports.export_folder import Exported
from farrank_runtimes.devices import choose_device
from farrank_runtimes.runtime import Packing, Precision, Runtime, RuntimeName


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a runtime computes, with how much, and how. None: chosen for the machine.

    `packing` and `compile` are torch's: whether inputs are put end to end, or padded to the longest, and
    whether what packed layers do between two attentions is compiled.
    """

    device: str | None = None
    threads: int | None = None
    max_batch_tokens: int | None = None
    packing: Packing = "auto"
    compile: bool = False


def check_here(runtime: RuntimeName, precision: Precision, placement: Placement) -> None:
    """Look whether a runtime is installed, and serves a precision on this machine.

    Raises: RuntimeAbsent, PrecisionAbsent, DeviceAbsent, saying what helps.
    """
    if runtime == "openvino":
        from farrank_runtimes.openvino_runtime import check_openvino, float_type_for

        check_openvino()
        float_type_for(precision)
    elif runtime == "onnx":
        from farrank_runtimes.onnx_runtime import check_provider

        check_provider("cpu" if choose_device(placement.device).type == "cpu" else "cuda")
    elif runtime == "tensorrt":
        from farrank_runtimes.tensorrt_runtime import check_tensorrt

        check_tensorrt(placement.device)


def open_export(runtime: RuntimeName, exported: Exported, placement: Placement) -> Runtime:
    """Load an export's graphs.

    Raises: DeviceAbsent, RuntimeAbsent, PrecisionAbsent.
    """
    return _OPENERS[runtime](exported, placement)


def _onnx(exported: Exported, placement: Placement) -> Runtime:
    from farrank_runtimes.onnx_runtime import open_onnx

    export = exported.export
    return open_onnx(
        export.path("encoder", "onnx"),
        export.path("aggregator", "onnx"),
        precision=export.manifest.precision,
        longest_input=exported.reader.max_input_tokens,
        pad_id=exported.reader.pad_id,
        device=placement.device,
        threads=placement.threads,
    )


def _openvino(exported: Exported, placement: Placement) -> Runtime:
    from farrank_runtimes.openvino_runtime import open_openvino

    export = exported.export
    return open_openvino(
        export.path("encoder", "openvino"),
        export.path("aggregator", "openvino"),
        precision=export.manifest.precision,
        longest_input=exported.reader.max_input_tokens,
        pad_id=exported.reader.pad_id,
        device=placement.device,
        threads=placement.threads,
    )


def _tensorrt(exported: Exported, placement: Placement) -> Runtime:
    from farrank_runtimes.tensorrt_runtime import open_tensorrt

    export = exported.export
    return open_tensorrt(
        export.path("encoder", "tensorrt"),
        export.path("aggregator", "tensorrt"),
        precision=export.manifest.precision,
        longest_input=exported.reader.max_input_tokens,
        pad_id=exported.reader.pad_id,
        device=placement.device,
        max_batch_tokens=placement.max_batch_tokens,
        inputs=export.manifest.graphs["encoder"].inputs,
    )


_OPENERS: Mapping[RuntimeName, Callable[[Exported, Placement], Runtime]] = {
    "onnx": _onnx,
    "openvino": _openvino,
    "tensorrt": _tensorrt,
}
