"""The flash_attn package, where it is installed: every token, causally, and with ALiBi's slopes."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import Tensor

from farrank_rankers.errors import AttentionAbsent
from farrank_rankers.packed.pattern import Pattern, check_half_precision, check_pattern, widened
from farrank_rankers.packed.stream import Segments

NAME = "flash_attn"
# The first that takes slopes, and what nobody has tried.
OLDEST, TOO_NEW = (2, 4), (3,)
WIDTH = 8


class FlashAttention:
    """Attend as `interface.Attention` says, in half precision, without masks or scores of one's own.

    ALiBi is flash_attn's own: -slope · |i + U - T - j| within an input of T tokens that ask and U that are
    seen, which is the distance between two tokens where T = U, causal or not.
    Raises: AttentionAbsent if the package is not installed, of a release that is not served, or does not
    load; ValueError for a dtype or a pattern it cannot take.
    """

    def __init__(self) -> None:
        self.version = _served_version()
        self._kernel = _kernel(self.version)

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
        check_half_precision(query, NAME)
        check_pattern(pattern, asking, seen, NAME)
        width = query.shape[-1]
        query, key, value = widened(WIDTH, query, key, value)
        mixed: Tensor = self._kernel(
            query,
            key,
            value,
            cu_seqlens_q=asking.offsets,
            cu_seqlens_k=seen.offsets,
            max_seqlen_q=asking.longest,
            max_seqlen_k=seen.longest,
            softmax_scale=width**-0.5 if scale is None else scale,
            causal=pattern.causal,
            alibi_slopes=None if pattern.slopes is None else pattern.slopes.float(),
        )  # (T, A, D or more)
        return mixed[..., :width]


def _served_version() -> str:
    """Read which release is installed, without importing it."""
    try:
        installed = version(NAME)
    except PackageNotFoundError:
        raise AttentionAbsent(f"{NAME} is not installed") from None
    numbers = tuple(int(part) for part in installed.split("+")[0].split(".") if part.isdigit())
    if not OLDEST <= numbers < TOO_NEW:
        served = f"from {'.'.join(map(str, OLDEST))} to below {TOO_NEW[0]}"
        raise AttentionAbsent(f"{NAME} {installed} is installed; releases {served} are served")
    return installed


def _kernel(installed: str) -> Callable[..., Any]:
    """Import the kernel; a package built for another torch fails here, with the linker's words."""
    try:
        kernel: Callable[..., Any] = import_module(NAME).flash_attn_varlen_func
    except (ImportError, OSError, AttributeError) as error:
        raise AttentionAbsent(f"{NAME} {installed} does not load: {error}") from error
    return kernel
