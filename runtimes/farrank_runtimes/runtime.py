"""The interface of every runtime, and the exceptions of missing runtimes and failed devices.

Without torch, so that reading a configuration is fast.
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
# How an index stores token vectors: see `token_codecs`.
CodecName = Literal["int8", "int4", "fp16"]
AnyError = TypeVar("AnyError", bound=BaseException)


class RuntimeAbsent(Exception):
    """The runtime is not installed, or has no export to serve; the message has the remedy."""


class DeviceAbsent(Exception):
    """The configured device is not on this machine."""


class PrecisionAbsent(Exception):
    """The configured precision is not available; the message names those that are."""


class PackingAbsent(Exception):
    """Packed batches were configured but are not available; the message says why."""


class OutOfMemory(Exception):
    """The batch did not fit into the device's memory; a smaller one may."""


class DeviceLost(Exception):
    """The device no longer answers; only a newly loaded runtime can continue."""


def forget_locals(error: AnyError) -> AnyError:
    """Clear the frames in the traceback of an error and its causes; the traceback can still be logged.

    They reference all tensors of a failed batch, whose halves may need that memory.
    """
    cause: BaseException | None = error
    while cause is not None:
        clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
    return error


@dataclass(frozen=True, slots=True)
class Placement:
    """A runtime's device and settings. None: chosen for the machine.

    Only torch has `packing` and `compile`. `packing` chooses between inputs end to end and inputs padded to
    the longest; with `compile`, torch compiles packed layers' computations between two attentions.
    """

    device: str | None = None
    threads: int | None = None
    max_batch_tokens: int | None = None
    packing: Packing = "auto"
    compile: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """A loaded runtime's properties, as ListRankers reports them. They never change.

    `precision` is the encoder's real precision of computation. `packed`: inputs are put end to end, so a
    batch may mix lengths freely. `queued`: `encode` returns when a batch has only begun, and the next one may
    be queued. `max_kept_bytes`: the device's room for features of incomplete documents; None if the device is
    the host. `length_step`: padded batches have a multiple of it as length, so that there are fewer shapes.
    `weight_bytes`: the weights' bytes, of an export those of its graph's files. `parts`: the parts into which
    a batch is divided by length; each is padded to its own longest input.
    """

    runtime: str
    device: str
    precision: str
    max_batch_tokens: int
    packed: bool = False
    queued: bool = False
    max_kept_bytes: int | None = None
    length_step: int = 1
    weight_bytes: int = 0
    parts: int = 1


@dataclass(slots=True, eq=False)
class DocumentScores:
    """The scores of D documents, and the evidence of each one's C chunks. Shapes: (D,), D times (C,).

    `halved_groups` counts groups of documents that did not fit into memory and were scored in halves.
    """

    scores: list[float]
    chunk_scores: list[list[float]]
    halved_groups: int = 0


class Encoding(Protocol):
    """A batch in flight on the device."""

    def rows(self) -> "list[Features]":
        """Wait until the batch is done; return each input's features, in fp32 on the runtime's device.

        Rows may be views of the whole batch; `document_groups.kept` copies one to keep.
        Shapes: P times (F,), or (S, F…) with roles (S,).
        Raises: OutOfMemory, DeviceLost.
        """
        ...

    def device_s(self) -> float:
        """Return the time that the device was busy with the batch; called after `rows`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class CompletedBatch:
    """A batch that was already done when `encode` returned."""

    features: "list[Features]"
    seconds: float

    def rows(self) -> "list[Features]":
        """Return each input's features."""
        return self.features

    def device_s(self) -> float:
        """Return the time that the batch took."""
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
        """Run the light part on any number of documents, in groups that fit into memory.

        Features may be on the device or in host memory; a bi-encoder's may be fp16, and those compared by
        MaxSim may be rows of an index (`Features.windows`). `queries`, only for rankers of plan dual, has one
        per document.
        Shapes: documents D times (C, F), or (C, S, F…) with roles (C, S), each with its own C and S; queries
        D times (F,), or (S, F…) with roles (S,).
        Raises: OutOfMemory if a document alone does not fit; DeviceLost.
        """
        ...

    def warm_up(self) -> float:
        """Run batches of typical shapes; return the measured speed in tokens per second."""
        ...

    def capabilities(self) -> Capabilities:
        """Return the properties; also after `close`."""
        ...

    def close(self) -> None:
        """Free weights and memory, in any state of the device; afterwards nothing can be encoded or scored.

        Close the runtime of a lost device before a new one is loaded, so that the weights are not in memory
        twice. Never raises; may be called again.
        """
        ...


def closed(*_: object, **__: object) -> NoReturn:
    """Replaces the parts of a closed runtime."""
    raise RuntimeError("this runtime is closed")
