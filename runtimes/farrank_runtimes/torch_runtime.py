"""The PyTorch runtime: a ranker's own modules, on padded batches or on packed ones."""

import time
from collections.abc import Mapping, Sequence

import torch

from farrank_rankers.errors import AttentionAbsent, SourceError
from farrank_rankers.features import Features
from farrank_rankers.files.load import place
from farrank_rankers.packed.attention_choice import Chosen, choose_attention
from farrank_rankers.packed.packed_backbone import Compile, as_written, compiled
from farrank_rankers.packed.packed_encoder import PackedEncoder
from farrank_rankers.packed.pattern import Attention
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed.stream import TokenStream, pack
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput, LongArray, collate
from farrank_runtimes.cuda_queue import CudaFeed, Feed, HostFeed, beside
from farrank_runtimes.devices import affordable_tokens, batch_tokens, choose_device, usable_cores
from farrank_runtimes.document_groups import GroupLimit, score_in_groups
from farrank_runtimes.openers import Placement
from farrank_runtimes.runtime import (
    Capabilities,
    DocumentScores,
    Encoded,
    Encoding,
    PackingAbsent,
    Precision,
    PrecisionAbsent,
    Runtime,
)
from farrank_runtimes.torch_failures import device_failures
from farrank_runtimes.warm_up import COMPILED_INPUTS, measure_speed, query_input

# What documents that are scored together may take, by type of device. A GPU has the room, and idles where
# documents come one by one.
GROUP_BYTES = {"cpu": 128 * 2**20, "cuda": 2**30}

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

    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        """Run the light part. Raises: OutOfMemory if a document alone does not fit; DeviceLost."""
        limit = GroupLimit(GROUP_BYTES[self.device.type])
        return score_in_groups(self._aggregate, documents, queries, device=self.device, limit=limit)

    def _aggregate(
        self, features: Features, chunk_mask: torch.Tensor, query: Features | None
    ) -> tuple[list[float], list[list[float]]]:
        """Aggregate, on a GPU beside the batch that is being encoded.

        Shapes: (D, C, …), (D, C), (D, …) -> scores (D,), chunk scores (D, C).
        """
        with beside(self.device):
            result = self._aggregator.explain(features, chunk_mask, query)
            return result.scores.tolist(), result.chunk_scores.tolist()

    def capabilities(self, *, packed: bool = False, queued: bool = False) -> Capabilities:
        """What runs where."""
        return Capabilities("torch", str(self.device), self.precision, self._max_batch_tokens, packed, queued)


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

    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        """Run the light part. Raises: OutOfMemory if a document alone does not fit; DeviceLost."""
        return self._modules.score(documents, queries)

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

    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        """Run the light part. Raises: OutOfMemory if a document alone does not fit; DeviceLost."""
        return self._modules.score(documents, queries)

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


def open_torch(ranker: Ranker, precision: Precision, placement: Placement) -> tuple[Runtime, str]:
    """Put a ranker on its device, packed where a fused kernel and its backbone allow; say which, and why.

    Attention without a fused kernel takes input after input and gains nothing: it is for those who ask.
    Raises: DeviceAbsent, PrecisionAbsent; PackingAbsent if packed batches are asked for and impossible.
    """
    where = (precision, placement.device, placement.threads)
    if placement.packing == "padded":
        return TorchRuntime(ranker, *where), "padded, as asked for"
    modules = TorchModules(ranker, *where)
    try:
        chosen = choose_attention(modules.device, modules.dtype)
        if chosen.attention is plain_attention and placement.packing == "auto":
            raise AttentionAbsent(chosen.missing)
        packed = PackedRuntime(modules, chosen.attention, compiled if placement.compile else as_written)
    except (AttentionAbsent, SourceError) as error:
        if placement.packing == "packed":
            raise PackingAbsent(f"packed batches cannot be had: {error}") from error
        return TorchRuntime(ranker, *where), f"padded: {error}"
    return packed, _named(chosen)


def _named(chosen: Chosen) -> str:
    missing = f" ({chosen.missing})" if chosen.missing else ""
    return f"packed, {chosen.name} attention{missing}"
