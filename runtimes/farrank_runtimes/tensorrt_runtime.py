"""ONNX Runtime's TensorRT provider on an exported ranker's encoder; its light half runs on CUDA."""

import logging
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

from farrank_rankers.exports.checksums import checksum
from farrank_runtimes.devices import batch_tokens, choose_device
from farrank_runtimes.exported_runtime import ExportedRuntime, LoadedGraph
from farrank_runtimes.interface import Capabilities, DeviceAbsent, Precision
from farrank_runtimes.onnx_graph import OnnxGraph
from farrank_runtimes.providers import check_provider, cuda_options, open_session
from farrank_runtimes.tensorrt import (
    ENGINES,
    EngineKey,
    LengthGroup,
    group_for,
    length_groups,
    tensorrt_options,
)

log = logging.getLogger(__name__)

ENCODER_INPUTS = ("input_ids", "roles", "token_type_ids")

# The wheel that ONNX Runtime's provider finds TensorRT in; elsewhere TensorRT itself refuses what another
# version of it has built.
_WHEEL = "tensorrt-cu13-libs"


class GroupedEncoder:
    """An encoder in one session for each group of lengths.

    One session for all would do with several profiles in an engine, but ONNX Runtime's provider stays on the
    first of them (microsoft/onnxruntime#31624).
    """

    def __init__(self, graphs: Mapping[LengthGroup, LoadedGraph]) -> None:
        self._graphs = graphs
        self._groups = tuple(graphs)

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Run a batch in its group's session, in pieces if it has more rows than the profile.

        Shapes: (P, L) each -> (P, …) each.
        Raises: ValueError if L is beyond the last group; OutOfMemory, DeviceLost.
        """
        rows, length = inputs["input_ids"].shape
        group = group_for(self._groups, length)
        pieces = [
            self._graphs[group].run({name: each[start : start + group.rows] for name, each in inputs.items()})
            for start in range(0, rows, group.rows)
        ]
        return [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*pieces, strict=True)]


def open_tensorrt(
    encoder: Path,
    aggregator: Path,
    *,
    precision: Precision,
    longest_input: int,
    pad_id: int = 0,
    device: str | None = None,
    max_batch_tokens: int | None = None,
    inputs: Sequence[str] = ENCODER_INPUTS,
) -> ExportedRuntime:
    """Load an export's graphs, the encoder's as TensorRT engines, which take minutes to build the first time.

    Engines are built for the batcher's budget and kept beside the graph, in `engines/`. `inputs` are those
    that the encoder's graph has.
    Raises: DeviceAbsent; RuntimeAbsent with the command that installs what is absent.
    """
    chosen = check_tensorrt(device)
    index = chosen.index or 0
    budget = max(max_batch_tokens or batch_tokens(chosen), longest_input)
    engines = encoder.parent / ENGINES / engine_key(encoder, precision, chosen).folder()
    cuda = cuda_options(index)
    graphs: dict[LengthGroup, LoadedGraph] = {}
    for group in length_groups(longest_input, budget):
        options = tensorrt_options(
            group,
            inputs,
            precision=precision,
            device_index=index,
            engines=_writable(engines / group.name),
        )
        log.info("opening the engine for inputs of %d to %d tokens", group.shortest, group.longest)
        graphs[group] = OnnxGraph(open_session(encoder, "tensorrt", [options, cuda], threads=1), chosen)
    light = OnnxGraph(open_session(aggregator, "cuda", [cuda], threads=1), chosen)
    capabilities = Capabilities("tensorrt", str(chosen), precision, budget)
    return ExportedRuntime(GroupedEncoder(graphs), light, capabilities, longest_input, pad_id)


def check_tensorrt(device: str | None) -> torch.device:
    """Look whether TensorRT is installed and has a device to run on; return the device.

    Raises: RuntimeAbsent with the command that installs what is absent; DeviceAbsent.
    """
    check_provider("tensorrt")
    chosen = choose_device(device)
    if chosen.type != "cuda":
        raise DeviceAbsent(f"TensorRT runs on a CUDA device; the device is {chosen}")
    return chosen


def engine_key(encoder: Path, precision: Precision, device: torch.device) -> EngineKey:
    """Say what engines of a graph depend on, on this machine."""
    major, minor = torch.cuda.get_device_capability(device)
    return EngineKey(
        graph=checksum(encoder),
        precision=precision,
        gpu=torch.cuda.get_device_name(device),
        compute_capability=f"{major}{minor}",
        onnxruntime=_version("onnxruntime-gpu"),
        tensorrt=_version(_WHEEL),
    )


def _version(wheel: str) -> str:
    try:
        return metadata.version(wheel)
    except metadata.PackageNotFoundError:
        return "unknown"


def _writable(folder: Path) -> Path | None:
    """Make the folder of an engine; None if the artifact is read-only: each start builds it anew, then."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning("%s: %s; an engine is built at every start", folder, error.strerror)
        return None
    return folder
