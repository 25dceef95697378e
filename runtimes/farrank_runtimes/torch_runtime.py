"""The PyTorch runtime: a ranker's own modules, on padded batches or on packed ones."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from farrank_rankers.backbones.forms import forms_of
from farrank_rankers.errors import AttentionAbsent, SourceError
from farrank_rankers.features import Features
from farrank_rankers.files.weights import place
from farrank_rankers.packed.attention_choice import choose_attention
from farrank_rankers.packed.packed_backbone import Compile, as_written, compiled
from farrank_rankers.packed.pattern import Attention
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed.stream import TokenStream, pack
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput, LongArray, Role, collate
from farrank_runtimes.cores import usable_cores
from farrank_runtimes.cuda_queue import CudaFeed, on_side_stream
from farrank_runtimes.devices import (
    affordable_tokens,
    batch_tokens,
    choose_device,
    max_kept_bytes,
)
from farrank_runtimes.document_groups import GroupLimit
from farrank_runtimes.loaded_runtime import COMPILED_INPUTS, Encode, LoadedRuntime, query_input
from farrank_runtimes.runtime import (
    Capabilities,
    CompletedBatch,
    Encoding,
    PackingAbsent,
    Placement,
    Precision,
    PrecisionAbsent,
    Runtime,
)

# Limits of documents that are scored together, by type of device. A GPU has the memory, and would be idle
# with one document at a time.
GROUP_BYTES = {"cpu": 128 * 2**20, "cuda": 2**30}

_DTYPES: Mapping[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def dtype_of(precision: Precision) -> torch.dtype:
    """Return torch's dtype. Raises: PrecisionAbsent for precisions that only exports have."""
    if precision not in _DTYPES:
        raise PrecisionAbsent(f"torch serves {' and '.join(_DTYPES)}, not {precision}")
    return _DTYPES[precision]


class TorchRuntime(LoadedRuntime):
    """A ranker's modules: on padded batches, or, with a packed form of `attention`, on streams of tokens.

    The encoder computes in `precision` (None: bf16 on a GPU, else fp32). The aggregator computes in fp32: it
    is light, and its sums and softmaxes over chunks are where rounding would change a ranking. On a CPU both
    use `threads`, None for as many as the process may use. `compile_by` is applied to the functions of packed
    layers: `compiled` or `as_written`; padded batches run as written.
    Raises: DeviceAbsent; PrecisionAbsent for precisions that only exports have; SourceError if batches are to
    be packed and the backbone has no packed form.
    """

    def __init__(
        self,
        ranker: Ranker,
        precision: Precision | None = None,
        device: str | None = None,
        threads: int | None = None,
        attention: Attention | None = None,
        compile_by: Compile = as_written,
    ) -> None:
        on = choose_device(device)
        on_gpu = on.type == "cuda"
        precision = precision or ("bf16" if on_gpu else "fp32")
        dtype = dtype_of(precision)
        max_batch_tokens = batch_tokens(on)
        if on_gpu:
            memory = torch.cuda.get_device_properties(on).total_memory
            max_batch_tokens = affordable_tokens(max_batch_tokens, ranker.encoder.feature_values, memory)
        else:
            torch.set_num_threads(threads or usable_cores())
        place(ranker.encoder.eval(), on, dtype)
        place(ranker.aggregator.eval(), on, torch.float32)
        if attention is None:
            encode = padded_encode(ranker, on)
        else:
            encode = packed_encode(ranker, on, attention, compile_by)
            expanded = ranker.spec.maxsim
            if expanded is not None and expanded.expand_to and not expanded.expansion_attended:
                encode = partial(_expanded_apart, encode, padded_encode(ranker, on))
        capabilities = Capabilities(
            runtime="torch",
            device=str(on),
            precision=precision,
            max_batch_tokens=max_batch_tokens,
            packed=attention is not None,
            queued=attention is not None and on_gpu,
            max_kept_bytes=max_kept_bytes(on),
            weight_bytes=sum(each.nbytes for each in (*ranker.parameters(), *ranker.buffers())),
        )
        super().__init__(
            encode,
            partial(_aggregate, ranker.aggregator.explain, on),
            capabilities,
            ranker.reader.max_input_tokens,
            GroupLimit(GROUP_BYTES[on.type]),
            ranker.spec.similarity,
            ranker.spec.maxsim,
        )
        self._pads_queries = bool(ranker.spec.pad_query_to)

    def warm_up(self) -> float:
        """Run batches of typical shapes; return the measured speed in tokens per second."""
        if self._capabilities.packed:
            # With padding inside queries, places differ from the stream's, which needs other kernels.
            for padded in (False, True) if self._pads_queries else (False,):
                for count in COMPILED_INPUTS:
                    self.encode([query_input(padded=padded)] * count).rows()
        return super().warm_up()


