"""An export's graphs: their files, and their interface when a library has loaded them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from farrank_rankers.exports.export_folder import ExportedRanker
from farrank_rankers.family import Aggregation, EvidenceKind, MaxSimOptions
from farrank_runtimes.runtime import Capabilities, Precision

if TYPE_CHECKING:  # configuration is read without importing torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class GraphFiles:
    """The files of an export's two graphs.

    `longest_input`, in tokens, and `pad_id` are the reader's. `inputs` names the inputs of the encoder's
    graph. `leaves_chunks_out` says whether the aggregator's graph scores a document again without each of its
    chunks. `similarity` or `maxsim` is set for rankers whose vectors are compared without that graph.
    """

    encoder: Path
    aggregator: Path
    precision: Precision
    longest_input: int
    pad_id: int = 0
    inputs: tuple[str, ...] = ("input_ids", "roles", "token_type_ids")
    leaves_chunks_out: bool = True
    similarity: Aggregation | None = None
    maxsim: MaxSimOptions | None = None

    @classmethod
    def of(cls, exported: ExportedRanker, runtime: str) -> "GraphFiles":
        """Get a runtime's files from an opened export."""
        export, reader = exported.export, exported.reader
        return cls(
            encoder=export.path("encoder", runtime),
            aggregator=export.path("aggregator", runtime),
            precision=export.manifest.precision,
            longest_input=reader.max_input_tokens,
            pad_id=reader.pad_id,
            inputs=export.manifest.graphs["encoder"].inputs,
            leaves_chunks_out=export.manifest.evidence == EvidenceKind.LEAVE_ONE_OUT,
            similarity=reader.spec.similarity,
            maxsim=reader.spec.maxsim,
        )


# Runs a loaded graph on its inputs by name; outputs come in its order. Raises: OutOfMemory, DeviceLost.
RunGraph = Callable[[Mapping[str, "Tensor"]], list["Tensor"]]


class BegunGraph(Protocol):
    """A graph's run on the parts of a batch."""

    def outputs(self) -> "list[list[Tensor]]":
        """Wait until all are done; return the outputs of each, in the graph's order.

        Raises: OutOfMemory, DeviceLost.
        """
        ...

    def device_s(self) -> float:
        """Return the time that the device was busy with them; called after `outputs`."""
        ...


# Begins a loaded graph on the parts of a batch, after earlier batches, without waiting.
# Raises: OutOfMemory, DeviceLost.
BeginGraph = Callable[[Sequence[Mapping[str, "Tensor"]]], BegunGraph]


@dataclass(frozen=True, slots=True)
class EncoderGraph:
    """A loaded encoder: `run` waits for a batch. `begin` is set if `capabilities` are `queued`."""

    run: RunGraph
    capabilities: Capabilities
    begin: BeginGraph | None = None


def graph_bytes(graph: Path) -> int:
    """Return the bytes of a graph's file and of the file with its weights.

    ONNX has its weights in NAME.data or NAME_data if they are not in the graph, and OpenVINO in a .bin.
    """
    weights = [graph.with_suffix(".bin")]
    if graph.suffix == ".onnx":
        weights = [graph.with_name(f"{graph.name}{end}") for end in (".data", "_data")]
    return sum(each.stat().st_size for each in (graph, *weights) if each.is_file())
