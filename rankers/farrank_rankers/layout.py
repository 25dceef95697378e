"""How the token vectors of several inputs lie together, and what families take out of them."""

from typing import Protocol

import torch
from torch import Tensor

from farrank_rankers.tokens import Role


class Layout(Protocol):
    """Token values of P inputs, (…, F…) in dimensions of the layout's own, and the tokens' roles."""

    @property
    def roles(self) -> Tensor:
        """What each token is, of `tokens.Role`."""
        ...

    def first(self, values: Tensor) -> Tensor:
        """Take each input's first token. Shapes: (…, F…) -> (P, F…)."""
        ...

    def mean(self, values: Tensor) -> Tensor:
        """Average over each input's tokens, padding left out. Shapes: (…, H) -> (P, H)."""
        ...

    def leading(self, values: Tensor, count: int) -> Tensor:
        """Take what stands in the first `count` places of each input, 0 where nothing does.

        Shapes: (…, F…) -> (P, count, F…), a copy.
        """
        ...


class Padded:
    """A row for each input, padded on the right. Shapes: roles (P, L), values (P, L, F…)."""

    def __init__(self, roles: Tensor) -> None:
        self.roles = roles

    def first(self, values: Tensor) -> Tensor:
        """Shapes: (P, L, F…) -> (P, F…)."""
        return values[:, 0]

    def mean(self, values: Tensor) -> Tensor:
        """Shapes: (P, L, H) -> (P, H)."""
        weights = (self.roles != Role.PADDING)[:, :, None].to(values.dtype)  # (P, L, 1)
        return (values * weights).sum(dim=1) / weights.sum(dim=1)  # (P, H)

    def leading(self, values: Tensor, count: int) -> Tensor:
        """Shapes: (P, L, F…) -> (P, count, F…)."""
        places = torch.arange(count, device=values.device)  # (count,)
        there = places.clamp(max=values.shape[1] - 1)  # (count,), the last one again beyond a short row
        beyond = (places != there).reshape(1, -1, *[1] * (values.dim() - 2))  # (1, count, 1…)
        return values.index_select(1, there).masked_fill(beyond, 0)
