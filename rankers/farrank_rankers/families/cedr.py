"""CEDR.

Classic ranking networks over the similarities of query and document tokens in every layer of a backbone.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from farrank_rankers.aggregate import Aggregate, Aggregator, EvidenceKind, check_chunks, leave_one_out
from farrank_rankers.backbones.build_backbone import build_backbone, transformers_config
from farrank_rankers.backbones.facts import BackboneFacts
from farrank_rankers.encoder import Encoder
from farrank_rankers.features import Features, Layout
from farrank_rankers.spec import RankerSpec
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


class HiddenStatesEncoder(Encoder):
    """Encode a query-chunk pair as the vectors of all its tokens in all layers; position 0 is [CLS].

    Layer 0 is the embeddings' output.

    Shapes: input_ids, roles, token_type_ids (P, S) -> (P, S, L+1, H), roles (P, S).
    Source: MacAvaney et al., SIGIR 2019.
    """

    keeps_hidden_states = True

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(build_backbone(spec, config), BackboneFacts.from_config(config))

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: hidden_states, L + 1 of (…, H) -> (…, L+1, H)."""
        return Features(torch.stack(output.hidden_states, dim=-2), tokens.roles)


def similarities(query: Tensor, document: Tensor) -> Tensor:
    """Compare each query token with each document token by their cosine, on every layer.

    Shapes: query (N, Q, L+1, H), document (N, T, L+1, H) -> (N, L+1, Q, T).
    """
    products = torch.einsum("nqlh,ntlh->nlqt", query, document)  # (N, L+1, Q, T)
    query_norms = vector_norm(query, dim=-1).transpose(1, 2)[:, :, :, None] + 1e-9  # (N, L+1, Q, 1)
    document_norms = vector_norm(document, dim=-1).transpose(1, 2)[:, :, None] + 1e-9  # (N, L+1, 1, T)
    cosines: Tensor = products / (query_norms * document_norms)  # (N, L+1, Q, T)
    return cosines


def mean_cls(features: Features, masks: Tensor) -> Tensor:
    """Average the last layer's [CLS] over those of a document's chunks that each mask keeps.

    Shapes: features (D, C, S, L+1, H), masks (V, D, C) -> (V, D, H).
    """
    cls = features.vectors[:, :, 0, -1].masked_fill(~masks[..., None], 0.0)  # (V, D, C, H)
    return cls.sum(dim=2) / masks.sum(dim=2, keepdim=True)  # (V, D, H)


def cedr_sizes(config: Mapping[str, Any]) -> tuple[int, int]:
    """Read how many layers a token has vectors of, L + 1, and how wide those are, H."""
    built = transformers_config(config)
    return built.num_hidden_layers + 1, built.hidden_size


