"""Flash kernels for streams: those of the flash_attn package, and torch's own.

Both support half precision, and patterns without their own masks or scores. flash_attn supports ALiBi's
slopes, torch's kernel does not.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from farrank_rankers.errors import AttentionAbsent
from farrank_rankers.packed.pattern import Heads, Pattern

HALF_PRECISION = (torch.float16, torch.bfloat16)
# Both kernels read 16 bytes of a head at once.
HEAD_MULTIPLE = 8

FLASH_ATTN = "flash_attn"
# The first release that supports slopes, and the first untested one.
OLDEST, TOO_NEW = (2, 4), (3,)

TORCH_VARLEN = "torch's variable-length attention"
ANY_DISTANCE = -1


class FlashAttention:
    """The flash_attn package as a `pattern.Attention`: full, causal and windowed, with ALiBi's slopes.

    ALiBi is flash_attn's: -slope · |i + U - T - j| within an input of T queries and U keys, which is the
    distance between two tokens if T = U, causal or not.
    Raises: AttentionAbsent if the package is not installed, of an unsupported release, or does not load;
    ValueError for an unsupported dtype or pattern.
    """

    def __init__(self) -> None:
        self.version, self._kernel = _installed()

    def __call__(self, heads: Heads, pattern: Pattern) -> Tensor:
        """Shapes: query (T, A, D), key and value (U, B, D) -> (T, A, D)."""
        _check(heads, pattern, FLASH_ATTN)
        query, key, value, asking, seen, scale = heads.padded(HEAD_MULTIPLE)
        mixed: Tensor = self._kernel(
            query,
            key,
            value,
            cu_seqlens_q=asking.offsets,
            cu_seqlens_k=seen.offsets,
            max_seqlen_q=asking.longest,
            max_seqlen_k=seen.longest,
            softmax_scale=scale,
            causal=pattern.causal,
            window_size=_window(pattern),
            alibi_slopes=None if pattern.slopes is None else pattern.slopes.float(),
        )  # (T, A, D or more)
        return mixed[..., : heads.query.shape[-1]]


class VarlenAttention:
    """torch's own variable-length kernel as a `pattern.Attention`: full, causal and windowed.

    Raises: ValueError for an unsupported dtype or pattern.
    """

    def __init__(self, kernel: Callable[..., Any] | None = None) -> None:
        # Imported here because it imports the compiler: two seconds of a start, needed by few devices.
        from torch.nn.attention.varlen import varlen_attn

        self._kernel: Callable[..., Any] = kernel or varlen_attn

    def __call__(self, heads: Heads, pattern: Pattern) -> Tensor:
        """Shapes: query (T, A, D), key and value (U, B, D) -> (T, A, D)."""
        _check(heads, pattern, TORCH_VARLEN)
        if pattern.slopes is not None:
            raise ValueError(f"pattern has slopes; {TORCH_VARLEN} takes none")
        query, key, value, asking, seen, scale = heads.padded(HEAD_MULTIPLE)
        mixed: Tensor = self._kernel(
            query,
            key,
            value,
            cu_seq_q=asking.offsets,
            cu_seq_k=seen.offsets,
            max_q=asking.longest,
            max_k=seen.longest,
            window_size=_window(pattern),
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # (T, A, D or more)
        return mixed[..., : heads.query.shape[-1]]


def is_for_flash(pattern: Pattern, heads: Heads, takes_slopes: bool) -> bool:
    """Whether a flash kernel supports a pattern.

    Flash kernels align the last query with the last key, `Pattern` the first with the first: with inputs of
    different lengths they support only patterns that do not depend on places.
    """
    if pattern.is_general or (pattern.slopes is not None and not takes_slopes):
        return False
    return not pattern.is_placed or heads.asking.lengths == heads.seen.lengths


def _window(pattern: Pattern) -> tuple[int, int]:
    """Give the numbers of tokens that a token sees before and after itself, as both kernels count them."""
    reach = ANY_DISTANCE if pattern.window is None else pattern.window
    return reach, 0 if pattern.causal else reach


def _check(heads: Heads, pattern: Pattern, kernel: str) -> None:
    """Refuse arguments that flash kernels do not support."""
    if heads.query.dtype not in HALF_PRECISION:
        raise ValueError(f"query is in {heads.query.dtype}; {kernel} takes only float16 and bfloat16")
    if pattern.is_general:
        raise ValueError(f"pattern has its own mask or scores; {kernel} takes neither")
    if not is_for_flash(pattern, heads, takes_slopes=True):
        raise ValueError(f"asking and seen differ in length; {kernel} counts places from their ends")


def _installed() -> tuple[str, Callable[..., Any]]:
    """Read the installed release of flash_attn, and import its kernel if it is supported."""
    try:
        installed = version(FLASH_ATTN)
    except PackageNotFoundError:
        raise AttentionAbsent(f"{FLASH_ATTN} is not installed") from None
    numbers = tuple(int(part) for part in installed.split("+")[0].split(".") if part.isdigit())
    if not OLDEST <= numbers < TOO_NEW:
        served = f"from {'.'.join(map(str, OLDEST))} to below {TOO_NEW[0]}"
        raise AttentionAbsent(f"{FLASH_ATTN} {installed} is installed; releases {served} are served")
    try:
        return installed, import_module(FLASH_ATTN).flash_attn_varlen_func
    except (ImportError, OSError, AttributeError) as error:
        # A package built for another torch: this is the linker's message.
        raise AttentionAbsent(f"{FLASH_ATTN} {installed} does not load: {error}") from error
