"""Backbones that read streams, inputs of all lengths for them, and their states, padded and packed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from farrank_rankers.encoder import Encoder
from farrank_rankers.features import Features, Layout
from farrank_rankers.packed.stream import TokenStream, pack
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.tokens import EncoderInput, Role, collate

MakeBackbone = Callable[..., Path]
MakeEncoder = Callable[..., Encoder]
LENGTHS = (17, 1, 130, 2, 64, 129, 16, 200)
QUERY_TOKENS = 9


class Case(NamedTuple):
    """A backbone: the parameters of `make_backbone`, and changes of its config.json."""

    made_as: str
    changes: dict[str, Any] = {}  # noqa: RUF012  # read alone
    model_type: str | None = None
    takes_positions: bool = True


# Every test of this folder runs for every entry.
CASES = {
    "bert": Case("bert"),
    "big_bird": Case("big_bird", {"block_size": 8}),
    "big_bird of full attention": Case("big_bird", {"attention_type": "original_full"}),
    "camembert": Case("roberta", model_type="camembert"),
    "data2vec-text": Case("roberta", model_type="data2vec-text"),
    "deberta-v2": Case("deberta-v2", takes_positions=False),
    "distilbert": Case("distilbert", takes_positions=False),
    "electra": Case("electra"),
    "electra of one width": Case("electra", {"embedding_size": 32}),
    "jina": Case("jina", takes_positions=False),
    "jina of six heads": Case("jina", {"hidden_size": 24, "num_attention_heads": 6}, takes_positions=False),
    "llama": Case("llama"),
    "llama with biases": Case(
        "llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4, "head_dim": 16}
    ),
    "llama with stretched positions": Case("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "qwen2": Case("qwen2"),
    "qwen2 of near layers": Case(
        "qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    ),
    "qwen3": Case("qwen3"),
    "gemma": Case("gemma"),
    "gemma2": Case("gemma2"),
    "gemma2 without soft caps": Case("gemma2", {"attn_logit_softcapping": None}),
    "longformer": Case("longformer", {"attention_window": [16, 48]}),
    "modernbert": Case("modernbert"),
    # 10 values per head, and a local last layer.
    "modernbert of odd heads": Case(
        "modernbert", {"hidden_size": 60, "num_attention_heads": 6, "num_hidden_layers": 3}
    ),
    "modernbert with biases": Case(
        "modernbert",
        {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "global_attn_every_n_layers": 2},
    ),
    "modernbert of the published window": Case("modernbert", {"local_attention": 128}),
    "mosaic": Case("mosaic", takes_positions=False),
    "roberta": Case("roberta"),
    "xlm-roberta": Case("roberta", model_type="xlm-roberta"),
}


class States(Encoder):
    """All states of every token. Shapes: (P, L) each -> (P, L, layers + 2, H)."""

    keeps_hidden_states = True

    def read(self, output: Any, tokens: Layout) -> Features:
        """Stack embeddings, layers, and the backbone's last state."""
        return Features(torch.stack([*output.hidden_states, output.last_hidden_state], dim=-2), tokens.roles)


def inputs_of(
    encoder: Encoder, lengths: Sequence[int], padding: int = 0, seed: int = 3
) -> list[EncoderInput]:
    """Make inputs [CLS] query [SEP] chunk [SEP], cut to a number of tokens, with padding after the query."""
    generator = np.random.default_rng(seed)
    facts = encoder.facts
    assert facts.vocabulary is not None
    inputs = []
    for length in lengths:
        roles = [Role.SPECIAL, *[Role.QUERY] * QUERY_TOKENS, Role.SPECIAL, *[Role.DOCUMENT] * length]
        roles = [*roles[: length - 1], Role.SPECIAL] if length > 1 else roles[:1]
        ids = generator.integers(5, facts.vocabulary, len(roles))
        segments = np.zeros(len(roles), dtype=np.int32)
        segments[QUERY_TOKENS + 2 :] = 1 if facts.token_types > 1 else 0
        behind = min(QUERY_TOKENS, len(roles))
        inputs.append(
            EncoderInput(
                np.insert(ids, behind, [facts.pad_token_id or 0] * padding).astype(np.int32),
                np.insert(roles, behind, [Role.PADDING] * padding).astype(np.int32),
                np.insert(segments, behind, [0] * padding).astype(np.int32),
            )
        )
    return inputs


def stream_of(inputs: Sequence[EncoderInput], device: str = "cpu") -> TokenStream:
    packing = pack(inputs)
    tokens, offsets = (torch.from_numpy(array).to(device) for array in (packing.tokens, packing.offsets))
    return TokenStream.of(tokens, offsets, packing)


def padded_states(encoder: Encoder, inputs: Sequence[EncoderInput]) -> list[Tensor]:
    """All states of every input's tokens, from one padded batch. Shapes: -> (L, layers + 2, H) each."""
    device = next(encoder.parameters()).device
    batch = [torch.from_numpy(array).to(device) for array in collate(inputs, encoder.facts.pad_token_id or 0)]
    with torch.inference_mode():
        features: Features = encoder(*batch)
    assert features.roles is not None
    return [
        vectors[roles != Role.PADDING]
        for vectors, roles in zip(features.vectors, features.roles, strict=True)
    ]


def packed_states(packed: PackedEncoder, inputs: Sequence[EncoderInput], device: str = "cpu") -> list[Tensor]:
    """Return the same states from one stream."""
    with torch.inference_mode():
        return [features.vectors for features in packed(stream_of(inputs, device))]
