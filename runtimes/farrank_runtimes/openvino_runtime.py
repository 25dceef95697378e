"""OpenVINO on an exported ranker's two graphs, on the CPU: batches are run in two parts and queued."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from farrank_runtimes.cores import usable_cores
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.devices import batch_tokens, choose_device
from farrank_runtimes.exported_runtime import ExportedRuntime
from farrank_runtimes.graph_files import EncoderGraph, GraphFiles, graph_bytes
from farrank_runtimes.runtime import (
    Capabilities,
    DeviceAbsent,
    DeviceLost,
    Placement,
    Precision,
    PrecisionAbsent,
    RuntimeAbsent,
)

if TYPE_CHECKING:
    import openvino


FloatType = Literal["f32", "bf16"]


class OpenVinoGraph:
    """A graph compiled for the CPU, with floating-point arithmetic in `float_type`.

    Each of several `streams` has its share of the threads and runs a separate batch. With no stream, one
    thread computes: the one that calls `begin`, which returns when the batch is done. The graph returns the
    named outputs, in that order; without names all of them.
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
            # Without it, OpenVINO may round to a lower precision of the processor.
            "INFERENCE_PRECISION_HINT": float_type,
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY" if streams < 2 else "THROUGHPUT",
            "NUM_STREAMS": streams,
            # With pinning, two servers on one machine would share the first cores.
            "ENABLE_CPU_PINNING": False,
        }
        self._requests_ahead = max(1, 2 * streams)
        self._compiled: openvino.CompiledModel | None = None
        self._requests: list[openvino.InferRequest] = []
        self._compile()

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the graph. Outputs are copies, in its order.

        Raises: OutOfMemory; DeviceLost if the graph must be recompiled and its file is gone.
        """
        return self.begin(inputs).outputs()

    def begin(self, inputs: Mapping[str, Tensor]) -> "GraphRequest":
        """Begin the graph on a batch, in the first idle stream. Raises: as `run`."""
        with device_failures():
            compiled = self._compiled or self._compile_again()
            # Requests are made in advance, because making one waits for running ones.
            request = self._requests.pop() if self._requests else compiled.create_infer_request()
            outputs = range(len(compiled.outputs)) if self._outputs is None else self._outputs
            try:
                return GraphRequest(self, compiled, request, by_place(compiled, inputs), outputs)
            except Exception:
                self.forget(compiled)
                raise

    def take_back(self, compiled: "openvino.CompiledModel", request: "openvino.InferRequest") -> None:
        """Keep a successful request for a later batch."""
        if compiled is self._compiled:
            self._requests.append(request)

    def forget(self, compiled: "openvino.CompiledModel") -> None:
        """Recompile for the next batch.

        A model that failed halfway keeps shapes of the failed batch, and the next batch would fail, too.
        """
        if compiled is self._compiled:
            self._compiled = None
            self._requests.clear()

    def _compile(self) -> "openvino.CompiledModel":
        import openvino

        core = openvino.Core()
        # Mapped weights would change with their file, or end the process if it is truncated.
        core.set_property({"ENABLE_MMAP": False})
        compiled = core.compile_model(str(self._path), "CPU", self._options)
        self._requests = [compiled.create_infer_request() for _ in range(self._requests_ahead)]
        self._compiled = compiled
        return compiled

    def _compile_again(self) -> "openvino.CompiledModel":
        try:
            changed = _identity(self._path) != self._loaded
        except OSError as error:
            raise DeviceLost(str(error)) from error
        if changed:
            raise DeviceLost(f"{self._path} changed since it was loaded")
        return self._compile()


class GraphRequest:
    """A graph's run on a batch, which begins at construction."""

    def __init__(
        self,
        graph: OpenVinoGraph,
        compiled: "openvino.CompiledModel",
        request: "openvino.InferRequest",
        arrays: Sequence[Any],
        outputs: Sequence[int | str],
    ) -> None:
        import openvino

        self._graph, self._compiled, self._request, self._outputs = graph, compiled, request, outputs
        self._arrays = arrays  # which the tensors below only point to
        self.began_s = self.ended_s = time.perf_counter()
        # Given to `start_async`, arrays would be looked at one by one: most of a small batch's overhead.
        for place, array in enumerate(arrays):
            request.set_input_tensor(place, openvino.Tensor(array, shared_memory=True))
        # Not infer(): it hides failures and returns earlier outputs.
        request.start_async()

    @property
    def has_ended(self) -> bool:
        """Whether it is done, with or without success."""
        try:
            return bool(self._request.wait_for(0))
        except Exception:  # its failure, which `outputs` raises
            return True

    def outputs(self) -> list[Tensor]:
        """Wait until it is done; return copies of the outputs, once. Raises: OutOfMemory, DeviceLost."""
        with device_failures():
            try:
                self._request.wait()
            except Exception:
                self._graph.forget(self._compiled)
                raise
            # From its beginning to its end, independent of the time of this call.
            self.ended_s = self.began_s + self._request.latency / 1e3
            found = [torch.from_numpy(_output(self._request, each).data.copy()) for each in self._outputs]
            self._graph.take_back(self._compiled, self._request)
            return found


def by_place(compiled: "openvino.CompiledModel", inputs: Mapping[str, Tensor]) -> list[Any]:
    """Give the arrays of named inputs in the graph's order."""
    # An input has the names of all tensors that OpenVINO merged, in no particular order.
    names = [next(name for name in item.names if name in inputs) for item in compiled.inputs]
    return [inputs[name].contiguous().numpy() for name in names]


def _output(request: "openvino.InferRequest", which: int | str) -> "openvino.Tensor":
    return request.get_output_tensor(which) if isinstance(which, int) else request.get_tensor(which)


