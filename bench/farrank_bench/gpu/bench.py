"""The state of all sections: the device, the amount of work, and objects that are made once for all."""

import gc
import math
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from farrank_bench.corpus_calls import read_corpus
from farrank_bench.gpu.inputs import build_model, train_tokenizer
from farrank_bench.report import Row, spread
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokenizer import TextTokenizer
from farrank_runtimes.runtime import Packing, Placement, Precision, Runtime
from farrank_runtimes.torch_runtime import open_torch


@dataclass(frozen=True, slots=True)
class DeviceExtent:
    """The sizes of all sections, with times in seconds.

    A speed is measured `repeats` times, each time over `passes` over the documents. Latencies are those of
    `calls`, sent one by one. A loaded server has `callers`, settles for `settling_s` and is watched for
    `load_s`. The ceilings multiply matrices of `side` and copy `copied` bytes, `times` times. A part of a
    section ends after `limit_s`.
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


FULL = DeviceExtent(100, 5, 10, 20, 6, 16, 5.0, 30.0, 8192, 2**30, 20, 900.0)
QUICK = DeviceExtent(100, 1, 2, 3, 2, 16, 2.0, 5.0, 8192, 2**28, 5, 300.0)
# For a trial run with tiny models on any device.
TINY = DeviceExtent(2, 1, 1, 1, 1, 2, 0.1, 0.5, 64, 2**16, 1, 300.0)


@dataclass
class DeviceBench:
    """A benchmark of a device. With `tiny` models it is a trial run, and its figures mean nothing."""

    device: torch.device
    extent: DeviceExtent
    tiny: bool = False
    ends_s: float = math.inf

    def measure(self, section: Callable[["DeviceBench"], list[Row]]) -> list[Row]:
        """Measure a part of a section within its time, then free the device's memory for the next part."""
        self.ends_s = time.monotonic() + self.extent.limit_s
        try:
            return section(self)
        finally:
            gc.collect()
            # Without a GPU this does nothing.
            torch.cuda.empty_cache()

    def check_time(self) -> None:
        """Raise TimeoutError if the part's time is over. Callers check between passes."""
        if time.monotonic() > self.ends_s:
            raise TimeoutError(f"not done after {self.extent.limit_s:g} s")

    def seconds_of(self, work: Callable[[], object]) -> float:
        """Time work from an idle device to an idle device."""
        started_s = self._when_idle_s()
        work()
        return self._when_idle_s() - started_s

    def _when_idle_s(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @cached_property
    def corpus(self) -> Sequence[str]:
        """Long texts."""
        return read_corpus(20_000)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """Make the tokenizer of all models."""
        return train_tokenizer(self.corpus)

    @cached_property
    def flops_per_s(self) -> Sequence[float]:
        """Multiply large square matrices in bf16: the device's peak, run by run."""
        side, times = self.extent.side, self.extent.times
        left, right = (torch.randn(side, side, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        product = torch.empty_like(left)
        return [
            times * 2 * side**3 / took for took in self._timed(lambda: torch.mm(left, right, out=product))
        ]

    def ceilings(self) -> list[Row]:
        """Measure the device's own peaks. A copy's bytes count twice: read, and written."""
        side, nbytes, times = self.extent.side, self.extent.copied, self.extent.times
        source = torch.zeros(nbytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        tera = [each / 1e12 for each in self.flops_per_s]
        giga = [times * 2 * nbytes / took / 1e9 for took in self._timed(lambda: target.copy_(source))]
        return [
            Row(f"matrix product in bf16, {side} × {side}, TFLOP/s: the peak", spread(tera, ".4g")),
            Row(f"copy of {nbytes / 2**20:g} MiB, read and written, GB/s", spread(giga, ".4g")),
        ]

    def _timed(self, work: Callable[[], object]) -> list[float]:
        """Time runs that do the work `times` times each, after one run that does not count."""

        def run() -> None:
            for _ in range(self.extent.times):
                work()

        return [self.seconds_of(run) for _ in range(self.extent.repeats + 1)][1:]

    def model(self, name: str) -> Ranker:
        """Build a model of the papers on the device."""
        return build_model(name, self.tokenizer, self.device, tiny=self.tiny)

    def open(
        self, ranker: Ranker, packing: Packing, *, precision: Precision = "bf16", compile: bool = False
    ) -> tuple[Runtime, str]:
        """Open a model's runtime. Returns it with its own description.

        Runtimes of one model share its weights: the precision of the last one opened holds for all.
        """
        placement = Placement(str(self.device), packing=packing, compile=compile)
        return open_torch(ranker, precision, placement)


def device_line(device: torch.device) -> str:
    """Describe a device, its driver, and the CUDA version of torch's build."""
    if device.type != "cuda":
        return f"{device}, no GPU"
    found = torch.cuda.get_device_properties(device)
    memory, cuda = found.total_memory / 2**30, torch.version.cuda
    return f"{found.name}, {memory:.0f} GiB; driver {driver()}; CUDA {cuda}"


def driver() -> str:
    """Return the driver's version according to nvidia-smi, or "unknown" without it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.partition("\n")[0].strip() or "unknown"
