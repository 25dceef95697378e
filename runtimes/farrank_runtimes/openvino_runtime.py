"""OpenVINO on an exported ranker's two graphs, on the CPU."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from farrank_runtimes.devices import batch_tokens, choose_device
from farrank_runtimes.exported_runtime import ExportedRuntime
from farrank_runtimes.interface import (
    Capabilities,
    DeviceAbsent,
    DeviceLost,
    OutOfMemory,
    Precision,
    PrecisionAbsent,
    RuntimeAbsent,
)
from farrank_runtimes.threads import usable_cores

if TYPE_CHECKING:
    import openvino

FloatType = Literal["f32", "bf16"]

INSTALL = "pip install 'farrank[openvino]'"

# What its messages hold when memory is short, in lower case; oneDNN's come through it unchanged.
_OUT_OF_MEMORY = ("bad_alloc", "failed to allocate", "can't alloc", "cannot allocate", "out of memory")


class OpenVinoGraph:
    """A graph compiled for the CPU; its floating-point arithmetic is in `float_type`.

    Every new shape is made ready when it first comes, in milliseconds: no batch needs padding to a bucket.
    """

    def __init__(self, path: Path, float_type: FloatType, threads: int) -> None:
        self._path = path
        self._loaded = _identity(path)
        self._options = {
            # Said outright: left to itself, OpenVINO rounds to whatever the processor has.
            "INFERENCE_PRECISION_HINT": float_type,
            "INFERENCE_NUM_THREADS": threads,
            # One batch at a time on all threads; the batcher has put together what belongs together.
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            # Bound to cores, two servers on one machine would share the first ones.
            "ENABLE_CPU_PINNING": False,
        }
        self._compiled: openvino.CompiledModel | None = self._compile()

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the graph. Outputs are copies, in its order.

        Raises: OutOfMemory; DeviceLost if the graph is gone that would have to be compiled anew.
        """
        with _device_failures():
            compiled = self._compiled or self._compile_again()
            # An input has the names of all tensors that turned out to be the same, in no order.
            names = [next(name for name in item.names if name in inputs) for item in compiled.inputs]
            arrays = [inputs[name].contiguous().numpy() for name in names]
            # A new request has no earlier batch's outputs to give, and is to be had in microseconds.
            request = compiled.create_infer_request()
            # What has failed halfway keeps shapes of the batch that failed, for the next to stumble over.
            self._compiled = None
            # Not infer(), which swallows what failed and gives the outputs there were.
            request.start_async(arrays, share_inputs=True)
            request.wait()
            self._compiled = compiled
            outputs = range(len(compiled.outputs))
            return [torch.from_numpy(request.get_output_tensor(index).data.copy()) for index in outputs]

    def _compile(self) -> "openvino.CompiledModel":
        import openvino

        return openvino.Core().compile_model(str(self._path), "CPU", self._options)

    def _compile_again(self) -> "openvino.CompiledModel":
        if _identity(self._path) != self._loaded:
            raise DeviceLost(f"{self._path} changed since it was loaded")
        return self._compile()


def _identity(path: Path) -> tuple[int, int, int]:
    """Tell a file from whatever replaces it."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


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
    return ExportedRuntime(
        OpenVinoGraph(encoder, float_type, cores),
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


@contextmanager
def _device_failures() -> Iterator[None]:
    """Translate what OpenVINO raises when memory, not the model, is at fault."""
    try:
        yield
    except MemoryError as error:
        raise OutOfMemory("the host's memory is exhausted") from error
    except OSError as error:
        raise DeviceLost(str(error)) from error
    except RuntimeError as error:
        message = str(error).strip()
        if any(sign in message.lower() for sign in _OUT_OF_MEMORY):
            raise OutOfMemory(message) from error
        raise
