"""The texts of query and document, taken out of token vectors of chunks: where token interaction starts."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence

from farrank_rankers.features import Features
from farrank_rankers.tokens import Role


class Texts(NamedTuple):
    """The query's tokens as the first chunk saw them, and those of all chunks of a document, joined.

    A product with `membership`, which is 1 where a token is a chunk's, else 0, sums over each chunk's tokens.
    Shapes: query (Q, F…), document (T, F…), membership (T, C).
    """

    query: Tensor
    document: Tensor
    membership: Tensor


def texts(features: Features, chunk_mask: Tensor) -> Iterator[Texts]:
    """Take each document apart; padding and special tokens stay behind.

    One document at a time, for token vectors are large and what families compute from pairs of them larger.
    Shapes: (D, C, S, F…), (D, C) -> D texts.
    Raises: ValueError if the features are not those of tokens.
    """
    if features.roles is None:
        raise ValueError("features have no roles; token interaction needs a vector and a role for each token")
    for vectors, roles, present in zip(features.vectors, features.roles, chunk_mask, strict=True):
        own = (roles == Role.DOCUMENT) & present[:, None]  # (C, S)
        chunks = own.nonzero()[:, 0]  # (T,)
        yield Texts(
            query=vectors[0][roles[0] == Role.QUERY],  # (Q, F…)
            document=vectors[own],  # (T, F…)
            membership=one_hot(chunks, len(present)).to(vectors.dtype),  # (T, C)
        )


def by_query_token(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Put together what documents have for each token of their queries, which may differ in length.

    Shapes: (Q, …) each -> (D, Q, …), mask (D, Q).
    """
    lengths = torch.tensor([len(row) for row in rows], device=rows[0].device)  # (D,)
    padded = pad_sequence(list(rows), batch_first=True)  # (D, Q, …)
    return padded, torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]


def over_chunks(values: Tensor, masks: Tensor) -> Tensor:
    """Sum over the chunks that each mask keeps.

    Shapes: (D, Q, C, …), (V, D, C) -> (V, D, Q, …).
    """
    return torch.einsum("dqc...,vdc->vdq...", values, masks.to(values.dtype))
