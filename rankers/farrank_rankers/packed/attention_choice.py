"""Which kernels serve streams on a device: chosen at the start, and said."""

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from farrank_rankers.errors import AttentionAbsent
from farrank_rankers.packed.attention.varlen import IS_SERVED, VarlenAttention
from farrank_rankers.packed.pattern import HALF, Attention, Pattern, is_placed
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed.stream import Segments

OLDEST_CAPABILITY = (8, 0)


class Chosen(NamedTuple):
    """Attention for a device; `name` is for reports, `missing` says why it is not a faster one."""

    attention: Attention
    name: str
    missing: str = ""


class FusedAttention:
    """Give every pattern to the fastest kernel that serves it; FlexAttention comes when it is needed.

    Raises: AttentionAbsent at the first pattern that needs FlexAttention, where it cannot be compiled.
    """

    def __init__(self, flash: Attention, takes_slopes: bool) -> None:
        self._flash = flash
        self._takes_slopes = takes_slopes

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        asking: Segments,
        seen: Segments,
        pattern: Pattern,
        scale: float | None = None,
    ) -> Tensor:
        """Shapes: query (T, A, D), key and value (U, B, D) -> (T, A, D)."""
        kernel = self._flash if self._is_for_flash(pattern, asking, seen) else self._flex
        return kernel(query, key, value, asking, seen, pattern, scale)

    def _is_for_flash(self, pattern: Pattern, asking: Segments, seen: Segments) -> bool:
        """Whether the flash kernel takes a pattern."""
        if pattern.is_general or (pattern.slopes is not None and not self._takes_slopes):
            return False
        return asking is seen or not is_placed(pattern) or asking.lengths == seen.lengths

    @cached_property
    def _flex(self) -> Attention:
        from farrank_rankers.packed.flex_attention import FlexAttention, check_compiler

        check_compiler()
        return FlexAttention()


def choose_attention(device: torch.device, dtype: torch.dtype) -> Chosen:
    """Choose attention for streams in `dtype` on a device.

    Raises: AttentionAbsent if a GPU has none; padded batches are what serves it.
    """
    if device.type != "cuda":
        return Chosen(plain_attention, "plain", f"fused kernels run on CUDA, not on {device.type}")
    if dtype not in HALF:
        return Chosen(plain_attention, "plain", f"fused kernels take float16 and bfloat16, not {dtype}")
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        raise AttentionAbsent(
            f"{device} has compute capability {_dotted(capability)}, flash kernels need "
            f"{_dotted(OLDEST_CAPABILITY)} or above: padded batches are what serves"
        )
    from farrank_rankers.packed.attention.flash import FlashAttention

    try:
        flash = FlashAttention()
    except AttentionAbsent as absent:
        return _of_torch(str(absent))
    return Chosen(FusedAttention(flash, takes_slopes=True), f"flash_attn {flash.version} and flex")


def _of_torch(missing: str) -> Chosen:
    """Choose torch's own kernels. Raises: AttentionAbsent if this torch has none that are served."""
    if not torch.backends.cuda.is_flash_attention_available():
        raise AttentionAbsent(f"{missing}, and torch {torch.__version__} was built without FlashAttention")
    if not IS_SERVED:
        raise AttentionAbsent(
            f"{missing}, and varlen_attn of torch {torch.__version__} takes no window_size and scale; "
            f"2.11 is the first whose does"
        )
    return Chosen(FusedAttention(VarlenAttention(), takes_slopes=False), "torch varlen and flex", missing)


def _dotted(capability: tuple[int, int]) -> str:
    """Write a compute capability as NVIDIA does."""
    return ".".join(map(str, capability))
