"""OpenVINO on an exported ranker's two graphs, on the CPU."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from farrank_runtimes.cores import usable_cores
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.devices import batch_tokens, choose_device
from farrank_runtimes.exported_runtime import ExportedRuntime, RunGraph, joined
from farrank_runtimes.runtime import (
    Capabilities,
    DeviceAbsent,
    DeviceLost,
    Placement,
    Precision,
    PrecisionAbsent,
    RuntimeAbsent,
)
from farrank_runtimes.runtime_table import GraphFiles

if TYPE_CHECKING:
    import openvino


FloatType = Literal["f32", "bf16"]


class OpenVinoGraph:
    """A graph compiled for the CPU; its floating-point arithmetic is in `float_type`.

    Each of several `streams` has its share of the threads and runs a batch of its own. It gives the outputs
    that are named, in that order; else all of them.
    """

    def __init__(
        self,
        path: Path,
        float_type: FloatType,
        threads: int,
        streams: int = 1,
        outputs: Sequence[str] | None = None,
    ) -> None:
        self._path = path
        self._outputs = outputs
        self._loaded = _identity(path)
        self._options = {
            # Without it, OpenVINO rounds to whatever the processor computes in.
            "INFERENCE_PRECISION_HINT": float_type,
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
            "NUM_STREAMS": streams,
            # Pinned, two servers on one machine would share the first cores.
            "ENABLE_CPU_PINNING": False,
        }
        self._compiled: openvino.CompiledModel | None = self._compile()

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the graph. Outputs are copies, in its order.

        Raises: OutOfMemory; DeviceLost if the graph must be compiled anew and its file is gone.
        """
        return self.run_beside([inputs])[0]

    def run_beside(self, parts: Sequence[Mapping[str, Tensor]]) -> list[list[Tensor]]:
        """Run the graph on several batches at once, each in a stream; give the outputs of each.

        Raises: as `run` does, after all of them have ended.
        """
        with device_failures():
            compiled = self._compiled or self._compile_again()
            # A new request takes microseconds, and cannot return an earlier batch's outputs.
            requests = [compiled.create_infer_request() for _ in parts]
            arrays = [by_place(compiled, inputs) for inputs in parts]
            # A model that failed halfway keeps shapes of the failed batch, and the next batch would fail too.
            self._compiled = None
            # Not infer(): it hides failures and returns the outputs of before.
            for request, given in zip(requests, arrays, strict=True):
                request.start_async(given, share_inputs=True)
            failed = [error for error in map(_failure, requests) if error is not None]
            if failed:
                raise failed[0]
            self._compiled = compiled
            outputs = range(len(compiled.outputs)) if self._outputs is None else self._outputs
            return [
                [torch.from_numpy(_output(request, each).data.copy()) for each in outputs]
                for request in requests
            ]

    def _compile(self) -> "openvino.CompiledModel":
        import openvino

        core = openvino.Core()
        # Weights that are mapped would change, or end the process, with their file.
        core.set_property({"ENABLE_MMAP": False})
        return core.compile_model(str(self._path), "CPU", self._options)

    def _compile_again(self) -> "openvino.CompiledModel":
        try:
            changed = _identity(self._path) != self._loaded
        except OSError as error:
            raise DeviceLost(str(error)) from error
        if changed:
            raise DeviceLost(f"{self._path} changed since it was loaded")
        return self._compile()


def by_place(compiled: "openvino.CompiledModel", inputs: Mapping[str, Tensor]) -> list[Any]:
    """Give the arrays of named inputs in the graph's order."""
    # An input has the names of all tensors that turned out to be the same, in no particular order.
    names = [next(name for name in item.names if name in inputs) for item in compiled.inputs]
    return [inputs[name].contiguous().numpy() for name in names]


def _output(request: "openvino.InferRequest", which: int | str) -> "openvino.Tensor":
    return request.get_output_tensor(which) if isinstance(which, int) else request.get_tensor(which)


def _failure(request: "openvino.InferRequest") -> Exception | None:
    try:
        request.wait()
    except Exception as error:
        return error
    return None


