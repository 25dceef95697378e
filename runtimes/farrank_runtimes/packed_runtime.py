"""The PyTorch runtime on streams of tokens: nothing is padded, and a GPU has its next batch in time."""

from collections.abc import Sequence

import torch

from farrank_rankers.features import Features
from farrank_rankers.packed.attention.interface import Attention
from farrank_rankers.packed.backbones.compiling import Compile, as_written
from farrank_rankers.packed.encoder import PackedEncoder
from farrank_rankers.packed.packing import pack
from farrank_rankers.packed.stream import TokenStream
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.feeding import CudaFeed, Feed, HostFeed
from farrank_runtimes.interface import Capabilities, Encoding
from farrank_runtimes.torch_failures import device_failures
from farrank_runtimes.torch_modules import TorchModules
from farrank_runtimes.warm_up import COMPILED_INPUTS, measure_speed, query_input


class PackedRuntime:
    """A ranker as its PyTorch modules, its inputs end to end.

    Raises: SourceError if the backbone has no packed form.
    """

    def __init__(self, modules: TorchModules, attention: Attention, compile_by: Compile = as_written) -> None:
        self._modules = modules
        self._encoder = PackedEncoder(modules.encoder, attention, compile_by)
        self._is_queued = modules.device.type == "cuda"
        self._feed: Feed = CudaFeed(modules.device) if self._is_queued else HostFeed()

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoding:
        """Begin the heavy part. Raises: ValueError if there is no input; OutOfMemory, DeviceLost."""
        packing = pack(inputs)
        with torch.inference_mode(), device_failures():
            return self._feed.begin(packing, self._encode)

    def _encode(self, stream: TokenStream) -> Features:
        """Shapes: T tokens of P inputs -> (P, F), or (T, F…), (P, S, F…) with roles."""
        features = self._encoder.encode(stream)
        return features._replace(vectors=features.vectors.float())

    def aggregate(
        self, features: Features, chunk_mask: torch.Tensor, query: Features | None
    ) -> tuple[list[float], list[list[float]]]:
        """Run the light part. Shapes: (D, C, …), (D, C), (D, …) -> scores (D,), chunk scores (D, C)."""
        return self._modules.aggregate(features, chunk_mask, query)

    def warm_up(self) -> float:
        """Run batches of the shapes to come; return the measured speed in tokens per second."""
        # With padding, tokens stand further apart than in the stream: other kernels.
        forms = (False, True) if self._modules.reader.spec.pad_query_to else (False,)
        for padded in forms:
            for count in COMPILED_INPUTS:
                self.encode([query_input(padded=padded)] * count).rows()
        longest = self._modules.reader.max_input_tokens
        return measure_speed(self.encode, longest, self.capabilities().max_batch_tokens)

    def capabilities(self) -> Capabilities:
        """What runs where."""
        return self._modules.capabilities(packed=True, queued=self._is_queued)
