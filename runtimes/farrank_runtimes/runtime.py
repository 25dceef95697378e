"""What every runtime offers, and how it says that the device failed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderInput

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


class Encoding(Protocol):
    """A batch on its way through the device."""

    def rows(self) -> list[Features]:
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

    features: list[Features]
    seconds: float

    def rows(self) -> list[Features]:
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

    def aggregate(
        self, features: Features, chunk_mask: torch.Tensor, query: Features | None
    ) -> tuple[list[float], list[list[float]]]:
        """Run the light part.

        Shapes: features (D, C, …), chunk_mask (D, C), query (D, …) -> scores (D,), evidence (D, C).
        Raises: OutOfMemory, DeviceLost.
        """
        ...

    def warm_up(self) -> float:
        """Run batches of the shapes to come; return the measured speed in tokens per second."""
        ...

    def capabilities(self) -> Capabilities:
        """Say what runs where, honestly."""
        ...
