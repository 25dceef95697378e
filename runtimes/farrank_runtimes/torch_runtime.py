"""The PyTorch runtime, on CPU and CUDA."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from farrank_rankers.collate import LongArray, collate
from farrank_rankers.features import Features
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.devices import batch_tokens, choose_device
from farrank_runtimes.interface import (
    Capabilities,
    DeviceLost,
    Encoded,
    OutOfMemory,
    Precision,
    PrecisionAbsent,
)
from farrank_runtimes.threads import usable_cores
from farrank_runtimes.warm_up import measure_speed

_DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


class TorchRuntime:
    """A ranker as its PyTorch modules.

    The encoder runs in the runtime's precision (None: bf16 on a GPU, else fp32), the aggregator in fp32: it
    is light, and sums and softmaxes over chunks are where rounding would change a ranking. On a CPU it
    computes with `threads`, None for as many as the process may use.

    Raises: DeviceAbsent; PrecisionAbsent for precisions that are exports' alone.
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
        if self._precision not in _DTYPES:
            raise PrecisionAbsent(f"torch serves {' and '.join(_DTYPES)}, not {self._precision}")
        if self._device.type == "cpu":
            torch.set_num_threads(threads or usable_cores())
        self._reader = ranker.reader
        self._encoder = ranker.encoder.to(self._device, _DTYPES[self._precision]).eval()
        self._aggregator = ranker.aggregator.to(self._device, torch.float32).eval()

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoded:
        """Run the heavy part. Raises: OutOfMemory, DeviceLost."""
        batch = collate(inputs, self._reader.pad_id)
        started_s = time.perf_counter()
        with torch.inference_mode(), _device_failures():
            features: Features = self._encoder(*map(self._to_device, batch))
            # A family may return a view, [CLS] of all positions say: kept for later, it would keep them all.
            features = features._replace(vectors=features.vectors.float().contiguous())
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        return Encoded(features.rows(), time.perf_counter() - started_s)

    def aggregate(
        self, features: Features, chunk_mask: torch.Tensor, query: Features | None
    ) -> tuple[list[float], list[list[float]]]:
        """Shapes: (D, C, …), (D, C), (D, …) -> scores (D,), chunk scores (D, C)."""
        with torch.inference_mode(), _device_failures():
            result = self._aggregator(features, chunk_mask, query)
            return result.scores.tolist(), result.chunk_scores.tolist()

    def warm_up(self) -> float:
        """Run batches of the shapes to come; return the measured speed in tokens per second."""
        return measure_speed(self.encode, self._reader.max_input_tokens, self.capabilities().max_batch_tokens)

    def capabilities(self) -> Capabilities:
        """What runs where."""
        return Capabilities("torch", str(self._device), self._precision, batch_tokens(self._device))

    def _to_device(self, array: LongArray) -> torch.Tensor:
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
