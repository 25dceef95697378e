"""One vector for an input, from those of its tokens."""

from torch import Tensor

from farrank_rankers.family import Pooling
from farrank_rankers.tokens import Role


def pooled(hidden: Tensor, roles: Tensor, pooling: Pooling) -> Tensor:
    """Take the first token's vector, or the mean over all tokens but padding.

    Shapes: hidden (P, L, H), roles (P, L) -> (P, H).
    """
    if pooling == "cls":
        return hidden[:, 0]  # (P, H)
    weights = (roles != Role.PADDING)[:, :, None].to(hidden.dtype)  # (P, L, 1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)  # (P, H)
