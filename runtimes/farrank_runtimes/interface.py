"""What is asked of a runtime, and how a runtime says that the device failed."""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from farrank_rankers.features import Features

Int64Array = NDArray[np.int64]
Precision = Literal["fp32", "fp16", "bf16", "int8"]
RuntimeName = Literal["torch", "onnx", "openvino", "tensorrt"]
RuntimeChoice = Literal["auto", "torch", "onnx", "openvino", "tensorrt"]


class DeviceAbsent(Exception):
    """The device that was asked for is not here."""


class RuntimeAbsent(Exception):
    """The runtime asked for is not installed, or has nothing to serve; the message says what helps."""


class PrecisionAbsent(Exception):
    """The precision that was asked for cannot be had; the message says what can."""


class OutOfMemory(Exception):
    """The batch did not fit into the device's memory; a smaller one may."""


class DeviceLost(Exception):
    """The device no longer answers; only a freshly loaded runtime can go on."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a loaded runtime runs on, as ListRankers reports it."""

    runtime: str
    device: str
    precision: str
    max_batch_tokens: int


class Runtime(Protocol):
    """A loaded ranker on its device. Used by one thread at a time."""

    def encode(self, input_ids: Int64Array, roles: Int64Array, token_type_ids: Int64Array) -> Features:
        """Run the heavy part; done, not merely enqueued, when it returns.

        Shapes: (P, L) each -> features (P, …), on the runtime's device.
        Raises: OutOfMemory, DeviceLost.
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
