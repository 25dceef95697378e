"""CEDR: classic ranking networks over the similarities of query and document in every layer of a backbone.

What its three rankers share: the encoder, the similarities and a document's [CLS].
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.backbones.build import build_backbone
from farrank_rankers.backbones.transformers_config import transformers_config
from farrank_rankers.encoder import Encoder
from farrank_rankers.features import Features
from farrank_rankers.layout import Layout
from farrank_rankers.spec import RankerSpec


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