# The last kernel counts exact matches.
MEANS = (-0.9, -0.7, -0.5, -0.3, -0.1, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
DEVIATIONS = (0.1,) * 10 + (0.001,)


class CedrKnrm(Aggregator):
    """Score a document by how many of its tokens lie how near to the query's, layer by layer, and its [CLS].

    For kernel k and layer l, φ_kl = Σ_q log(1e-6 + Σ_t exp(−(s_lqt − μ_k)² / 2σ_k²)), μ and σ trained; the
    score is linear in φ and the mean [CLS]. A chunk's evidence is what the score loses without its tokens and
    its [CLS]; the query's vectors stay those of the first chunk.

    Shapes: features (D, C, S, L+1, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: MacAvaney et al., SIGIR 2019; the kernels Xiong et al., SIGIR 2017.
    """

    evidence = EvidenceKind.LEAVE_ONE_OUT

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        layers, hidden_size = cedr_sizes(config)
        self.means = nn.Parameter(torch.tensor(MEANS))
        self.deviations = nn.Parameter(torch.tensor(DEVIATIONS))
        self.layers, self.max_query_tokens = layers, spec.max_query_tokens
        self.combine = nn.Linear(len(MEANS) * layers + hidden_size, 1)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, S, L+1, H), (D, C) -> (D,), (D, C)."""
        check_chunks(chunk_mask)
        asked = asked_slots(features, self.max_query_tokens)  # (D, Q)
        groups = texts(features, chunk_mask, asked, pair_values=self.layers)
        counts = torch.cat([self.soft_counts(group) for group in groups])  # (D, Q, C, K·(L+1))

        def score(masks: Tensor) -> Tensor:
            logs = (over_chunks(counts, masks) + 1e-6).log()  # (V, D, Q, K·(L+1))
            kernels = logs.masked_fill(~asked[:, :, None], 0.0).sum(dim=2)  # (V, D, K·(L+1))
            scores: Tensor = self.combine(torch.cat([kernels, mean_cls(features, masks)], dim=2))  # (V, D, 1)
            return scores.squeeze(-1)

        return leave_one_out(score, chunk_mask)

    def soft_counts(self, text: Texts) -> Tensor:
        """Sum each kernel's values over each chunk; one kernel at a time, each needs as much as the cosines.

        Shapes: N texts of (Q, L+1, H), (T, L+1, H), (T, C) -> (N, Q, C, K·(L+1)).
        """
        cosines = similarities(text.query, text.document)  # (N, L+1, Q, T)
        membership = text.membership[:, None]  # (N, 1, T, C)
        sums = [
            ((cosines - mean) / deviation).square().mul(-0.5).exp() @ membership  # (N, L+1, Q, C)
            for mean, deviation in zip(self.means, self.deviations, strict=True)
        ]
        return torch.stack(sums).permute(1, 3, 4, 0, 2).flatten(3)  # (N, Q, C, K·(L+1))


BINS = 11  # ten over [−1, 1), the last for exact matches
HIDDEN = 5


class CedrDrmm(Aggregator):
    """Score a document by histograms of its tokens' similarities, one a query token and layer, and its [CLS].

    A query token's score is an MLP of log(1e-5 + count) for all bins and layers and of the mean [CLS]; the
    document's is their sum. No gradient flows through counts: the backbone learns from [CLS] alone. A chunk's
    evidence is what the score loses without its tokens and its [CLS]; the query's vectors stay those of the
    first chunk.

    Shapes: features (D, C, S, L+1, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: MacAvaney et al., SIGIR 2019; the histograms Guo et al., CIKM 2016.
    """

    evidence = EvidenceKind.LEAVE_ONE_OUT

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        layers, hidden_size = cedr_sizes(config)
        self.layers, self.max_query_tokens = layers, spec.max_query_tokens
        self.hidden = nn.Linear(BINS * layers + hidden_size, HIDDEN)
        self.output = nn.Linear(HIDDEN, 1)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, S, L+1, H), (D, C) -> (D,), (D, C)."""
        check_chunks(chunk_mask)
        asked = asked_slots(features, self.max_query_tokens)  # (D, Q)
        groups = texts(features, chunk_mask, asked, pair_values=self.layers)
        counts = torch.cat([histograms(group) for group in groups])  # (D, Q, C, B·(L+1))

        def score(masks: Tensor) -> Tensor:
            logs = (over_chunks(counts, masks) + 1e-5).log()  # (V, D, Q, B·(L+1))
            cls = mean_cls(features, masks)[:, :, None].expand(-1, -1, logs.shape[2], -1)  # (V, D, Q, H)
            hidden = self.hidden(torch.cat([logs, cls], dim=-1)).relu()  # (V, D, Q, 5)
            each: Tensor = self.output(hidden).squeeze(-1)  # (V, D, Q)
            return each.masked_fill(~asked, 0.0).sum(dim=2)

        return leave_one_out(score, chunk_mask)


@torch.no_grad()
def histograms(text: Texts) -> Tensor:
    """Count each chunk's similarities with each query token in bins of width 0.2.

    The millionth lets a cosine of 1, rounded, reach the last bin.

    Shapes: N texts of (Q, L+1, H), (T, L+1, H), (T, C) -> (N, Q, C, B·(L+1)).
    """
    cosines = similarities(text.query, text.document)  # (N, L+1, Q, T)
    bins = ((cosines + 1.000001) / 2 * (BINS - 1)).floor().clamp(0, BINS - 1)  # (N, L+1, Q, T)
    membership = text.membership[:, None]  # (N, 1, T, C)
    counts = [
        (bins == number).to(cosines.dtype) @ membership for number in range(BINS)
    ]  # (N, L+1, Q, C) each
    return torch.stack(counts).permute(1, 3, 4, 0, 2).flatten(3)  # (N, Q, C, B·(L+1))
