"""The texts of query and document, taken out of token vectors of chunks: where token interaction starts."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from farrank_rankers.features import Features
from farrank_rankers.tokens import Role

# Values that are read or computed at once. On a CPU 4 MB of them, which caches hold: a document of some
# hundred tokens is read alone. On a GPU 512 MB: each group costs launches, and a small one fills no kernel.
GROUP_VALUES = {"cpu": 2**20, "cuda": 2**27}


class Texts(NamedTuple):
    """The queries' tokens as the first chunks saw them, and those of all chunks of each document, joined.

    A slot that holds no token repeats one of the query's, so that its values are finite, and says so: `asked`
    and `read` are false. A product with `membership`, which is 1 where a token is a chunk's, else 0, sums
    over each chunk's tokens.
    Shapes: query (N, Q, F…), asked (N, Q), document (N, T, F…), read (N, T), membership (N, T, C).
    """

    query: Tensor
    asked: Tensor
    document: Tensor
    read: Tensor
    membership: Tensor


def asked_slots(features: Features, max_query_tokens: int) -> Tensor:
    """Say how many tokens each document's query has, in as many slots as the longest; a graph has them all.

    Shapes: (D, C, S, F…) -> (D, Q) bool, false behind the query's last token.
    Raises: ValueError if the features are not those of tokens, or a query is too long.
    """
    counts = (_roles(features)[:, 0] == Role.QUERY).sum(dim=1, keepdim=True)  # (D, 1)
    slots = max_query_tokens
    if not torch.compiler.is_compiling():  # a traced graph cannot look at values
        slots = int(counts.max())
    if slots > max_query_tokens:
        raise ValueError(f"features hold {slots} query tokens; max_query_tokens is {max_query_tokens}")
    return torch.arange(slots, device=counts.device) < counts


def texts(features: Features, chunk_mask: Tensor, asked: Tensor, pair_values: int) -> Iterator[Texts]:
    """Take documents apart, some at a time; padding and special tokens stay behind.

    Token vectors are large, and what families compute from pairs of them, `pair_values` for each, larger: a
    long document is read alone. A traced graph reads all documents at once, in slots for every position.
    Shapes: features (D, C, S, F…), chunk_mask (D, C), asked (D, Q) -> D texts.
    """
    vectors, roles = features.vectors, _roles(features)
    if torch.compiler.is_compiling():
        yield _taken_apart(vectors, roles, chunk_mask, asked)
        return
    of_token = max(vectors[0, 0, 0].numel(), asked.shape[1] * pair_values)
    group = max(1, GROUP_VALUES[vectors.device.type] // (of_token * roles[0].numel()))
    for start in range(0, len(vectors), group):
        some = slice(start, start + group)
        yield _taken_apart(vectors[some], roles[some], chunk_mask[some], asked[some])


def over_chunks(values: Tensor, masks: Tensor) -> Tensor:
    """Sum over the chunks that each mask keeps.

    Shapes: (D, Q, C, …), (V, D, C) -> (V, D, Q, …).
    """
    return torch.einsum("dqc...,vdc->vdq...", values, masks.to(values.dtype))


def _taken_apart(vectors: Tensor, roles: Tensor, chunk_mask: Tensor, asked: Tensor) -> Texts:
    """Shapes: vectors (N, C, S, F…), roles (N, C, S), chunk_mask (N, C), asked (N, Q) -> N texts."""
    of_query = roles[:, 0] == Role.QUERY  # (N, S)
    own = ((roles == Role.DOCUMENT) & chunk_mask[:, :, None]).flatten(1)  # (N, C·S)
    lengths = own.sum(dim=1, keepdim=True)  # (N, 1)
    slots = own.shape[1] if torch.compiler.is_compiling() else int(lengths.max())
    known = of_query.int().argmax(dim=1, keepdim=True)  # (N, 1), where the query's first token stands
    document = _positions(own, slots, known)  # (N, T)
    read = torch.arange(slots, device=own.device) < lengths  # (N, T)
    chunks = torch.arange(roles.shape[1], device=own.device)  # (C,)
    membership = (document // roles.shape[2])[:, :, None] == chunks  # (N, T, C)
    return Texts(
        query=_at(_positions(of_query, asked.shape[1], known), vectors),
        asked=asked,
        document=_at(document, vectors),
        read=read,
        membership=(membership & read[:, :, None]).to(vectors.dtype),
    )


def _positions(kept: Tensor, slots: int, otherwise: Tensor) -> Tensor:
    """Find the positions that are kept, in their order; slots beyond them get another.

    Shapes: kept (N, P), otherwise (N, 1) -> (N, slots).
    """
    positions = torch.arange(kept.shape[1], device=kept.device).expand_as(kept)  # (N, P)
    # Whatever is not kept goes to one slot more, which is cut off.
    targets = torch.where(kept, kept.cumsum(dim=1) - 1, slots)  # (N, P)
    return otherwise.repeat(1, slots + 1).scatter(1, targets, positions)[:, :slots]


def _at(positions: Tensor, vectors: Tensor) -> Tensor:
    """Take the vectors at positions of each document. Shapes: (N, T), (N, C, S, F…) -> (N, T, F…)."""
    documents, chunks, tokens = vectors.shape[:3]
    starts = torch.arange(documents, device=positions.device)[:, None] * (chunks * tokens)  # (N, 1)
    taken = vectors.flatten(0, 2).index_select(0, (starts + positions).flatten())  # (N·T, F…)
    return taken.reshape(*positions.shape, *vectors.shape[3:])


def _roles(features: Features) -> Tensor:
    if features.roles is None:
        raise ValueError("features have no roles; token interaction needs a vector and a role for each token")
    return features.roles
