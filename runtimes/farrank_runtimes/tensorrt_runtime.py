"""ONNX Runtime's TensorRT provider on an exported ranker's encoder; the aggregator runs on CUDA.

Source: https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from farrank_rankers.exports.export_folder import checksum
from farrank_rankers.package_versions import package_version
from farrank_runtimes.devices import batch_tokens, choose_device, max_kept_bytes
from farrank_runtimes.exported_runtime import ExportedRuntime
from farrank_runtimes.graph_files import EncoderGraph, GraphFiles, RunGraph, graph_bytes
from farrank_runtimes.onnx_runtime import OnnxGraph, check_provider, cuda_options, open_session
from farrank_runtimes.runtime import Capabilities, DeviceAbsent, Placement, Precision

log = logging.getLogger(__name__)

ENGINES = "engines"

# An engine has a copy of the weights for each group of lengths, and takes a minute to build.
MAX_GROUPS = 4
SHORTEST_LIMIT = 64


@dataclass(frozen=True, slots=True)
class LengthGroup:
    """Inputs of `shortest` to `longest` tokens, at most `rows` of them in a batch."""

    shortest: int
    longest: int
    rows: int
    usual_rows: int

    @property
    def name(self) -> str:
        """Name the folder of the group's engine; engine files have the graph's name, which groups share."""
        return f"{self.shortest}-{self.longest}x{self.rows}"


def length_groups(longest_input: int, max_batch_tokens: int) -> tuple[LengthGroup, ...]:
    """Divide the lengths of inputs into groups, each half as long as the next; the shortest first.

    A profile is a box, from 1 × shortest to rows × longest, and an engine needs the memory of its largest
    corner. One box for all lengths would reserve the longest length for the number of the shortest inputs in
    a batch. Within a group no length is twice another, so a box is at most twice the batcher's budget. The
    first group also has all shorter inputs; batches with more rows than its box are run in pieces.
    """
    groups: list[LengthGroup] = []
    longest = longest_input
    while True:
        shorter = longest // 2
        last = shorter < SHORTEST_LIMIT or len(groups) == MAX_GROUPS - 1
        shortest = 1 if last else shorter + 1
        groups.append(
            LengthGroup(
                shortest=shortest,
                longest=longest,
                rows=max(1, max_batch_tokens // (shorter + 1)),
                usual_rows=max(1, max_batch_tokens // longest),
            )
        )
        if last:
            return tuple(reversed(groups))
        longest = shorter


def tensorrt_options(
    group: LengthGroup,
    inputs: Sequence[str],
    precision: Precision,
    *,
    device_index: int,
    engines: Path | None,
) -> Mapping[str, str]:
    """Options of the TensorRT provider, with the profile, for a session that serves one group of lengths.

    `engines` is the folder of the group's engine; all groups share a timing cache next to it. None: neither
    is stored.
    """
    options = {"device_id": str(device_index)}
    options |= {f"trt_{each}_enable": str(precision == each) for each in ("fp16", "bf16", "int8")}
    longest = group.longest
    for kind, rows, length in (
        ("min", 1, group.shortest),
        ("opt", group.usual_rows, longest),
        ("max", group.rows, longest),
    ):
        options[f"trt_profile_{kind}_shapes"] = ",".join(f"{name}:{rows}x{length}" for name in inputs)
    if engines is not None:
        options |= {
            "trt_engine_cache_enable": "True",
            "trt_engine_cache_path": str(engines),
            "trt_timing_cache_enable": "True",
            "trt_timing_cache_path": str(engines.parent),
        }
    return options


def run_grouped(graphs: Mapping[LengthGroup, RunGraph], inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Run a batch in the session of its group of lengths, in pieces if it has more rows than the profile.

    One session with several profiles would suffice, but ONNX Runtime's provider stays on the first profile
    (microsoft/onnxruntime#31624).
    Shapes: (P, L) each -> (P, …) each.
    Raises: ValueError if L is beyond the last group; OutOfMemory, DeviceLost.
    """
    rows, length = inputs["input_ids"].shape
    group = next((each for each in graphs if length <= each.longest), None)
    if group is None:
        most = max(each.longest for each in graphs)
        raise ValueError(f"an input has {length} tokens; the engines were built for at most {most}")
    pieces = [slice(start, start + group.rows) for start in range(0, rows, group.rows)]
    return joined([graphs[group]({name: each[piece] for name, each in inputs.items()}) for piece in pieces])


