"""Features, an encoder's output: their layout in a batch, and batches of documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from farrank_rankers.tokens import Role


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Where the token vectors of a document's chunks end, one chunk after the other. Shapes: ends (C,).

    `codec` is that of the vectors, a `farrank_runtimes.token_codecs.TokenCodec`; None if they are numbers.
    """

    ends: NDArray[np.int64]
    codec: Any = None


class Features(NamedTuple):
    """One vector per input (`roles` None), or one per token with the tokens' roles.

    Shapes, after one or more leading dimensions (P inputs; D documents of C chunks): vectors (…, F) or
    (…, S, F…), roles (…, S) of `Role` values. Vectors of role PADDING are never read.

    With `windows`, they are one document's token vectors that count, without padding: vectors (T, …).
    """

    vectors: Tensor
    roles: Tensor | None = None
    windows: Windows | None = None

    @property
    def chunks(self) -> int:
        """The number of a document's chunks."""
        return len(self.vectors) if self.windows is None else len(self.windows.ends)

    def first(self, chunks: int) -> "Features":
        """Keep only a document's first chunks."""
        if self.windows is not None:
            ends = self.windows.ends[:chunks]
            return Features(self.vectors[: int(ends[-1])], None, Windows(ends, self.windows.codec))
        return Features(self.vectors[:chunks], None if self.roles is None else self.roles[:chunks])

    @property
    def token_roles(self) -> Tensor:
        """The tokens' roles. Raises: ValueError if there is one vector per input."""
        if self.roles is None:
            raise ValueError("features have no roles: they must have a vector and a role for each token")
        return self.roles

    def rows(self) -> list["Features"]:
        """Split by the first dimension; padding at the end of tokens is left out."""
        if self.roles is None:
            return [Features(row) for row in self.vectors]
        return [
            Features(row[:end], roles[:end])
            for row, roles, end in zip(self.vectors, self.roles, ends(self.roles), strict=True)
        ]

    def repeated(self, times: int) -> "Features":
        """Repeat one row without copying it. Shapes: (1, …) -> (times, …)."""
        roles = None if self.roles is None else self.roles.expand(times, *self.roles.shape[1:])
        return Features(self.vectors.expand(times, *self.vectors.shape[1:]), roles)

    def to(self, device: torch.device | str) -> "Features":
        """Move all tensors to a device."""
        roles = None if self.roles is None else self.roles.to(device)
        return Features(self.vectors.to(device), roles, self.windows)

    @property
    def nbytes(self) -> int:
        """The size of the tensors in bytes."""
        ends = 0 if self.windows is None else self.windows.ends.nbytes
        return self.vectors.nbytes + (0 if self.roles is None else self.roles.nbytes) + ends


def ends(roles: Tensor) -> list[int]:
    """Find where the padding at the end of each row begins. Shapes: (P, S) -> P places."""
    positions = torch.arange(1, roles.shape[1] + 1, device=roles.device)  # (S,)
    found: list[int] = (positions * (roles != Role.PADDING)).amax(dim=1).tolist()  # (P,)
    return found


def stacked(rows: Sequence[Features]) -> Features:
    """Stack rows; rows of tokens are padded to the longest.

    Shapes: (F) each -> (N, F); (S, F…) with roles (S,) each -> (N, S, F…).
    """
    if rows[0].roles is None:
        return Features(torch.stack([row.vectors for row in rows]))
    return Features(
        pad_sequence([row.vectors for row in rows], batch_first=True),
        pad_sequence([row.token_roles for row in rows], batch_first=True, padding_value=Role.PADDING),
    )


def batched(documents: Sequence[Features]) -> tuple[Features, Tensor]:
    """Stack documents with different numbers of chunks and chunks of different lengths.

    Shapes: (C, F) or (C, S, F…) each -> (D, C, F) or (D, C, S, F…), chunk mask (D, C).
    """
    counts = [len(document.vectors) for document in documents]
    vectors, device = [document.vectors for document in documents], documents[0].vectors.device
    whole = documents[0].roles is None
    if whole and min(counts) == max(counts):
        # Mainly for the single document of a small call, which waits for every operation here.
        mask = torch.ones(len(counts), counts[0], dtype=torch.bool, device=device)
        return Features(torch.stack(vectors)), mask
    mask = torch.arange(max(counts), device=device) < torch.tensor(counts, device=device)[:, None]
    if whole:
        return Features(pad_sequence(vectors, batch_first=True)), mask
    shape = (len(documents), max(counts), max(document.token_roles.shape[1] for document in documents))
    joined = vectors[0].new_zeros(shape + vectors[0].shape[2:])  # (D, C, S, F…)
    roles = documents[0].token_roles.new_full(shape, Role.PADDING)  # (D, C, S)
    for row, (count, document) in enumerate(zip(counts, documents, strict=True)):
        tokens = document.vectors.shape[1]
        joined[row, :count, :tokens] = document.vectors
        roles[row, :count, :tokens] = document.token_roles
    return Features(joined, roles), mask


