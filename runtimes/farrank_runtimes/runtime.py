"""What every runtime offers, and how one says that it cannot be had or that its device failed.

Free of torch, so that reading a configuration takes no seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from traceback import clear_frames
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol, TypeVar

from farrank_rankers.tokens import EncoderInput

if TYPE_CHECKING:
    from farrank_rankers.features import Features

Precision = Literal["fp32", "fp16", "bf16", "int8"]
Packing = Literal["auto", "packed", "padded"]
AnyError = TypeVar("AnyError", bound=BaseException)


class RuntimeAbsent(Exception):
    """The runtime is not installed, or has nothing to serve; the message says what helps."""


class DeviceAbsent(Exception):
    """The device that was asked for is not on this machine."""


class PrecisionAbsent(Exception):
    """The precision that was asked for cannot be had; the message says which can."""


class PackingAbsent(Exception):
    """Packed batches were asked for and cannot be had; the message says why."""


class OutOfMemory(Exception):
    """The batch did not fit into the device's memory; a smaller one may."""


class DeviceLost(Exception):
    """The device no longer answers; only a freshly loaded runtime can go on."""


def forget_locals(error: AnyError) -> AnyError:
    """Empty the frames that an error, and what caused it, went through; where it went can still be logged.

    They hold every tensor that was alive when a batch failed, and its halves may need that memory.
    """
    cause: BaseException | None = error
    while cause is not None:
        clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
    return error


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how a runtime computes. None: chosen for the machine.

    `packing` and `compile` are for torch alone. `packing` says whether a batch's inputs are put end to end or
    padded to the longest; with `compile`, torch compiles what packed layers do between two attentions.
    """

    device: str | None = None
    threads: int | None = None
    max_batch_tokens: int | None = None
    packing: Packing = "auto"
    compile: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a loaded runtime runs on, as ListRankers reports it. It never changes.

    `precision` is what the encoder really computes in. `packed`: inputs are put end to end, so a batch may
    mix lengths freely. `queued`: `encode` returns when a batch has only begun, and the next one may be begun
    behind it. `max_kept_bytes`: how many bytes of features of incomplete documents the device has room for;
    None if the device is the host. `length_step`: padded batches are as long as a multiple of it, so that
    fewer shapes come.
    """

    runtime: str
    device: str
    precision: str
    max_batch_tokens: int
    packed: bool = False
    queued: bool = False
    max_kept_bytes: int | None = None
    length_step: int = 1


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

    def rows(self) -> "list[Features]":
        """Wait until the batch is done; give each input's features, in fp32 on the runtime's device.

        Rows may be views of the whole batch; `document_groups.kept` makes one that can stay.
        Shapes: P times (F,), or (S, F…) with roles (S,).
        Raises: OutOfMemory, DeviceLost.
        """
        ...

    def device_s(self) -> float:
        """Say how long the device was busy with the batch; asked after `rows`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A batch that was done as soon as it was begun."""

    features: "list[Features]"
    seconds: float

    def rows(self) -> "list[Features]":
        """Give each input's features."""
        return self.features

    def device_s(self) -> float:
        """Say how long the batch took."""
        return self.seconds


class Runtime(Protocol):
    """A ranker loaded onto its device. Used by one thread at a time."""

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoding:
        """Begin the heavy part.

        Raises: ValueError if there is no input; OutOfMemory, DeviceLost.
        """
        ...

    def score(
        self, documents: "Sequence[Features]", queries: "Sequence[Features] | None" = None
    ) -> DocumentScores:
        """Run the light part on any number of documents, as many at a time as fit into memory.

        Features may be on the device or in host memory; a bi-encoder's may be fp16. `queries`, which only
        rankers of plan dual have, gives one for each document.
        Shapes: documents D times (C, F), or (C, S, F…) with roles (C, S), each with its own C and S; queries
        D times (F,), or (S, F…) with roles (S,).
        Raises: OutOfMemory if a document alone does not fit; DeviceLost.
        """
        ...

    def warm_up(self) -> float:
        """Run batches of the shapes to come; return the measured speed in tokens per second."""
        ...

    def capabilities(self) -> Capabilities:
        """Say what runs where; also after `close`."""
        ...

    def close(self) -> None:
        """Free weights and memory, whatever state the device is in; nothing more can be encoded or scored.

        A lost device gets a fresh runtime: closing the old one first keeps the weights from being in memory
        twice. Never raises; may be called again.
        """
        ...


def closed(*_: object, **__: object) -> NoReturn:
    """Stand in for what a closed runtime has let go of."""
    raise RuntimeError("this runtime is closed")
