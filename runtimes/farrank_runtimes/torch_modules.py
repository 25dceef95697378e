"""What both forms of the torch runtime stand on: a ranker's modules on their device, in their precision."""

from collections.abc import Mapping

import torch

from farrank_rankers.features import Features
from farrank_rankers.placing import place
from farrank_rankers.ranker import Ranker
from farrank_runtimes.device_streams import beside
from farrank_runtimes.devices import affordable_tokens, batch_tokens, choose_device
from farrank_runtimes.interface import Capabilities, Precision, PrecisionAbsent
from farrank_runtimes.threads import usable_cores
from farrank_runtimes.torch_failures import device_failures

_DTYPES: Mapping[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def dtype_of(precision: Precision) -> torch.dtype:
    """Give torch's own type. Raises: PrecisionAbsent for precisions that are exports' alone."""
    if precision not in _DTYPES:
        raise PrecisionAbsent(f"torch serves {' and '.join(_DTYPES)}, not {precision}")
    return _DTYPES[precision]


class TorchModules:
    """A ranker's encoder, in a precision (None: bf16 on a GPU, else fp32), and its aggregator, in fp32.

    The aggregator is light, and sums and softmaxes over chunks are where rounding would change a ranking. On
    a CPU both compute with `threads`, None for as many as the process may use.
    Raises: DeviceAbsent; PrecisionAbsent for precisions that are exports' alone.
    """

    def __init__(
        self,
        ranker: Ranker,
        precision: Precision | None = None,
        device: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.device = choose_device(device)
        self.precision: Precision = precision or ("bf16" if self.device.type == "cuda" else "fp32")
        self.dtype = dtype_of(self.precision)
        if self.device.type == "cpu":
            torch.set_num_threads(threads or usable_cores())
        self.reader = ranker.reader
        self.encoder = ranker.encoder.eval()
        self._aggregator = ranker.aggregator.eval()
        place(self.encoder, self.device, self.dtype)
        place(self._aggregator, self.device, torch.float32)
        # Once: every batch asks for the capabilities.
        self._max_batch_tokens = batch_tokens(self.device)
        if self.device.type == "cuda":
            memory = torch.cuda.get_device_properties(self.device).total_memory
            self._max_batch_tokens = affordable_tokens(
                self._max_batch_tokens, self.encoder.feature_values, memory
            )

    def aggregate(
        self, features: Features, chunk_mask: torch.Tensor, query: Features | None
    ) -> tuple[list[float], list[list[float]]]:
        """Run the light part, on a GPU beside the batch that is being encoded.

        Shapes: (D, C, …), (D, C), (D, …) -> scores (D,), chunk scores (D, C).
        """
        with torch.inference_mode(), device_failures(), beside(self.device):
            result = self._aggregator(features, chunk_mask, query)
            return result.scores.tolist(), result.chunk_scores.tolist()

    def capabilities(self, *, packed: bool = False, queued: bool = False) -> Capabilities:
        """What runs where."""
        return Capabilities("torch", str(self.device), self.precision, self._max_batch_tokens, packed, queued)
