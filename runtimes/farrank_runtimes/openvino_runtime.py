"""OpenVINO on an exported ranker's two graphs, on the CPU."""

from pathlib import Path

import torch

from farrank_runtimes.devices import batch_tokens, choose_device
from farrank_runtimes.exported_runtime import ExportedRuntime, LoadedGraph
from farrank_runtimes.halved_encoder import HalvedEncoder
from farrank_runtimes.interface import (
    Capabilities,
    DeviceAbsent,
    Precision,
    PrecisionAbsent,
    RuntimeAbsent,
)
from farrank_runtimes.openvino_graph import FloatType, OpenVinoGraph
from farrank_runtimes.threads import usable_cores

INSTALL = "pip install 'farrank[openvino]'"


def open_openvino(
    encoder: Path,
    aggregator: Path,
    *,
    precision: Precision,
    longest_input: int,
    pad_id: int = 0,
    device: str | None = None,
    threads: int | None = None,
) -> ExportedRuntime:
    """Load an export's graphs, ONNX files or OpenVINO's own, with `threads` to compute.

    The aggregator computes in fp32, an int8 encoder's other half in bf16 where the processor has it.
    Raises: RuntimeAbsent with the command that installs OpenVINO; DeviceAbsent for any device but the CPU;
    PrecisionAbsent if the processor lacks what was asked for.
    """
    check_openvino()
    if device is not None and choose_device(device).type != "cpu":
        raise DeviceAbsent(f"{device!r} is not supported by OpenVINO here; use cpu")
    float_type = float_type_for(precision)
    cores = threads or usable_cores()
    cpu = torch.device("cpu")
    # An int8 encoder rounds twice, and says so.
    served = "int8+bf16" if (precision, float_type) == ("int8", "bf16") else precision
    heavy: LoadedGraph = OpenVinoGraph(encoder, float_type, cores)
    if cores > 1:
        heavy = HalvedEncoder(heavy, OpenVinoGraph(encoder, float_type, cores, streams=2))
    return ExportedRuntime(
        heavy,
        OpenVinoGraph(aggregator, "f32", cores),
        Capabilities("openvino", str(cpu), served, batch_tokens(cpu)),
        longest_input,
        pad_id,
    )


def check_openvino() -> None:
    """Look whether OpenVINO is installed.

    Raises: RuntimeAbsent with the command that installs it.
    """
    try:
        import openvino  # noqa: F401
    except ModuleNotFoundError as error:
        raise RuntimeAbsent(f"OpenVINO is not installed; {INSTALL}") from error


def float_type_for(precision: Precision) -> FloatType:
    """Name what floating-point arithmetic a precision is served with here.

    Raises: PrecisionAbsent.
    """
    if precision == "fp32":
        return "f32"
    if precision == "int8":
        return "bf16" if computes_bf16() else "f32"
    if precision != "bf16":
        raise PrecisionAbsent(f"OpenVINO serves fp32, bf16 and int8 here, not {precision}")
    if not computes_bf16():
        raise PrecisionAbsent(
            "bf16 needs a processor with avx512_bf16 or amx_bf16, and this one has neither; "
            "OpenVINO serves fp32 and int8 on it"
        )
    return "bf16"


def computes_bf16() -> bool:
    """Tell whether the processor multiplies in bf16.

    OpenVINO's OPTIMIZATION_CAPABILITIES list BF16 for every processor with AVX-512, also where it would be
    simulated in more time than fp32 takes.
    """
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
