"""The PyTorch runtime: a ranker's own modules, on padded batches or on packed ones."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from farrank_rankers.errors import AttentionAbsent, SourceError
from farrank_rankers.features import Features
from farrank_rankers.files.load import place
from farrank_rankers.packed.attention_choice import choose_attention
from farrank_rankers.packed.packed_backbone import Compile, as_written, compiled
from farrank_rankers.packed.packed_encoder import PackedEncoder
from farrank_rankers.packed.pattern import Attention
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed.stream import TokenStream, pack
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput, LongArray, collate
from farrank_runtimes.cuda_queue import CudaFeed, beside
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.devices import (
    affordable_tokens,
    batch_tokens,
    choose_device,
    free_memory,
    max_kept_bytes,
    usable_cores,
)
from farrank_runtimes.document_groups import GroupLimit, score_in_groups
from farrank_runtimes.runtime import (
    Capabilities,
    DocumentScores,
    Encoded,
    Encoding,
    PackingAbsent,
    Placement,
    Precision,
    PrecisionAbsent,
    Runtime,
    closed,
)
from farrank_runtimes.warm_up import COMPILED_INPUTS, measure_speed, query_input

# What documents that are scored together may take, by type of device. A GPU has the room, and would be idle
# with one document at a time.
GROUP_BYTES = {"cpu": 128 * 2**20, "cuda": 2**30}

_DTYPES: Mapping[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def dtype_of(precision: Precision) -> torch.dtype:
    """Give torch's own type. Raises: PrecisionAbsent for precisions that only exports have."""
    if precision not in _DTYPES:
        raise PrecisionAbsent(f"torch serves {' and '.join(_DTYPES)}, not {precision}")
    return _DTYPES[precision]


class TorchRuntime:
    """A ranker's modules on padded batches, one at a time: for CPUs, and backbones without a packed form.

    The encoder computes in `precision` (None: bf16 on a GPU, else fp32). The aggregator computes in fp32: it
    is light, and its sums and softmaxes over chunks are where rounding would change a ranking. On a CPU both
    use `threads`, None for as many as the process may use.
    Raises: DeviceAbsent; PrecisionAbsent for precisions that only exports have.
    """

    def __init__(
        self,
        ranker: Ranker,
        precision: Precision | None = None,
        device: str | None = None,
        threads: int | None = None,
    ) -> None:
        self._device = choose_device(device)
        on_gpu = self._device.type == "cuda"
        precision = precision or ("bf16" if on_gpu else "fp32")
        dtype = dtype_of(precision)
        if not on_gpu:
            torch.set_num_threads(threads or usable_cores())
        place(ranker.encoder.eval(), self._device, dtype)
        place(ranker.aggregator.eval(), self._device, torch.float32)
        self._encoder: Callable[..., Features] = ranker.encoder.infer
        self._explain: Callable[..., tuple[Tensor, Tensor]] = ranker.aggregator.explain
        self._reader = ranker.reader
        max_batch_tokens = batch_tokens(self._device)
        if on_gpu:
            memory = torch.cuda.get_device_properties(self._device).total_memory
            max_batch_tokens = affordable_tokens(max_batch_tokens, ranker.encoder.feature_values, memory)
        self._capabilities = Capabilities(
            "torch",
            str(self._device),
            precision,
            max_batch_tokens,
            max_kept_bytes=max_kept_bytes(self._device),
        )

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoding:
        """Run the heavy part. Raises: ValueError if there is no input; OutOfMemory, DeviceLost."""
        batch = collate(inputs, self._reader.pad_id)
        started_s = time.perf_counter()
        with torch.inference_mode(), device_failures():
            features = self._encoder(*map(self._to_device, batch))
            # A family may return a view, such as [CLS] of all positions: kept, it would keep all of them.
            features = features._replace(vectors=features.vectors.float().contiguous())
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
        return Encoded(features.rows(), time.perf_counter() - started_s)

    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        """Run the light part. Raises: OutOfMemory if a document alone does not fit; DeviceLost."""
        limit = GroupLimit(GROUP_BYTES[self._device.type])
        return score_in_groups(self._aggregate, documents, queries, device=self._device, limit=limit)

    def warm_up(self) -> float:
        """Run batches of the shapes to come; return the measured speed in tokens per second."""
        return measure_speed(self.encode, self._reader.max_input_tokens, self._capabilities.max_batch_tokens)

    def capabilities(self) -> Capabilities:
        """What runs where."""
        return self._capabilities

    def close(self) -> None:
        """Free the weights."""
        self._encoder = self._explain = closed
        free_memory(self._device)

    def _aggregate(
        self, features: Features, chunk_mask: Tensor, query: Features | None
    ) -> tuple[list[float], list[list[float]]]:
        """Aggregate, on a GPU beside the batch that is being encoded.

        Shapes: (D, C, …), (D, C), (D, …) -> scores (D,), chunk scores (D, C).
        """
        with beside(self._device):
            scores, chunk_scores = self._explain(features, chunk_mask, query)
            return scores.tolist(), chunk_scores.tolist()

    def _to_device(self, array: LongArray) -> Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)


