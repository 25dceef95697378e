"""The PyTorch runtime, on CPU and CUDA."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from farrank_rankers.features import Features
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import Role
from farrank_runtimes.interface import (
    Capabilities,
    DeviceAbsent,
    DeviceLost,
    Int64Array,
    OutOfMemory,
    Precision,
)
from farrank_runtimes.threads import usable_cores

# Padded positions of one batch. A CPU's caches hold the activations of about a thousand tokens, more only
# makes companions wait longer; a GPU needs tens of thousands to fill its multiprocessors.
CPU_BATCH_TOKENS = 1024
CUDA_BATCH_TOKENS = 65_536

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def choose_device(name: str | None) -> torch.device:
    """Take the named device; None is the first CUDA device, else the CPU.

    Raises: DeviceAbsent if the named device is not here.
    """
    if name is None:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceAbsent(f"{name!r} is no device; try cpu or cuda:0") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceAbsent(f"{name!r} is not here; torch sees {torch.cuda.device_count()} CUDA devices")
    if device.type not in ("cpu", "cuda"):
        raise DeviceAbsent(f"{name!r} is not supported; use cpu or cuda:0")
    return device


class TorchRuntime:
    """A ranker as its PyTorch modules.

    The encoder runs in the runtime's precision (None: bf16 on a GPU, else fp32), the aggregator in fp32: it
    is light, and sums and softmaxes over chunks are where rounding would change a ranking. On a CPU it
    computes with `threads`, None for as many as the process may use.

    Raises: DeviceAbsent.
    """

    def __init__(
        self,
        ranker: Ranker,
        precision: Precision | None = None,
        device: str | None = None,
        threads: int | None = None,
    ) -> None:
        self._device = choose_device(device)
        self._precision: Precision = precision or ("bf16" if self._device.type == "cuda" else "fp32")
        if self._device.type == "cpu":
            torch.set_num_threads(threads or usable_cores())
        self._longest_input = ranker.reader.max_input_tokens
        self._encoder = ranker.encoder.to(self._device, _DTYPES[self._precision]).eval()
        self._aggregator = ranker.aggregator.to(self._device, torch.float32).eval()

    def encode(self, input_ids: Int64Array, roles: Int64Array, token_type_ids: Int64Array) -> Features:
        """Shapes: (P, L) each -> features (P, …) in fp32. Raises: OutOfMemory, DeviceLost."""
        with torch.inference_mode(), _device_failures():
            features: Features = self._encoder(
                self._to_device(input_ids), self._to_device(roles), self._to_device(token_type_ids)
            )
            # A family may return a view, [CLS] of all positions say: kept for later, it would keep them all.
            features = features._replace(vectors=features.vectors.float().contiguous())
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        return features

    def aggregate(
        self, features: Features, chunk_mask: torch.Tensor, query: Features | None
    ) -> tuple[list[float], list[list[float]]]:
        """Shapes: (D, C, …), (D, C), (D, …) -> scores (D,), chunk scores (D, C)."""
        with torch.inference_mode(), _device_failures():
            result = self._aggregator(features, chunk_mask, query)
            return result.scores.tolist(), result.chunk_scores.tolist()

    def warm_up(self) -> float:
        """Run full batches of short and of long inputs; return the best speed seen, in tokens per second.

        The best, not the mean: what else the machine does at its start must not make admission timid.
        """
        fastest = 0.0
        for length in (16, self._longest_input, self._longest_input, self._longest_input):
            rows = max(1, self.capabilities().max_batch_tokens // length)
            ids = np.ones((rows, length), dtype=np.int64)
            started_s = time.perf_counter()
            roles = np.full_like(ids, Role.DOCUMENT)
            roles[:, 0] = Role.SPECIAL
            self.encode(ids, roles, np.zeros_like(ids))
            fastest = max(fastest, rows * length / (time.perf_counter() - started_s))
        return fastest

    def capabilities(self) -> Capabilities:
        """What runs where."""
        tokens = CPU_BATCH_TOKENS if self._device.type == "cpu" else CUDA_BATCH_TOKENS
        return Capabilities("torch", str(self._device), self._precision, tokens)

    def _to_device(self, array: Int64Array) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)


@contextmanager
def _device_failures() -> Iterator[None]:
    """Translate what torch raises when the device, not the model, is at fault."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(str(error)) from error
    except MemoryError as error:
        raise OutOfMemory("the host's memory is exhausted") from error
    except RuntimeError as error:
        # The CPU allocator raises a plain RuntimeError, and so does a CUDA context that has died.
        message = str(error)
        if "DefaultCPUAllocator" in message:
            raise OutOfMemory(message) from error
        if "CUDA error" in message:
            raise DeviceLost(message) from error
        raise