def joined(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Concatenate the outputs of a batch's parts. Shapes: (P1, …), (P2, …), … each -> (P, …) each."""
    return [torch.cat(outputs) if len(outputs) > 1 else outputs[0] for outputs in zip(*parts, strict=True)]


def check(precision: Precision, placement: Placement) -> None:
    """Check that TensorRT is installed and has a CUDA device; it supports any precision.

    Raises: RuntimeAbsent with the command that installs what is missing; DeviceAbsent.
    """
    check_provider("tensorrt")
    device = choose_device(placement.device)
    if device.type != "cuda":
        raise DeviceAbsent(f"TensorRT runs on a CUDA device; the device is {device}")


def open_graphs(files: GraphFiles, placement: Placement) -> ExportedRuntime:
    """Load an export's graphs, the encoder's as TensorRT engines, which take minutes to build the first time.

    Engines are built for the batcher's budget and stored next to the graph, in `engines/`.
    Raises: DeviceAbsent; RuntimeAbsent with the command that installs what is missing.
    """
    check(files.precision, placement)
    device = choose_device(placement.device)
    index = device.index or 0
    budget = max(placement.max_batch_tokens or batch_tokens(device), files.longest_input)
    engines = files.encoder.parent / ENGINES / engine_folder(files.encoder, files.precision, device)
    cuda = cuda_options(index)
    graphs: dict[LengthGroup, RunGraph] = {}
    for group in length_groups(files.longest_input, budget):
        kept = _writable(engines / group.name)
        options = tensorrt_options(group, files.inputs, files.precision, device_index=index, engines=kept)
        log.info("opening the engine for inputs of %d to %d tokens", group.shortest, group.longest)
        session = open_session(files.encoder, {"tensorrt": options, "cuda": cuda}, threads=1)
        graphs[group] = OnnxGraph(session, device).run
    kept_bytes = max_kept_bytes(device)
    runs = Capabilities(
        "tensorrt",
        str(device),
        files.precision,
        budget,
        max_kept_bytes=kept_bytes,
        weight_bytes=graph_bytes(files.encoder),
    )
    return ExportedRuntime(
        EncoderGraph(partial(run_grouped, graphs), runs),
        OnnxGraph(open_session(files.aggregator, {"cuda": cuda}, threads=1), device).run,
        files,
    )


def engine_folder(encoder: Path, precision: Precision, device: torch.device) -> str:
    """Name the folder for engines of a graph on this machine.

    Its name contains the properties that the provider does not compare for an engine in its cache.
    """
    major, minor = torch.cuda.get_device_capability(device)
    key = {
        "graph": checksum(encoder),
        "precision": precision,
        "gpu": torch.cuda.get_device_name(device),
        "compute_capability": f"{major}{minor}",
        "onnxruntime": package_version("onnxruntime-gpu") or "unknown",
        # The wheel in which ONNX Runtime's provider finds TensorRT. If TensorRT comes from elsewhere, it
        # refuses engines of another version itself.
        "tensorrt": package_version("tensorrt-cu13-libs") or "unknown",
    }
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=8).hexdigest()
    return f"sm{key['compute_capability']}-tensorrt-{key['tensorrt']}-{digest}"


def _writable(folder: Path) -> Path | None:
    """Make the folder of an engine; None if the artifact is read-only: each start rebuilds the engine."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning("%s: %s; an engine is built at every start", folder, error.strerror)
        return None
    return folder
