"""CEDR: classic ranking networks over similarities of tokens in every layer of a backbone.

The parts, in order: the encoder; the texts of query and document, taken out of their chunks' token vectors;
the similarity matrix; CEDR-KNRM and CEDR-DRMM. CEDR-PACRR and Neural Model 1, in other files, use the same
parts.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from farrank_rankers.aggregate import Aggregator, State
from farrank_rankers.backbones.build_backbone import transformers_config
from farrank_rankers.encoder import Encoder
from farrank_rankers.features import Features, Layout
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import Role

# Values to read or compute at once. On a CPU 4 MB of them, which fit in caches: a document of some hundred
# tokens is read alone. On a GPU 512 MB: each group needs kernel launches, and a small group does not fill a
# kernel.
GROUP_VALUES = {"cpu": 2**20, "cuda": 2**27}


class HiddenStatesEncoder(Encoder):
    """Encode a query-chunk pair as the vectors of all its tokens in all layers; position 0 is [CLS].

    Layer 0 is the embeddings' output.

    Source: MacAvaney et al., SIGIR 2019.
    """

    keeps_hidden_states = True

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: hidden_states, L + 1 of (…, H) -> (…, L+1, H)."""
        return Features(torch.stack(output.hidden_states, dim=-2), tokens.roles)


class JoinedTexts(NamedTuple):
    """The queries' tokens in the first chunks, and the joined tokens of all chunks of each document.

    A slot without a token repeats one of the query's, so that its values are finite; its mask is false. A
    product with `membership`, which is 1 if a token is in a chunk and else 0, sums over a chunk's tokens.
    Shapes: query (N, Q, F…), query_mask (N, Q), document (N, T, F…), doc_mask (N, T), membership (N, T, C).
    """

    query: Tensor
    query_mask: Tensor
    document: Tensor
    doc_mask: Tensor
    membership: Tensor


def query_slots(features: Features, max_query_tokens: int) -> Tensor:
    """Make the queries' mask, with slots for the longest query; in a graph, with `max_query_tokens` slots.

    Shapes: (D, C, S, F…) -> (D, Q) bool, false after the query's last token.
    Raises: ValueError if the features are not those of tokens, or a query is too long.
    """
    counts = (features.token_roles[:, 0] == Role.QUERY).sum(dim=1, keepdim=True)  # (D, 1)
    slots = max_query_tokens
    if not torch.compiler.is_compiling():  # a traced graph cannot inspect values
        slots = int(counts.max())
    if slots > max_query_tokens:
        raise ValueError(f"features hold {slots} query tokens; max_query_tokens is {max_query_tokens}")
    return torch.arange(slots, device=counts.device) < counts


