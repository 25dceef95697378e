"""ONNX Runtime on an exported ranker's two graphs, on CPU and CUDA."""

from pathlib import Path

from farrank_runtimes.devices import batch_tokens, choose_device
from farrank_runtimes.exported_runtime import ExportedRuntime
from farrank_runtimes.interface import Capabilities, Precision
from farrank_runtimes.onnx_graph import OnnxGraph
from farrank_runtimes.providers import Provider, cpu_options, cuda_options, open_session
from farrank_runtimes.threads import usable_cores


def open_onnx(
    encoder: Path,
    aggregator: Path,
    *,
    precision: Precision,
    longest_input: int,
    pad_id: int = 0,
    device: str | None = None,
    threads: int | None = None,
) -> ExportedRuntime:
    """Load an export's graphs onto the CPU, where `threads` compute, or with the CUDA provider.

    Raises: DeviceAbsent; RuntimeAbsent with the command that installs what is absent.
    """
    chosen = choose_device(device)
    provider: Provider = "cpu" if chosen.type == "cpu" else "cuda"
    configured = [cpu_options() if provider == "cpu" else cuda_options(chosen.index or 0)]

    def load(graph: Path) -> OnnxGraph:
        return OnnxGraph(open_session(graph, provider, configured, threads or usable_cores()), chosen)

    capabilities = Capabilities("onnx", str(chosen), precision, batch_tokens(chosen))
    return ExportedRuntime(load(encoder), load(aggregator), capabilities, longest_input, pad_id)