def _identity(path: Path) -> tuple[int, int, int]:
    """Tell a file from one that replaces it."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def run_halved(whole: OpenVinoGraph, halves: OpenVinoGraph, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Run a batch in two halves, each on half of the threads.

    Threads that share a batch wait for each other at every layer, whichever of them the machine has just held
    up; halves wait once. A row that is left over, as the only one of a small call, has all threads.
    Shapes: (P, L) each -> (P, …) each. Raises: OutOfMemory, DeviceLost.
    """
    rows = len(next(iter(inputs.values())))
    half = rows // 2

    def part(start: int, stop: int) -> dict[str, Tensor]:
        return {name: each[start:stop] for name, each in inputs.items()}

    parts = halves.run_beside([part(0, half), part(half, 2 * half)]) if half else []
    return joined([*parts, whole.run(part(2 * half, rows))] if rows % 2 else parts)


INSTALL = "pip install 'farrank[openvino]'"


# In bf16 and int8 a batch of so many times the tokens takes no longer than one in fp32, and what an operator
# costs beside its arithmetic counts less: MiniLM-L6 in int8 scores 5% more pairs a second in batches of 2,048
# tokens than in those of 1,024, and no more in larger ones.
REDUCED_TIMES = 2


# Kernels are made for every shape that is new, which takes as long as a good part of a batch. In steps of 16
# a few tens of lengths come again and again, at 3% more positions, and the kernels are faster.
LENGTH_STEP = 16


def check(precision: Precision, placement: Placement) -> None:
    """Look whether OpenVINO is installed, and whether the processor computes in a precision.

    Raises: RuntimeAbsent with the command that installs OpenVINO; PrecisionAbsent.
    """
    try:
        import openvino  # noqa: F401
    except ModuleNotFoundError as error:
        raise RuntimeAbsent(f"OpenVINO is not installed; {INSTALL}") from error
    float_type_for(precision)


def open_graphs(files: GraphFiles, placement: Placement) -> ExportedRuntime:
    """Load an export's graphs, ONNX files or OpenVINO's own.

    The aggregator computes in fp32. What is not int8 in an int8 encoder is bf16 where the processor has it.
    Raises: RuntimeAbsent with the command that installs OpenVINO; DeviceAbsent for any device but the CPU;
    PrecisionAbsent if the processor lacks what was asked for.
    """
    run_encoder, runs = open_encoder(files.encoder, files.precision, placement)
    run_aggregator = OpenVinoGraph(files.aggregator, "f32", placement.threads or usable_cores()).run
    return ExportedRuntime(run_encoder, run_aggregator, runs, files)


def open_encoder(
    graph: Path, precision: Precision, placement: Placement, outputs: Sequence[str] | None = None
) -> tuple[RunGraph, Capabilities]:
    """Load a graph that encodes; of its `outputs` those that are named, else all.

    Raises: as `open_graphs`.
    """
    check(precision, placement)
    if placement.device is not None and choose_device(placement.device).type != "cpu":
        raise DeviceAbsent(f"{placement.device!r} is not supported by OpenVINO here; use cpu")
    float_type = float_type_for(precision)
    threads = placement.threads or usable_cores()
    # An int8 encoder rounds twice, and says so.
    served = "int8+bf16" if (precision, float_type) == ("int8", "bf16") else precision
    whole = OpenVinoGraph(graph, float_type, threads, outputs=outputs)
    run: RunGraph = whole.run
    if threads > 1:
        run = partial(
            run_halved, whole, OpenVinoGraph(graph, float_type, threads, streams=2, outputs=outputs)
        )
    tokens = batch_tokens(torch.device("cpu")) * (1 if float_type == "f32" else REDUCED_TIMES)
    return run, Capabilities("openvino", "cpu", served, tokens, length_step=LENGTH_STEP)


def float_type_for(precision: Precision) -> FloatType:
    """Name the floating-point arithmetic that serves a precision here. Raises: PrecisionAbsent."""
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