def by_document(features: Features, counts: Sequence[int]) -> tuple[Features, Tensor]:
    """Divide inputs among documents, each of which has consecutive inputs.

    Shapes: (P, …), D counts whose sum is P -> (D, C, …), chunk mask (D, C).
    """
    vectors = torch.split(features.vectors, list(counts))
    if features.roles is None:
        return batched([Features(each) for each in vectors])
    roles = torch.split(features.roles, list(counts))
    return batched([Features(*each) for each in zip(vectors, roles, strict=True)])


class Layout(Protocol):
    """Token values of P inputs, (…, F…) in dimensions of the layout's own, and the tokens' roles."""

    @property
    def roles(self) -> Tensor:
        """Each token's role, of `tokens.Role`."""
        ...

    def first(self, values: Tensor) -> Tensor:
        """Take each input's first token. Shapes: (…, F…) -> (P, F…)."""
        ...

    def last(self, values: Tensor) -> Tensor:
        """Take each input's last token that is not padding. Shapes: (…, F…) -> (P, F…)."""
        ...

    def mean(self, values: Tensor) -> Tensor:
        """Average over each input's tokens, without padding. Shapes: (…, H) -> (P, H)."""
        ...

    def with_ends(self, values: Tensor, firsts: Tensor, lasts: Tensor) -> Tensor:
        """Replace the values of each input's first and last token. Shapes: (…, F), (P, F) twice -> (…, F)."""
        ...

    def leading(self, values: Tensor, count: int) -> Tensor:
        """Take the values at the first `count` places of each input, 0 at places without a token.

        Shapes: (…, F…) -> (P, count, F…), a copy.
        """
        ...


class PaddedFeatures:
    """A row for each input, padded on the right. Shapes: roles (P, L), values (P, L, F…)."""

    def __init__(self, roles: Tensor) -> None:
        self.roles = roles

    def first(self, values: Tensor) -> Tensor:
        """Shapes: (P, L, F…) -> (P, F…)."""
        return values[:, 0]

    def last(self, values: Tensor) -> Tensor:
        """Shapes: (P, L, F…) -> (P, F…)."""
        places = torch.arange(values.shape[1], device=values.device)  # (L,)
        rows = torch.arange(values.shape[0], device=values.device)  # (P,)
        return values[rows, self._last_of(places)]

    def _last_of(self, places: Tensor) -> Tensor:
        """Shapes: (L,) -> (P,)."""
        return (places * (self.roles != Role.PADDING)).amax(dim=1)

    def mean(self, values: Tensor) -> Tensor:
        """Shapes: (P, L, H) -> (P, H)."""
        weights = (self.roles != Role.PADDING)[:, :, None].to(values.dtype)  # (P, L, 1)
        # An empty text without special tokens has the mean 0.
        return (values * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)  # (P, H)

    def with_ends(self, values: Tensor, firsts: Tensor, lasts: Tensor) -> Tensor:
        """Shapes: (P, L, F), (P, F), (P, F) -> (P, L, F)."""
        places = torch.arange(values.shape[1], device=values.device)  # (L,)
        is_last = places == self._last_of(places)[:, None]  # (P, L)
        ended = torch.where(is_last[..., None], lasts[:, None], values)
        return torch.where((places == 0)[:, None], firsts[:, None], ended)

    def leading(self, values: Tensor, count: int) -> Tensor:
        """Shapes: (P, L, F…) -> (P, count, F…)."""
        places = torch.arange(count, device=values.device)  # (count,)
        there = places.clamp(max=values.shape[1] - 1)  # (count,), the last one again beyond a short row
        beyond = (places != there).reshape(1, -1, *[1] * (values.dim() - 2))  # (1, count, 1…)
        return values.index_select(1, there).masked_fill(beyond, 0)