def _identity(path: Path) -> tuple[int, int, int]:
    """Identify a file, to notice its replacement."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


class TwoStreams:
    """Runs batches in two parts, each on half of the threads, and queues the next batch.

    Threads that share a batch wait at every layer for the slowest, which the machine may have delayed.
    Streams do not wait: a stream that is done with its part begins with the next batch. A single part, for
    example of a small call, has all threads if nothing else runs.
    """

    def __init__(self, whole: OpenVinoGraph, halves: OpenVinoGraph) -> None:
        self._whole, self._halves = whole, halves
        self._last: Sequence[GraphRequest] = ()

    def begin(self, parts: Sequence[Mapping[str, Tensor]]) -> "BatchInStreams":
        """Begin a batch. Shapes: (P, L) each. Raises: OutOfMemory, DeviceLost."""
        alone = len(parts) == 1 and all(each.has_ended for each in self._last)
        graph = self._whole if alone else self._halves
        self._last = [graph.begin(each) for each in parts]
        return BatchInStreams(self._last)


class _CpuTime:
    """The end of the last batch of any ranker, in `perf_counter` seconds."""

    ended_s = 0.0


class BatchInStreams:
    """A batch's parts in flight."""

    def __init__(self, requests: Sequence[GraphRequest]) -> None:
        self._requests = requests
        self._device_s = 0.0

    def outputs(self) -> list[list[Tensor]]:
        """Wait until all have ended, even if one fails. Shapes: (P, L) each -> (P, …) each."""
        found: list[list[Tensor]] = []
        failed: list[Exception] = []
        for request in self._requests:
            try:
                found.append(request.outputs())
            except Exception as error:
                failed.append(error)
        began_s = min(request.began_s for request in self._requests)
        ended_s = max(request.ended_s for request in self._requests)
        self._device_s = max(0.0, ended_s - max(began_s, _CpuTime.ended_s))
        _CpuTime.ended_s = max(ended_s, _CpuTime.ended_s)
        if failed:
            raise failed[0]
        return found

    def device_s(self) -> float:
        """Return the time from its beginning, or from the end of the previous batch; 0 if it ended first."""
        return self._device_s


INSTALL = "pip install 'farrank[openvino]'"


# The factor of a batch's tokens in bf16 and int8, at which it takes no longer than one in fp32. The overhead
# of operators then counts less: MiniLM-L6 in int8 scores 5% more pairs per second in batches of 2,048 tokens
# than in those of 1,024, and no more in larger ones.
REDUCED_TIMES = 2


# Kernels are compiled for every new shape, which takes a considerable part of a batch's time. With steps of
# 16 a few dozen lengths recur, with 3% more positions, and the kernels are faster.
LENGTH_STEP = 16


def check(precision: Precision, placement: Placement) -> None:
    """Check that OpenVINO is installed, and that the processor computes in a precision.

    Raises: RuntimeAbsent with the command that installs OpenVINO; PrecisionAbsent.
    """
    try:
        import openvino  # noqa: F401
    except ModuleNotFoundError as error:
        raise RuntimeAbsent(f"OpenVINO is not installed; {INSTALL}") from error
    float_type_for(precision)


def open_graphs(files: GraphFiles, placement: Placement) -> ExportedRuntime:
    """Load an export's graphs, ONNX files or OpenVINO's own.

    The aggregator computes in fp32. The rest of an int8 encoder is bf16 if the processor supports it.
    Raises: RuntimeAbsent with the command that installs OpenVINO; DeviceAbsent for any device but the CPU;
    PrecisionAbsent if the processor does not support the precision.
    """
    encoder = open_encoder(files.encoder, files.precision, placement)
    # Reading each chunk once takes less time than the way to another thread and back. There it would wait for
    # a core, too, while batches run.
    threads, streams = (placement.threads or usable_cores(), 1) if files.leaves_chunks_out else (1, 0)
    aggregator = OpenVinoGraph(files.aggregator, "f32", threads, streams)
    return ExportedRuntime(encoder, aggregator.run, files)


def open_encoder(
    graph: Path, precision: Precision, placement: Placement, outputs: Sequence[str] | None = None
) -> EncoderGraph:
    """Load an encoder's graph with the named `outputs`, or all.

    Raises: as `open_graphs`.
    """
    check(precision, placement)
    if placement.device is not None and choose_device(placement.device).type != "cpu":
        raise DeviceAbsent(f"{placement.device!r} is not supported by OpenVINO here; use cpu")
    float_type = float_type_for(precision)
    threads = placement.threads or usable_cores()
    # An int8 encoder rounds twice, and its name says so.
    served = "int8+bf16" if (precision, float_type) == ("int8", "bf16") else precision
    tokens = batch_tokens(torch.device("cpu")) * (1 if float_type == "f32" else REDUCED_TIMES)
    runs = Capabilities(
        "openvino",
        "cpu",
        served,
        tokens,
        queued=threads > 1,
        length_step=LENGTH_STEP,
        weight_bytes=graph_bytes(graph),
        parts=min(2, threads),
    )
    whole = OpenVinoGraph(graph, float_type, threads, outputs=outputs)
    if threads == 1:
        return EncoderGraph(whole.run, runs)
    halves = OpenVinoGraph(graph, float_type, threads, streams=2, outputs=outputs)
    return EncoderGraph(whole.run, runs, TwoStreams(whole, halves).begin)


def float_type_for(precision: Precision) -> FloatType:
    """Choose the floating-point arithmetic for a precision here. Raises: PrecisionAbsent."""
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
    """Whether the processor multiplies in bf16.

    OpenVINO's OPTIMIZATION_CAPABILITIES list BF16 for every processor with AVX-512, even if it is emulated,
    slower than fp32.
    """
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
