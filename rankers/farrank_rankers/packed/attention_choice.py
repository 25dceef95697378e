"""Choose the attention kernels for a device once, at the start, with the reason."""

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from farrank_rankers.errors import AttentionAbsent
from farrank_rankers.packed.flash_kernels import HALF_PRECISION, FlashAttention, VarlenAttention, is_for_flash
from farrank_rankers.packed.pattern import Attention, Heads, Pattern
from farrank_rankers.packed.plain_attention import plain_attention

OLDEST_CAPABILITY = (8, 0)


class AttentionChoice(NamedTuple):
    """Attention for a device; `name` is for reports, `missing` is the reason that it is not a faster one."""

    attention: Attention
    name: str
    missing: str = ""


class FusedAttention:
    """Pass every pattern to the fastest kernel that supports it; FlexAttention is imported only if needed.

    Raises: AttentionAbsent at the first pattern that needs FlexAttention, if it cannot be compiled.
    """

    def __init__(self, flash: Attention, takes_slopes: bool) -> None:
        self._flash = flash
        self._takes_slopes = takes_slopes

    def __call__(self, heads: Heads, pattern: Pattern) -> Tensor:
        """Shapes: query (T, A, D), key and value (U, B, D) -> (T, A, D)."""
        kernel = self._flash if is_for_flash(pattern, heads, self._takes_slopes) else self._flex
        return kernel(heads, pattern)

    @cached_property
    def _flex(self) -> Attention:
        from farrank_rankers.packed.flex_attention import FlexAttention, check_compiler

        check_compiler()
        return FlexAttention()


def choose_attention(device: torch.device, dtype: torch.dtype) -> AttentionChoice:
    """Choose attention for streams in `dtype` on a device.

    Raises: AttentionAbsent if a GPU has none: it needs padded batches.
    """
    if device.type != "cuda":
        return AttentionChoice(plain_attention, "plain", "packing gains nothing without a GPU")
    if dtype not in HALF_PRECISION:
        name = str(dtype).removeprefix("torch.")
        return AttentionChoice(
            plain_attention, "plain", f"packing gains nothing in {name}: kernels need 16 bits"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        raise AttentionAbsent(
            f"{device} has compute capability {_dotted(capability)}, flash kernels need "
            f"{_dotted(OLDEST_CAPABILITY)} or above: serve padded batches"
        )
    try:
        flash = FlashAttention()
        return AttentionChoice(
            FusedAttention(flash, takes_slopes=True), f"flash_attn {flash.version} and flex"
        )
    except AttentionAbsent as absent:
        missing = str(absent)
    if not torch.backends.cuda.is_flash_attention_available():
        raise AttentionAbsent(f"{missing}, and torch {torch.__version__} was built without FlashAttention")
    varlen = FusedAttention(VarlenAttention(), takes_slopes=False)
    return AttentionChoice(varlen, "torch varlen and flex", missing)


def _dotted(capability: tuple[int, int]) -> str:
    """Write a compute capability as NVIDIA does."""
    return ".".join(map(str, capability))
