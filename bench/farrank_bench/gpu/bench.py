"""What all sections share: the device, how much is measured, and what is made once for all of them."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from farrank_bench.gpu.inputs import build_model, read_corpus, train_tokenizer
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokenizer import TextTokenizer
from farrank_runtimes.runtime import Packing, Placement, Precision, Runtime
from farrank_runtimes.torch_runtime import open_torch


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes of all sections; times in seconds.

    A speed is that of `passes` over the documents, `repeats` times. `calls` are sent one by one; a loaded
    server has `callers`, settles for `settling_s` and is watched for `load_s`. The ceilings have matrices of
    `side` and copies of `copied` bytes, `times` times over. A part of a section
    ends after `limit_s`.
    """

    documents: int
    repeats: int
    passes: int
    calls: int
    queries: int
    callers: int
    settling_s: float
    load_s: float
    side: int
    copied: int
    times: int
    limit_s: float


FULL = Extent(100, 5, 10, 20, 6, 16, 5.0, 30.0, 8192, 2**30, 20, 900.0)
QUICK = Extent(100, 1, 2, 3, 2, 16, 2.0, 5.0, 8192, 2**28, 5, 300.0)
# For tiny models on any device: nothing here says how fast anything is.
TINY = Extent(2, 1, 1, 1, 1, 2, 0.1, 0.5, 64, 2**16, 1, 300.0)


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Time work from an idle device to an idle device."""
    wait_for(device)
    started_s = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started_s


TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Operations/s of a large square matrix product in bf16, bytes/s of a copy, run by run.

    A copy's bytes count twice, once read and once written. `side` is the matrices', `nbytes` what is copied.
    """

    flops_per_s: Sequence[float]
    bytes_per_s: Sequence[float]
    side: int
    nbytes: int


def measure_ceilings(device: torch.device, side: int, nbytes: int, times: int, repeats: int) -> Ceilings:
    """Multiply and copy `times` times in each run, behind one run that is not counted."""
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def multiply() -> None:
        for _ in range(times):
            torch.mm(left, right, out=product)

    def copy() -> None:
        for _ in range(times):
            target.copy_(source)

    multiplied_s = [seconds_of(multiply, device) for _ in range(repeats + 1)][1:]
    copied_s = [seconds_of(copy, device) for _ in range(repeats + 1)][1:]
    return Ceilings(
        [times * 2 * side**3 / seconds for seconds in multiplied_s],
        [times * 2 * nbytes / seconds for seconds in copied_s],
        side,
        nbytes,
    )


@dataclass(slots=True)
class TimeLimit:
    """How long a part of a section may take; it is checked between passes, which are never cut in two."""

    limit_s: float = math.inf
    ends_s: float = math.inf

    def begin(self, limit_s: float) -> None:
        """Count from now."""
        self.limit_s, self.ends_s = limit_s, time.monotonic() + limit_s

    def check(self) -> None:
        """Raise TimeoutError if the time is over."""
        if time.monotonic() > self.ends_s:
            raise TimeoutError(f"not done after {self.limit_s:g} s")


@dataclass(frozen=True)
class Bench:
    """A benchmark of a device; with `tiny` models it measures nothing, and shows that it runs."""

    device: torch.device
    extent: Extent
    tiny: bool = False
    limit: TimeLimit = field(default_factory=TimeLimit)

    @cached_property
    def corpus(self) -> Sequence[str]:
        """Long texts."""
        return read_corpus()

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """Make the tokenizer of all models."""
        return train_tokenizer(self.corpus)

    @cached_property
    def ceilings(self) -> Ceilings:
        """Measure what the device can do at most."""
        extent = self.extent
        return measure_ceilings(self.device, extent.side, extent.copied, extent.times, extent.repeats)

    def model(self, name: str) -> Ranker:
        """Build a model of the papers on the device."""
        return build_model(name, self.tokenizer, self.device, tiny=self.tiny)

    def open(
        self, ranker: Ranker, packing: Packing, *, precision: Precision = "bf16", compile: bool = False
    ) -> tuple[Runtime, str]:
        """Open a model's runtime; what it says of itself comes with it.

        Runtimes of one model share its weights: the last precision asked for is all's.
        """
        placement = Placement(str(self.device), packing=packing, compile=compile)
        return open_torch(ranker, precision, placement)
