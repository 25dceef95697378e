"""Packed or padded: which form of the torch runtime serves a ranker, chosen at the start, and said."""

from farrank_rankers.errors import AttentionAbsent, SourceError
from farrank_rankers.packed.attention.choose import Chosen, choose_attention
from farrank_rankers.packed.attention.plain import plain_attention
from farrank_rankers.packed.backbones.compiling import as_written, compiled
from farrank_rankers.ranker import Ranker
from farrank_runtimes.interface import PackingAbsent, Precision, Runtime
from farrank_runtimes.openers import Placement
from farrank_runtimes.packed_runtime import PackedRuntime
from farrank_runtimes.torch_modules import TorchModules
from farrank_runtimes.torch_runtime import TorchRuntime


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