class PackedRuntime(TorchRuntime):
    """A ranker's modules on streams of tokens: nothing is padded, and a GPU has its next batch in time.

    Raises: as TorchRuntime; SourceError if the backbone has no packed form.
    """

    def __init__(
        self,
        ranker: Ranker,
        precision: Precision | None = None,
        device: str | None = None,
        threads: int | None = None,
        *,
        attention: Attention,
        compile_by: Compile = as_written,
    ) -> None:
        super().__init__(ranker, precision, device, threads)
        on_gpu = self._device.type == "cuda"
        self._encode_stream = PackedEncoder(ranker.encoder, attention, compile_by).encode
        self._feed = CudaFeed(self._device) if on_gpu else None
        self._capabilities = replace(self._capabilities, packed=True, queued=on_gpu)

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoding:
        """Begin the heavy part. Raises: ValueError if there is no input; OutOfMemory, DeviceLost."""
        packing = pack(inputs)
        with torch.inference_mode(), device_failures():
            if self._feed is not None:
                return self._feed.begin(packing, self._encode)
            started_s = time.perf_counter()
            tokens, offsets = torch.from_numpy(packing.tokens), torch.from_numpy(packing.offsets)
            stream = TokenStream.of(tokens, offsets, packing)
            rows = stream.rows(self._encode(stream))
            return Encoded(rows, time.perf_counter() - started_s)

    def warm_up(self) -> float:
        """Run batches of the shapes to come; return the measured speed in tokens per second."""
        # With padding inside queries, tokens are further apart than in the stream: other kernels.
        forms = (False, True) if self._reader.spec.pad_query_to else (False,)
        for padded in forms:
            for count in COMPILED_INPUTS:
                self.encode([query_input(padded=padded)] * count).rows()
        return super().warm_up()

    def close(self) -> None:
        """Free the weights, and the memory that tokens go through."""
        self._encode_stream, self._feed = closed, None
        super().close()

    def _encode(self, stream: TokenStream) -> Features:
        """Shapes: T tokens of P inputs -> (P, F), or (T, F…), (P, S, F…) with roles."""
        features = self._encode_stream(stream)
        return features._replace(vectors=features.vectors.float())


def open_torch(ranker: Ranker, precision: Precision, placement: Placement) -> tuple[Runtime, str]:
    """Put a ranker on its device, packed where a fused kernel and its backbone allow; say which in words.

    Attention without a fused kernel takes input after input and gains nothing, so it must be asked for.
    Raises: DeviceAbsent, PrecisionAbsent; PackingAbsent if packed batches are asked for and impossible.
    """
    where = (precision, placement.device, placement.threads)
    if placement.packing == "padded":
        return TorchRuntime(ranker, *where), "padded batches, as configured"
    device = choose_device(placement.device)
    try:
        chosen = choose_attention(device, dtype_of(precision))
        if chosen.attention is plain_attention and placement.packing == "auto":
            if device.type == "cpu":  # no CPU has a fused kernel: that needs no explanation at every start
                return TorchRuntime(ranker, *where), "padded batches"
            raise AttentionAbsent(chosen.missing)
        compile_by = compiled if placement.compile else as_written
        packed = PackedRuntime(ranker, *where, attention=chosen.attention, compile_by=compile_by)
    except (AttentionAbsent, SourceError) as error:
        if placement.packing == "packed":
            raise PackingAbsent(f"packed batches cannot be had: {error}") from error
        return TorchRuntime(ranker, *where), f"padded batches ({error})"
    missing = f" ({chosen.missing})" if chosen.missing else ""
    return packed, f"packed batches, {chosen.name} attention{missing}"
