"""What every runtime offers, and how it says that the device failed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from farrank_rankers.tokens import EncoderInput

if TYPE_CHECKING:
    from farrank_rankers.features import Features

Precision = Literal["fp32", "fp16", "bf16", "int8"]
RuntimeName = Literal["torch", "onnx", "openvino", "tensorrt"]
RuntimeChoice = Literal["auto", "torch", "onnx", "openvino", "tensorrt"]
Packing = Literal["auto", "packed", "padded"]


class DeviceAbsent(Exception):
    """The device that was asked for is not here."""


class RuntimeAbsent(Exception):
    """The runtime asked for is not installed, or has nothing to serve; the message says what helps."""


class PrecisionAbsent(Exception):
    """The precision that was asked for cannot be had; the message says what can."""


class PackingAbsent(Exception):
    """Packed batches were asked for, and cannot be had; the message says why."""


class OutOfMemory(Exception):
    """The batch did not fit into the device's memory; a smaller one may."""


class DeviceLost(Exception):
    """The device no longer answers; only a freshly loaded runtime can go on."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a loaded runtime runs on, as ListRankers reports it.

    `packed`: inputs are encoded end to end, so that their lengths may differ as they like. `queued`: a batch
    is only begun when `encode` returns, and the next one may be begun behind it.
    """

    runtime: str
    device: str
    precision: str
    max_batch_tokens: int
    packed: bool = False
    queued: bool = False


@dataclass(slots=True, eq=False)
class DocumentScores:
    """The scores of D documents, and the evidence of each one's C chunks. Shapes: (D,), D times (C,).

    `halved_groups` counts the groups of documents that did not fit into memory and were scored in halves.
    """

    scores: list[float]
    chunk_scores: list[list[float]]
    halved_groups: int = 0


class Encoding(Protocol):
    """A batch on its way through the device."""

    def rows(self) -> list["Features"]:
        """Wait until it is done; give each input's features, in fp32 on the runtime's device.

        Shapes: P times (F,), or (S, F…) with roles (S,).
        Raises: OutOfMemory, DeviceLost.
        """
        ...

    def device_s(self) -> float:
        """Say how long the device was busy with it, once its rows were given."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A batch that was done as soon as it was begun."""

    features: list["Features"]
    seconds: float

    def rows(self) -> list["Features"]:
        """Give each input's features."""
        return self.features

    def device_s(self) -> float:
        """Say how long it took."""
        return self.seconds


class Runtime(Protocol):
    """A loaded ranker on its device. Used by one thread at a time."""

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoding:
        """Begin the heavy part.

        Raises: ValueError if there is no input; OutOfMemory, DeviceLost.
        """
        ...

    def score(
        self, documents: "Sequence[Features]", queries: "Sequence[Features] | None" = None
    ) -> DocumentScores:
        """Run the light part on any number of documents, as many at a time as fit into memory.

        Features may be on the device or in host memory. `queries`, of plan dual alone, has one for each
        document.
        Shapes: documents D times (C, F), or (C, S, F…) with roles (C, S), each with its own C and S; queries
        D times (F,), or (S, F…) with roles (S,).
        Raises: OutOfMemory if a document alone does not fit; DeviceLost.
        """
        ...

    def warm_up(self) -> float:
        """Run batches of the shapes to come; return the measured speed in tokens per second."""
        ...

    def capabilities(self) -> Capabilities:
        """Say what runs where, honestly."""
        ...
