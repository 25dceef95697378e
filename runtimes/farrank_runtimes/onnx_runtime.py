"""ONNX Runtime on an exported ranker's two graphs, on CPU and CUDA: execution providers, sessions, graphs."""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from farrank_runtimes.cores import usable_cores
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.devices import batch_tokens, choose_device, max_kept_bytes
from farrank_runtimes.exported_runtime import ExportedRuntime
from farrank_runtimes.graph_files import EncoderGraph, GraphFiles, RunGraph, graph_bytes
from farrank_runtimes.runtime import Capabilities, Placement, Precision, RuntimeAbsent

if TYPE_CHECKING:
    import onnxruntime


Provider = Literal["cpu", "cuda", "tensorrt"]
NAMES: Mapping[Provider, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}

# onnxruntime and onnxruntime-gpu write into the same folder; with both installed, either may be broken.
INSTALL: Mapping[Provider, str] = {
    "cpu": "pip install 'farrank[onnx]'",
    "cuda": "pip uninstall --yes onnxruntime && pip install 'farrank[onnx-gpu]'",
    "tensorrt": "pip uninstall --yes onnxruntime && pip install 'farrank[tensorrt]'",
}


def check_provider(provider: Provider) -> None:
    """Check that ONNX Runtime is installed, and built with a provider.

    Raises: RuntimeAbsent with the command that installs the missing package.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise RuntimeAbsent(f"ONNX Runtime is not installed; {INSTALL[provider]}") from error
    built_with = onnxruntime.get_available_providers()
    if NAMES[provider] not in built_with:
        raise RuntimeAbsent(
            f"the installed ONNX Runtime has no {NAMES[provider]}, only {', '.join(built_with)}; "
            f"{INSTALL[provider]}"
        )


def cuda_options(device_index: int) -> Mapping[str, str]:
    """Options of the CUDA provider. By default its arena doubles when it grows, and never shrinks."""
    return {"device_id": str(device_index), "arena_extend_strategy": "kSameAsRequested"}


def open_session(
    graph: Path, providers: Mapping[Provider, Mapping[str, str]], threads: int
) -> "onnxruntime.InferenceSession":
    """Load a graph onto the first of the providers; the others run the operators that it cannot.

    Raises: RuntimeAbsent if one of them could not be loaded.
    """
    first = next(iter(providers))
    check_provider(first)
    import onnxruntime

    if first != "cpu":
        # CUDA's and TensorRT's libraries are in their wheels, where the dynamic linker does not find them.
        onnxruntime.preload_dlls()
        if first == "tensorrt" and importlib.util.find_spec("tensorrt_libs"):
            importlib.import_module("tensorrt_libs")
    # ONNX Runtime would retry on other providers after a failure, and only print that.
    session = onnxruntime.InferenceSession(
        str(graph),
        _session_options(threads),
        providers=[(NAMES[provider], dict(options)) for provider, options in providers.items()],
        enable_fallback=0,
    )
    session.disable_fallback()
    loaded = session.get_providers()
    for name in (NAMES[provider] for provider in providers):
        # ONNX Runtime leaves out a provider whose libraries are not found, with only a line on standard
        # error.
        if name not in loaded:
            raise RuntimeAbsent(
                f"{name} is built in, but its libraries could not be loaded (standard error says which); "
                f"{INSTALL[first]}"
            )
    return session


def _session_options(threads: int) -> "onnxruntime.SessionOptions":
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Between batches, tokenizers and sockets need the cores. Next to other processes spinning slows even the
    # batches: MiniLM-L6 took 15% longer with it on a busy machine of 2 cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # A memory pattern is stored for every shape, and the number of shapes is unlimited here: after 60 batches
    # MiniLM-L6 took 365 MiB with patterns and 247 without, at the same speed.
    options.enable_mem_pattern = False
    # Log nothing: warnings are about nodes that run on the CPU on purpose, and errors are raised.
    options.log_severity_level = 4
    return options


_NUMPY = {torch.int64: np.int64, torch.float32: np.float32, torch.bool: np.bool_}


class OnnxGraph:
    """A loaded graph. Inputs that the exporter found unused, and left out of the graph, are ignored.

    It returns the named outputs, in that order; without names all of them.
    """

    def __init__(
        self,
        session: "onnxruntime.InferenceSession",
        device: torch.device,
        outputs: Sequence[str] | None = None,
    ) -> None:
        self._session = session
        self._device = device
        self._inputs = [item.name for item in session.get_inputs()]
        self._outputs = [item.name for item in session.get_outputs()] if outputs is None else list(outputs)

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the graph, and wait until it is done.

        Inputs may be on the host or on the device. Outputs are on the device; the
        session never writes to them again.
        Raises: OutOfMemory, DeviceLost.
        """
        # Referenced until the run is over: the session only has addresses.
        contiguous = {name: inputs[name].contiguous() for name in self._inputs}
        with device_failures():
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # the session's stream does not wait for torch's
            binding = self._session.io_binding()
            for name, tensor in contiguous.items():
                place, index = tensor.device.type, tensor.device.index or 0
                shape = list(tensor.shape)
                binding.bind_input(name, place, index, _NUMPY[tensor.dtype], shape, tensor.data_ptr())
            for name in self._outputs:
                binding.bind_output(name, self._device.type, self._device.index or 0)
            self._session.run_with_iobinding(binding)
            binding.synchronize_outputs()
        return [from_dlpack(value) for value in binding.get_outputs_as_ortvaluevector()]


def check(precision: Precision, placement: Placement) -> None:
    """Check that ONNX Runtime has a provider for the device; it supports any precision.

    Raises: DeviceAbsent; RuntimeAbsent with the command that installs what is missing.
    """
    check_provider("cpu" if choose_device(placement.device).type == "cpu" else "cuda")


def open_graphs(files: GraphFiles, placement: Placement) -> ExportedRuntime:
    """Load an export's graphs onto the CPU, or onto a GPU with the CUDA provider.

    Raises: DeviceAbsent; RuntimeAbsent with the command that installs what is missing.
    """
    encoder = open_encoder(files.encoder, files.precision, placement)
    return ExportedRuntime(encoder, _load(files.aggregator, placement), files)


def open_encoder(
    graph: Path, precision: Precision, placement: Placement, outputs: Sequence[str] | None = None
) -> EncoderGraph:
    """Load an encoder's graph with the named `outputs`, or all.

    Raises: as `open_graphs`.
    """
    device = choose_device(placement.device)
    # A CPU's kernels compute in fp32, between casts.
    casts = device.type == "cpu" and precision == "fp16"
    computed_in = "fp32 between fp16 values" if casts else precision
    runs = Capabilities(
        "onnx",
        str(device),
        computed_in,
        batch_tokens(device),
        max_kept_bytes=max_kept_bytes(device),
        weight_bytes=graph_bytes(graph),
    )
    return EncoderGraph(_load(graph, placement, outputs), runs)


def _load(graph: Path, placement: Placement, outputs: Sequence[str] | None = None) -> RunGraph:
    device = choose_device(placement.device)
    provider: Provider = "cpu" if device.type == "cpu" else "cuda"
    providers = {provider: {} if provider == "cpu" else cuda_options(device.index or 0)}
    session = open_session(graph, providers, placement.threads or usable_cores())
    return OnnxGraph(session, device, outputs).run
