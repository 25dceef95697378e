"""What all sections share: the device, how much is measured, and what is made once for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from farrank_bench.gpu.ceilings import Ceilings, measure_ceilings
from farrank_bench.gpu.extent import Extent
from farrank_bench.gpu.models import build_model
from farrank_bench.gpu.texts import read_corpus, train_tokenizer
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokenizer import TextTokenizer
from farrank_runtimes.interface import Packing, Precision, Runtime
from farrank_runtimes.openers import Placement
from farrank_runtimes.torch_opening import open_torch


@dataclass(frozen=True)
class Bench:
    """A benchmark of a device; with `tiny` models it measures nothing, and shows that it runs."""

    device: torch.device
    extent: Extent
    tiny: bool = False

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
