"""An export's graphs: their files, and what a library makes of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from farrank_rankers.exports.export_folder import Exported
from farrank_rankers.family import Aggregation
from farrank_runtimes.runtime import Capabilities, Precision

if TYPE_CHECKING:  # configuration is read without torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class GraphFiles:
    """An export's two graphs as a runtime opens them.

    `longest_input`, in tokens, and `pad_id` are the reader's. `inputs` names what the encoder's graph takes.
    `similarity` is there for bi-encoders whose vectors are compared without the aggregator's graph.
    """

    encoder: Path
    aggregator: Path
    precision: Precision
    longest_input: int
    pad_id: int = 0
    inputs: tuple[str, ...] = ("input_ids", "roles", "token_type_ids")
    similarity: Aggregation | None = None

    @classmethod
    def of(cls, exported: Exported, runtime: str) -> "GraphFiles":
        """Take a runtime's files out of an opened export."""
        export, reader = exported.export, exported.reader
        return cls(
            encoder=export.path("encoder", runtime),
            aggregator=export.path("aggregator", runtime),
            precision=export.manifest.precision,
            longest_input=reader.max_input_tokens,
            pad_id=reader.pad_id,
            inputs=export.manifest.graphs["encoder"].inputs,
            similarity=reader.spec.similarity,
        )


# Runs a loaded graph on its inputs by name; outputs come in its order. Raises: OutOfMemory, DeviceLost.
RunGraph = Callable[[Mapping[str, "Tensor"]], list["Tensor"]]


class BegunGraph(Protocol):
    """A graph at work on the parts of a batch."""

    def outputs(self) -> "list[list[Tensor]]":
        """Wait until all are done; give the outputs of each, in the graph's order.

        Raises: OutOfMemory, DeviceLost.
        """
        ...

    def device_s(self) -> float:
        """Say how long the device was busy with them; asked after `outputs`."""
        ...


# Begins a loaded graph on the parts of a batch, behind what was begun before, and waits for nothing.
# Raises: OutOfMemory, DeviceLost.
BeginGraph = Callable[[Sequence[Mapping[str, "Tensor"]]], BegunGraph]


@dataclass(frozen=True, slots=True)
class EncoderGraph:
    """A loaded encoder: `run` waits for a batch. `begin` is there where `capabilities` say `queued`."""

    run: RunGraph
    capabilities: Capabilities
    begin: BeginGraph | None = None
