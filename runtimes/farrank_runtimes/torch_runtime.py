"""The PyTorch runtime on padded batches, one at a time: for CPUs, and for backbones without a packed form."""

import time
from collections.abc import Sequence

import torch

from farrank_rankers.collate import LongArray, collate
from farrank_rankers.features import Features
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.interface import Capabilities, Encoded, Precision
from farrank_runtimes.torch_failures import device_failures
from farrank_runtimes.torch_modules import TorchModules
from farrank_runtimes.warm_up import measure_speed


class TorchRuntime:
    """A ranker as its PyTorch modules; what they are made for, `TorchModules` says.

    Raises: DeviceAbsent; PrecisionAbsent for precisions that are exports' alone.
    """

    def __init__(
        self,
        ranker: Ranker,
        precision: Precision | None = None,
        device: str | None = None,
        threads: int | None = None,
    ) -> None:
        self._modules = TorchModules(ranker, precision, device, threads)

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoded:
        """Run the heavy part. Raises: ValueError if there is no input; OutOfMemory, DeviceLost."""
        batch = collate(inputs, self._modules.reader.pad_id)
        started_s = time.perf_counter()
        with torch.inference_mode(), device_failures():
            features: Features = self._modules.encoder(*map(self._to_device, batch))
            # A family may return a view, [CLS] of all positions say: kept for later, it would keep them all.
            features = features._replace(vectors=features.vectors.float().contiguous())
            if self._modules.device.type == "cuda":
                torch.cuda.current_stream(self._modules.device).synchronize()
        return Encoded(features.rows(), time.perf_counter() - started_s)

    def aggregate(
        self, features: Features, chunk_mask: torch.Tensor, query: Features | None
    ) -> tuple[list[float], list[list[float]]]:
        """Run the light part. Shapes: (D, C, …), (D, C), (D, …) -> scores (D,), chunk scores (D, C)."""
        return self._modules.aggregate(features, chunk_mask, query)

    def warm_up(self) -> float:
        """Run batches of the shapes to come; return the measured speed in tokens per second."""
        longest = self._modules.reader.max_input_tokens
        return measure_speed(self.encode, longest, self.capabilities().max_batch_tokens)

    def capabilities(self) -> Capabilities:
        """What runs where."""
        return self._modules.capabilities()

    def _to_device(self, array: LongArray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self._modules.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._modules.device, non_blocking=True)