def padded_encode(ranker: Ranker, device: torch.device) -> Encode:
    """Encode padded batches, one at a time: for CPUs, and backbones without a packed form."""

    def to_device(array: LongArray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)

    def encode(inputs: Sequence[EncoderInput]) -> CompletedBatch:
        batch = collate(inputs, ranker.reader.pad_id)
        started_s = time.perf_counter()
        with torch.inference_mode():
            features = ranker.encoder.infer(*map(to_device, batch))
            # A family may return a view, such as [CLS] of all positions, which would keep all of them in
            # memory.
            features = features._replace(vectors=features.vectors.float().contiguous())
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        return CompletedBatch(features.rows(), time.perf_counter() - started_s)

    return encode


def packed_encode(ranker: Ranker, device: torch.device, attention: Attention, compile_by: Compile) -> Encode:
    """Encode streams of tokens without padding; a GPU has its next batch in time.

    Raises: SourceError if the backbone has no packed form.
    """
    encoder = PackedEncoder(ranker.encoder, attention, compile_by)
    feed = CudaFeed(device) if device.type == "cuda" else None

    def encode_stream(stream: TokenStream) -> Features:
        """Shapes: T tokens of P inputs -> (P, F), or (T, F…), (P, S, F…) with roles."""
        features = encoder.encode(stream)
        return features._replace(vectors=features.vectors.float())

    def encode(inputs: Sequence[EncoderInput]) -> Encoding:
        packing = pack(inputs)
        with torch.inference_mode():
            if feed is not None:
                return feed.begin(packing, encode_stream)
            started_s = time.perf_counter()
            tokens, offsets = torch.from_numpy(packing.tokens), torch.from_numpy(packing.offsets)
            stream = TokenStream.of(tokens, offsets, packing)
            return CompletedBatch(stream.rows(encode_stream(stream)), time.perf_counter() - started_s)

    return encode


@dataclass(frozen=True, slots=True, eq=False)
class EncodingOfParts:
    """A batch whose parts were begun apart; each has the places of its inputs in the batch."""

    parts: Sequence[tuple[Sequence[int], Encoding]]

    def rows(self) -> list[Features]:
        """Wait for all parts; return each input's features, in the order of the batch."""
        found = {
            place: row for places, part in self.parts for place, row in zip(places, part.rows(), strict=True)
        }
        return [found[place] for place in range(len(found))]

    def device_s(self) -> float:
        """Return the time that the device was busy with all parts."""
        return sum(part.device_s() for _, part in self.parts)


def _expanded_apart(packed: Encode, padded: Encode, inputs: Sequence[EncoderInput]) -> Encoding:
    """Encode the queries with expansion tokens as a padded batch, all other inputs as a packed one.

    Expansion tokens attend to the others, but not they to them. Streams have no attention of one direction,
    and a call has one query of about 32 tokens. On a GPU it runs beside the packed batch, on another stream.
    """
    expanded = [place for place, item in enumerate(inputs) if (item.roles == int(Role.EXPANSION)).any()]
    others = sorted(set(range(len(inputs))) - set(expanded))
    parts = [
        (places, encode([inputs[place] for place in places]))
        for places, encode in ((others, packed), (expanded, padded))
        if places
    ]
    return parts[0][1] if len(parts) == 1 else EncodingOfParts(parts)


def _aggregate(
    explain: Callable[..., tuple[Tensor, Tensor]],
    device: torch.device,
    features: Features,
    chunk_mask: Tensor,
    query: Features | None,
) -> tuple[list[float], list[list[float]]]:
    """Aggregate, on a GPU in parallel with the batch that is being encoded.

    Shapes: (D, C, …), (D, C), (D, …) -> scores (D,), chunk scores (D, C).
    """
    with on_side_stream(device):
        scores, chunk_scores = explain(features, chunk_mask, query)
        return scores.tolist(), chunk_scores.tolist()


def open_torch(ranker: Ranker, precision: Precision, placement: Placement) -> tuple[Runtime, str]:
    """Put a ranker on its device, packed if a fused kernel and its backbone allow; also return the reason.

    Attention without a fused kernel computes input by input and gains nothing with most backbones, so packing
    must be configured there.
    Raises: DeviceAbsent, PrecisionAbsent; PackingAbsent if packed batches are configured and impossible.
    """
    where = (precision, placement.device, placement.threads)
    if placement.packing == "padded":
        return TorchRuntime(ranker, *where), "padded batches, as configured"
    device = choose_device(placement.device)
    try:
        chosen = choose_attention(device, dtype_of(precision))
        gains = forms_of(ranker.encoder.facts.architecture).packs_unfused
        if chosen.attention is plain_attention and placement.packing == "auto" and not gains:
            if device.type == "cpu":  # no CPU has a fused kernel, so the reason is left out
                return TorchRuntime(ranker, *where), "padded batches"
            raise AttentionAbsent(chosen.missing)
        compile_by = compiled if placement.compile else as_written
        packed = TorchRuntime(ranker, *where, attention=chosen.attention, compile_by=compile_by)
    except (AttentionAbsent, SourceError) as error:
        if placement.packing == "packed":
            raise PackingAbsent(f"packed batches are not available: {error}") from error
        return TorchRuntime(ranker, *where), f"padded batches ({error})"
    missing = f" ({chosen.missing})" if chosen.missing and not gains else ""
    return packed, f"packed batches, {chosen.name} attention{missing}"
