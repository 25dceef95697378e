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

from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.devices import batch_tokens, choose_device, max_kept_bytes, usable_cores
from farrank_runtimes.exported_runtime import ExportedRuntime, RunGraph
from farrank_runtimes.runtime import (
    Capabilities,
    Placement,
    Precision,
    RuntimeAbsent,
)
from farrank_runtimes.runtime_table import GraphFiles

if TYPE_CHECKING:
    import onnxruntime


Provider = Literal["cpu", "cuda", "tensorrt"]
# A provider's name as ONNX Runtime has it, and its options.
Configured = tuple[str, Mapping[str, str]]

NAMES: Mapping[Provider, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}

# onnxruntime and onnxruntime-gpu write into the same folder: where both are installed, either may be broken.
INSTALL: Mapping[Provider, str] = {
    "cpu": "pip install 'farrank[onnx]'",
    "cuda": "pip uninstall --yes onnxruntime && pip install 'farrank[onnx-gpu]'",
    "tensorrt": "pip uninstall --yes onnxruntime && pip install 'farrank[tensorrt]'",
}


def check_provider(provider: Provider) -> None:
    """Look whether ONNX Runtime is installed, and built with a provider.

    Raises: RuntimeAbsent with the command that installs what is absent.
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


def cpu_options() -> Configured:
    """Options of the CPU provider: it has none that matter here."""
    return NAMES["cpu"], {}


def cuda_options(device_index: int) -> Configured:
    """Options of the CUDA provider: its arena would double and keep what it once had."""
    return NAMES["cuda"], {"device_id": str(device_index), "arena_extend_strategy": "kSameAsRequested"}


def open_session(
    graph: Path, provider: Provider, configured: Sequence[Configured], threads: int
) -> "onnxruntime.InferenceSession":
    """Load a graph onto the first of the configured providers; the others take what it cannot run.

    Raises: RuntimeAbsent if that provider, or another, could not be loaded after all.
    """
    check_provider(provider)
    import onnxruntime

    if provider != "cpu":
        _load_libraries(provider)
    # ONNX Runtime would retry on other providers after a failure, and say so on standard output alone.
    session = onnxruntime.InferenceSession(
        str(graph),
        _session_options(threads),
        providers=[(name, dict(options)) for name, options in configured],
        enable_fallback=0,
    )
    session.disable_fallback()
    loaded = session.get_providers()
    for name, _ in configured:
        # A provider whose libraries are not found is left out with no more than a line on standard error.
        if name not in loaded:
            raise RuntimeAbsent(
                f"{name} is built in, but its libraries could not be loaded (standard error says which); "
                f"{INSTALL[provider]}"
            )
    return session


def _load_libraries(provider: Provider) -> None:
    """Load CUDA's and TensorRT's libraries from their wheels, where the dynamic linker does not look."""
    import onnxruntime

    onnxruntime.preload_dlls()
    if provider == "tensorrt" and importlib.util.find_spec("tensorrt_libs"):
        importlib.import_module("tensorrt_libs")


def _session_options(threads: int) -> "onnxruntime.SessionOptions":
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Between batches the cores belong to tokenizers and sockets. Where others want them, too, spinning costs
    # even the batches: MiniLM-L6 took 15% longer with it on a busy machine of 2 cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # A pattern is kept for every shape that was ever seen, and there is no end of shapes here: MiniLM-L6 had
    # grown to 365 MiB after 60 batches, without patterns to 247, no slower.
    options.enable_mem_pattern = False
    # Nothing: warnings speak of nodes that run on the CPU on purpose, and errors are raised as well.
    options.log_severity_level = 4
    return options


_NUMPY = {torch.int64: np.int64, torch.float32: np.float32, torch.bool: np.bool_}


class OnnxGraph:
    """A loaded graph. What an exporter found unused is no input of the graph, and is left out here, too."""

    def __init__(self, session: "onnxruntime.InferenceSession", device: torch.device) -> None:
        self._session = session
        self._device = device
        self._inputs = [item.name for item in session.get_inputs()]
        self._outputs = [item.name for item in session.get_outputs()]

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the graph; done, not merely enqueued, when it returns.

        Inputs may lie on the host or on the device. Outputs lie on the device, in the graph's order; the
        session never writes to them again.
        Raises: OutOfMemory, DeviceLost.
        """
        # Held until the run is over: the session sees addresses alone.
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
    """Look whether ONNX Runtime has a provider for the device, which takes any precision.

    Raises: DeviceAbsent; RuntimeAbsent with the command that installs what is missing.
    """
    check_provider("cpu" if choose_device(placement.device).type == "cpu" else "cuda")


def open_graphs(files: GraphFiles, placement: Placement) -> ExportedRuntime:
    """Load an export's graphs onto the CPU, or onto a GPU with the CUDA provider.

    Raises: DeviceAbsent; RuntimeAbsent with the command that installs what is missing.
    """
    device = choose_device(placement.device)
    provider: Provider = "cpu" if device.type == "cpu" else "cuda"
    configured = [cpu_options() if provider == "cpu" else cuda_options(device.index or 0)]
    threads = placement.threads or usable_cores()

    def load(graph: Path) -> RunGraph:
        return OnnxGraph(open_session(graph, provider, configured, threads), device).run

    return ExportedRuntime(
        load(files.encoder),
        load(files.aggregator),
        Capabilities(
            "onnx",
            str(device),
            files.precision,
            batch_tokens(device),
            max_kept_bytes=max_kept_bytes(device),
        ),
        files.longest_input,
        files.pad_id,
    )