def texts(
    features: Features, chunk_mask: Tensor, query_mask: Tensor, pair_values: int
) -> Iterator[JoinedTexts]:
    """Take the texts out of their chunks, a few documents at a time, without padding and special tokens.

    Token vectors are large, and what families compute from pairs of them, `pair_values` for each, is larger:
    a long document is read alone. A traced graph reads all documents at once, in slots for every position.
    Shapes: features (D, C, S, F…), chunk_mask (D, C), query_mask (D, Q) -> D texts.
    """
    vectors, roles = features.vectors, features.token_roles
    if torch.compiler.is_compiling():
        yield _taken_apart(vectors, roles, chunk_mask, query_mask)
        return
    of_token = max(vectors[0, 0, 0].numel(), query_mask.shape[1] * pair_values)
    group = max(1, GROUP_VALUES[vectors.device.type] // (of_token * roles[0].numel()))
    for start in range(0, len(vectors), group):
        some = slice(start, start + group)
        yield _taken_apart(vectors[some], roles[some], chunk_mask[some], query_mask[some])


def _taken_apart(vectors: Tensor, roles: Tensor, chunk_mask: Tensor, query_mask: Tensor) -> JoinedTexts:
    """Shapes: vectors (N, C, S, F…), roles (N, C, S), chunk_mask (N, C), query_mask (N, Q) -> N texts."""
    of_query = roles[:, 0] == Role.QUERY  # (N, S)
    of_document = ((roles == Role.DOCUMENT) & chunk_mask[:, :, None]).flatten(1)  # (N, C·S)
    lengths = of_document.sum(dim=1, keepdim=True)  # (N, 1)
    slots = of_document.shape[1] if torch.compiler.is_compiling() else int(lengths.max())
    first = of_query.int().argmax(dim=1, keepdim=True)  # (N, 1), where the query's first token stands
    positions = _positions(of_document, slots, first)  # (N, T)
    doc_mask = torch.arange(slots, device=lengths.device) < lengths  # (N, T)
    chunks = torch.arange(roles.shape[1], device=lengths.device)  # (C,)
    membership = (positions // roles.shape[2])[:, :, None] == chunks  # (N, T, C)
    return JoinedTexts(
        query=_at(_positions(of_query, query_mask.shape[1], first), vectors),
        query_mask=query_mask,
        document=_at(positions, vectors),
        doc_mask=doc_mask,
        membership=(membership & doc_mask[:, :, None]).to(vectors.dtype),
    )


def _positions(kept: Tensor, slots: int, otherwise: Tensor) -> Tensor:
    """Find the positions that are kept, in their order; slots beyond them get another.

    Shapes: kept (N, P), otherwise (N, 1) -> (N, slots).
    """
    positions = torch.arange(kept.shape[1], device=kept.device).expand_as(kept)  # (N, P)
    # All other positions go to an additional slot, which is cut off.
    targets = torch.where(kept, kept.cumsum(dim=1) - 1, slots)  # (N, P)
    return otherwise.repeat(1, slots + 1).scatter(1, targets, positions)[:, :slots]


def _at(positions: Tensor, vectors: Tensor) -> Tensor:
    """Take the vectors at positions of each document. Shapes: (N, T), (N, C, S, F…) -> (N, T, F…)."""
    documents, chunks, tokens = vectors.shape[:3]
    starts = torch.arange(documents, device=positions.device)[:, None] * (chunks * tokens)  # (N, 1)
    taken = vectors.flatten(0, 2).index_select(0, (starts + positions).flatten())  # (N·T, F…)
    return taken.reshape(*positions.shape, *vectors.shape[3:])


def similarity_matrix(query: Tensor, document: Tensor) -> Tensor:
    """Compare each query token with each document token by their cosine, on every layer.

    Shapes: query (N, Q, L+1, H), document (N, T, L+1, H) -> simmat (N, L+1, Q, T).
    """
    products = torch.einsum("nqlh,ntlh->nlqt", query, document)  # (N, L+1, Q, T)
    query_norms = vector_norm(query, dim=-1).transpose(1, 2)[:, :, :, None] + 1e-9  # (N, L+1, Q, 1)
    document_norms = vector_norm(document, dim=-1).transpose(1, 2)[:, :, None] + 1e-9  # (N, L+1, 1, T)
    return products / (query_norms * document_norms)  # (N, L+1, Q, T)


class TokenSimilarities(NamedTuple):
    """Some documents' similarities between tokens of query and text, computed without weights.

    Shapes: simmat (N, L+1, Q, T), query_mask (N, Q), doc_mask (N, T), membership (N, T, C), as in
    `JoinedTexts`.
    """

    simmat: Tensor
    query_mask: Tensor
    doc_mask: Tensor
    membership: Tensor


def compared(features: Features, chunk_mask: Tensor, query_mask: Tensor) -> Iterator[TokenSimilarities]:
    """Compare the texts, a few documents at a time.

    Shapes: features (D, C, S, L+1, H), chunk_mask (D, C), query_mask (D, Q) -> D documents' similarities.
    """
    layers = features.vectors.shape[3]
    for text in texts(features, chunk_mask, query_mask, pair_values=layers):
        simmat = similarity_matrix(text.query, text.document)
        yield TokenSimilarities(simmat, text.query_mask, text.doc_mask, text.membership)


def over_chunks(values: Tensor, masks: Tensor) -> Tensor:
    """Sum over the chunks that each mask keeps. Shapes: (D, Q, C, …), (V, D, C) -> (V, D, Q, …)."""
    return torch.einsum("dqc...,vdc->vdq...", values, masks.to(values.dtype))


def mean_cls(cls: Tensor, masks: Tensor) -> Tensor:
    """Average [CLS] over the chunks that each mask keeps. Shapes: (D, C, H), (V, D, C) -> (V, D, H)."""
    present = cls.masked_fill(~masks[..., None], 0.0)  # (V, D, C, H)
    return present.sum(dim=2) / masks.sum(dim=2, keepdim=True)


def cedr_sizes(config: Mapping[str, Any]) -> tuple[int, int]:
    """Read the number of layers that a token has vectors of, L + 1, and their width, H."""
    built = transformers_config(config)
    return built.num_hidden_layers + 1, built.hidden_size


class Cedr(Aggregator[State]):
    """Base of the CEDRs, which read only similarities and the chunks' [CLS] from the features."""

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.layers, self.hidden_size = cedr_sizes(config)
        self.max_query_tokens = spec.max_query_tokens

    def interact(self, features: Features, chunk_mask: Tensor, query: Features | None) -> State:
        """Shapes: (D, C, S, L+1, H), (D, C) -> the family's state."""
        query_mask = query_slots(features, self.max_query_tokens)  # (D, Q)
        return self.match(compared(features, chunk_mask, query_mask), features.vectors[:, :, 0, -1])

    def match(self, groups: Iterable[TokenSimilarities], cls: Tensor) -> State:
        """Read the similarities of D documents, whose queries have the same number of slots.

        Shapes: groups of the D documents in their order, cls (D, C, H) -> the family's state.
        """
        raise NotImplementedError


class ChunkCounts(NamedTuple):
    """Each chunk's contribution to the counts of each query token, and its [CLS].

    Shapes: counts (D, Q, C, B·(L+1)) for B kernels or bins, query_mask (D, Q), cls (D, C, H).
    """

    counts: Tensor
    query_mask: Tensor
    cls: Tensor


class CountingCedr(Cedr[ChunkCounts]):
    """Base of KNRM and DRMM: both count similarities, and counts add up over chunks.

    A chunk's evidence is the loss of score without its tokens and its [CLS]; the query's vectors stay those
    of the first chunk.
    """

    def count(self, simmat: Tensor, membership: Tensor) -> Tensor:
        """Count each chunk's similarities. Shapes: (N, L+1, Q, T), (N, 1, T, C) -> (B, N, L+1, Q, C)."""
        raise NotImplementedError

    def match(self, groups: Iterable[TokenSimilarities], cls: Tensor) -> ChunkCounts:
        """Shapes: cls (D, C, H) -> counts (D, Q, C, B·(L+1)), query_mask (D, Q)."""
        counts, query_masks = [], []
        for group in groups:
            found = self.count(group.simmat, group.membership[:, None])  # (B, N, L+1, Q, C)
            counts.append(found.permute(1, 3, 4, 0, 2).flatten(3))  # (N, Q, C, B·(L+1))
            query_masks.append(group.query_mask)
        return ChunkCounts(torch.cat(counts), torch.cat(query_masks), cls)


# The last kernel counts exact matches.
MU = (-0.9, -0.7, -0.5, -0.3, -0.1, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
SIGMA = (0.1,) * 10 + (0.001,)


class CedrKnrm(CountingCedr):
    """Score a document by kernels that count its tokens near the query's, layer by layer, and by its [CLS].

    For kernel k and layer l, φ_kl = Σ_q log(1e-6 + Σ_t exp(−(s_lqt − μ_k)² / 2σ_k²)), μ and σ trained; the
    score is linear in φ and the mean [CLS].
    Shapes: (D, C, S, L+1, H), (D, C) -> (D,).

    Source: MacAvaney et al., SIGIR 2019; the kernels Xiong et al., SIGIR 2017.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(spec, config)
        self.mu = nn.Parameter(torch.tensor(MU))
        self.sigma = nn.Parameter(torch.tensor(SIGMA))
        self.combine = nn.Linear(len(MU) * self.layers + self.hidden_size, 1)

    def count(self, simmat: Tensor, membership: Tensor) -> Tensor:
        """Sum each kernel's values, one kernel at a time: each needs as much memory as the similarities.

        Shapes: (N, L+1, Q, T), (N, 1, T, C) -> (11, N, L+1, Q, C).
        """
        sums = [
            ((simmat - mu) / sigma).square().mul(-0.5).exp() @ membership
            for mu, sigma in zip(self.mu, self.sigma, strict=True)
        ]
        return torch.stack(sums)

    def score(self, state: ChunkCounts, masks: Tensor) -> Tensor:
        """Shapes: masks (V, D, C) -> (V, D)."""
        logs = (over_chunks(state.counts, masks) + 1e-6).log()  # (V, D, Q, 11·(L+1))
        phi = logs.masked_fill(~state.query_mask[:, :, None], 0.0).sum(dim=2)  # (V, D, 11·(L+1))
        return self.combine(torch.cat([phi, mean_cls(state.cls, masks)], dim=2)).squeeze(-1)


BINS = 11  # ten over [−1, 1), the last for exact matches
HIDDEN = 5


class CedrDrmm(CountingCedr):
    """Score a document by histograms of its tokens' similarities per query token and layer, and its [CLS].

    A query token's score is an MLP of log(1e-5 + count) for all bins and layers and of the mean [CLS]; the
    document's is their sum. No gradient flows through counts: the backbone learns only from [CLS].
    Shapes: (D, C, S, L+1, H), (D, C) -> (D,).

    Source: MacAvaney et al., SIGIR 2019; the histograms Guo et al., CIKM 2016.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(spec, config)
        self.hidden = nn.Linear(BINS * self.layers + self.hidden_size, HIDDEN)
        self.output = nn.Linear(HIDDEN, 1)

    @torch.no_grad()
    def count(self, simmat: Tensor, membership: Tensor) -> Tensor:
        """Count similarities in bins of width 0.2.

        Shapes: (N, L+1, Q, T), (N, 1, T, C) -> (11, N, L+1, Q, C).
        """
        # The millionth puts a cosine of 1, even when rounded down, into the last bin.
        bins = ((simmat + 1.000001) / 2 * (BINS - 1)).floor().clamp(0, BINS - 1)  # (N, L+1, Q, T)
        return torch.stack([(bins == number).to(simmat.dtype) @ membership for number in range(BINS)])

    def score(self, state: ChunkCounts, masks: Tensor) -> Tensor:
        """Shapes: masks (V, D, C) -> (V, D)."""
        logs = (over_chunks(state.counts, masks) + 1e-5).log()  # (V, D, Q, 11·(L+1))
        cls = mean_cls(state.cls, masks)[:, :, None].expand(-1, -1, logs.shape[2], -1)  # (V, D, Q, H)
        hidden = self.hidden(torch.cat([logs, cls], dim=-1)).relu()  # (V, D, Q, 5)
        each: Tensor = self.output(hidden).squeeze(-1)  # (V, D, Q)
        return each.masked_fill(~state.query_mask, 0.0).sum(dim=2)
