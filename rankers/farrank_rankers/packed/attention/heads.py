"""Heads as kernels take them: of a width that is a multiple of theirs, as many of keys as of queries."""

from torch import Tensor
from torch.nn.functional import pad


def widened(multiple: int, *heads: Tensor) -> tuple[Tensor, ...]:
    """Put zeros behind every head, which change no score; most are wide enough and stay as they are.

    Shapes: (T, A, D) each -> (T, A, D rounded up).
    """
    missing = -heads[0].shape[-1] % multiple
    return tuple(pad(each, (0, missing)) for each in heads) if missing else heads


def repeated(count: int, *heads: Tensor) -> tuple[Tensor, ...]:
    """Repeat heads that several queries share. Shapes: (U, B, D) each -> (U, B · count, D)."""
    return tuple(each.repeat_interleave(count, dim=1) for each in heads) if count > 1 else heads
