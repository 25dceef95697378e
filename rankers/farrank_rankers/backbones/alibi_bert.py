"""JinaBERT v2 and MosaicBERT: BERT with symmetric ALiBi and gated feed-forwards; transformers has neither.

Where the facts come from:
- ALiBi: Press, Smith & Lewis, "Train Short, Test Long", ICLR 2022, and their published code, which has the
  rule for numbers of heads that are not powers of two.
- JinaBERT: Günther et al., "Jina Embeddings 2", arXiv 2310.19923: symmetric ALiBi, GLU variants, BERT's
  segments, texts of up to 8,192 tokens. jinaai/jina-bert-implementation on the hub, to which the
  checkpoint's auto_map points, as others rewrote it: huggingface/candle's jina_bert.rs and
  vllm-project/vllm's jina_bert.py agree that norms come after, that the gate is the first half of the
  feed-forward's matrix, that its GELU is the exact one, and that its norm closes the layer. The slopes for
  12 heads are quoted from it in xorbitsai/inference issue 1842.
- MosaicBERT: Portes et al., "MosaicBERT", NeurIPS 2023: ALiBi instead of position embeddings, GeGLU,
  unpadding. mosaicml/examples, bert/src/bert_layers.py, the code of the checkpoint: one matrix Wqkv whose
  rows are all heads' queries, then keys, then values; in the feed-forward the gate first, the GELU exact,
  and the norm last; the slopes for 12 heads. It takes padding out of the batch where this module masks it,
  with the same result at every real position.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from farrank_rankers.backbone_facts import OwnBackbone
from farrank_rankers.backbones.alibi_checkpoints import HEADS, PUBLISHED, AlibiBertConfig, check_supported
from farrank_rankers.backbones.bert import PADDED
from farrank_rankers.backbones.forms import Forms
from farrank_rankers.errors import WeightsError
from farrank_rankers.lean_transformers import transformers
from farrank_rankers.packed.packed_backbone import LayerParts, PackedArguments, PackedTransformer
from farrank_rankers.packed.pattern import Pattern, Score

# The memory-efficient kernels copy a bias whose rows do not start at multiples of this, once in every layer.
ALIGNMENT = 16

HEAD_PREFIX = "bert."  # prefix of the encoder's names if a model with a head was saved

# The matrices that make queries, keys and values: three as in BERT, or one for all.
PROJECTIONS: Mapping[OwnBackbone, tuple[str, ...]] = {"jina": ("query", "key", "value"), "mosaic": ("qkv",)}


def head_slopes(heads: int, device: torch.device) -> Tensor:
    """Slopes of the heads, float32: 2^(-8/n), 2^(-16/n), … 2^-8 for a power of two n.

    Between two powers of two, n < heads < 2n, the first n heads have the slopes of n heads, and the others
    every second one of the slopes of 2n heads, beginning with the first: those in between.
    Shapes: -> (A,).
    """
    n = 2 ** math.floor(math.log2(heads))
    exponents = torch.arange(1, n + 1, device=device) * (8 / n)  # (n,)
    between = torch.arange(1, 2 * n, 2, device=device)[: heads - n] * (8 / (2 * n))  # (A - n,)
    return torch.exp2(-torch.cat((exponents, between)))  # (A,)


def attention_bias(attention_mask: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """The bias of the attention scores: -slope · |i - j|, or PADDED if key j is padding.

    A pair's bias depends only on its distance, never on the padding of its batch. All layers share one bias.
    Shapes: attention_mask (P, L) -> (P, A, L, L).
    """
    length, device = attention_mask.shape[1], attention_mask.device
    # Not as -(-length // ALIGNMENT): an exported graph divides towards zero.
    aligned = (length + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT  # K ≥ L
    keys = torch.arange(aligned, device=device)  # (K,)
    distance = (keys[:length, None] - keys).abs()  # (L, K)
    alibi = (-head_slopes(heads, device)[:, None, None] * distance).to(dtype)  # (A, L, K)
    real = F.pad(attention_mask.bool(), (0, aligned - length))  # (P, K)
    bias = torch.where(real[:, None, None, :], alibi, PADDED)  # (P, A, L, K)
    return bias[..., :length]  # (P, A, L, L)


class AlibiEmbeddings(nn.Module):
    """The sum of a token's word and segment embeddings; only attention reads its position."""

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.segment = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Shapes: (P, L), (P, L) -> (P, L, H)."""
        return self.dropout(self.norm(self.word(input_ids) + self.segment(token_type_ids)))


class AlibiAttention(nn.Module):
    """Self-attention under a bias, and the modules of a post-norm layer's residual.

    Shapes: hidden (P, L, H), bias (P, A, L, L) -> the heads' outputs, concatenated, (P, L, H).
    """

    def __init__(self, kind: OwnBackbone, config: AlibiBertConfig) -> None:
        super().__init__()
        self.kind = kind
        self.heads = config.num_attention_heads
        self.dropout_rate = config.attention_probs_dropout_prob
        width = config.hidden_size
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.norm = nn.LayerNorm(width, config.layer_norm_eps)
        for name in PROJECTIONS[kind]:
            self.add_module(name, nn.Linear(width, 3 * width // len(PROJECTIONS[kind])))

    @property
    def projections(self) -> list[nn.Linear]:
        """The matrices that make queries, keys and values, or the one that makes all three."""
        return [getattr(self, name) for name in PROJECTIONS[self.kind]]

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        """Shapes: (P, L, H), (P, A, L, L) -> (P, L, H)."""
        projected = [part for layer in self.projections for part in layer(hidden).split(hidden.shape[2], 2)]
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in projected
        )  # (P, A, L, H / A) each
        dropout = self.dropout_rate if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, bias, dropout)  # (P, A, L, H / A)
        return mixed.transpose(1, 2).flatten(-2)


class GatedFeedForward(nn.Module):
    """Feed-forward whose hidden units are gated by GELUs (GEGLU), added to its input and normalised.

    One matrix holds both halves: its first F rows compute the gates, the other F the gated values.
    The GELU is the exact one, without tanh.
    Source: Shazeer, arXiv 2002.05202.
    """

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__()
        self.gated = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """Shapes: (P, L, H) -> (P, L, H)."""
        gates, values = self.gated(hidden).chunk(2, dim=-1)  # (P, L, F) each
        units = self.dropout(F.gelu(gates) * values)  # (P, L, F)
        return self.norm(self.output(units) + hidden)  # (P, L, H)


class AlibiLayer(nn.Module):
    """Attention, then the feed-forward. Shapes: hidden (P, L, H), bias (P, A, L, L) -> (P, L, H)."""

    def __init__(self, kind: OwnBackbone, config: AlibiBertConfig) -> None:
        super().__init__()
        self.attention = AlibiAttention(kind, config)
        self.feed_forward = GatedFeedForward(config)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        """Shapes: (P, L, H), (P, A, L, L) -> (P, L, H)."""
        return self.after_attention(self.attention(hidden, bias), hidden)

    def after_attention(self, mixed: Tensor, hidden: Tensor) -> Tensor:
        """Compute the rest of the layer after attention, token by token. Shapes: (…, H) each -> (…, H)."""
        own = self.attention
        return self.feed_forward(own.norm(own.dropout(own.output(mixed)) + hidden))


class AlibiBert(nn.Module):
    """JinaBERT's or MosaicBERT's encoder: a post-norm BERT with ALiBi and gated feed-forwards, no pooler.

    Values at padded positions are meaningless, but finite.
    """

    def __init__(self, kind: OwnBackbone, config: AlibiBertConfig) -> None:
        super().__init__()
        self.kind = kind
        self.config = config
        self.checkpoint_keywords: Mapping[str, Any] | None = None
        self.embeddings = AlibiEmbeddings(config)
        self.layers = nn.ModuleList(AlibiLayer(kind, config) for _ in range(config.num_hidden_layers))
        self.apply(self._initialise)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        output_hidden_states: bool = False,
    ) -> transformers.modeling_outputs.BaseModelOutput:
        """Shapes: (P, L) each -> last_hidden_state (P, L, H), hidden_states of all layers (P, L, H) each.

        The hidden states, the embeddings' output first, are None unless requested.
        """
        hidden = self.embeddings(input_ids, token_type_ids)  # (P, L, H)
        bias = attention_bias(attention_mask, self.config.num_attention_heads, hidden.dtype)  # (P, A, L, L)
        states = [hidden]
        for layer in self.layers:
            if self.training and self.checkpoint_keywords is not None:
                hidden = checkpoint(layer, hidden, bias, **self.checkpoint_keywords)  # (P, L, H)
            else:
                hidden = layer(hidden, bias)  # (P, L, H)
            if output_hidden_states:
                states.append(hidden)
        return transformers.modeling_outputs.BaseModelOutput(
            hidden, tuple(states) if output_hidden_states else None
        )

    def activation_checkpointing_enable(self, activation_checkpointing_kwargs: Mapping[str, Any]) -> None:
        """Recompute layers in the backward pass; the name is that of transformers' models."""
        self.checkpoint_keywords = activation_checkpointing_kwargs

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the word embeddings; the name is that of transformers' models."""
        return self.embeddings.word

    def _initialise(self, module: nn.Module) -> None:
        """Draw matrices from N(0, initializer_range); biases stay 0 and norms 1, as in BERT."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def build_alibi_bert(config: Mapping[str, Any]) -> AlibiBert:
    """Build a JinaBERT or MosaicBERT with random weights, to be loaded or trained.

    Raises: SourceError naming the key of `config.json` that is missing or has an unsupported value.
    """
    return AlibiBert(*check_supported(config))


def rename_published(
    model: AlibiBert, state: Mapping[str, Tensor], source: Path | str = "the checkpoint"
) -> dict[str, Tensor]:
    """Rename a published checkpoint's tensors to the backbone's names.

    Names may begin with "bert.", depending on whether the model was saved with a head. Heads are left out.
    Tensors are not copied.
    Raises: WeightsError naming `source` and a tensor that occurs twice, or is not the backbone's.
    """
    published = PUBLISHED[model.kind]
    own = {published.name(name).removeprefix(HEAD_PREFIX): name for name in model.state_dict()}
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        bare = name.removeprefix(HEAD_PREFIX)
        if bare.startswith(HEADS):
            continue
        if bare not in own:
            raise WeightsError(f"{source} has the tensor {name}, which the model does not have")
        if own[bare] in renamed:
            raise WeightsError(
                f"{source} has the tensor {bare} twice, with and without {HEAD_PREFIX!r} before it"
            )
        renamed[own[bare]] = tensor
    return renamed


class PackedAlibiBert(PackedTransformer):
    """A packed JinaBERT or MosaicBERT; ALiBi uses the tokens' places and ignores positions.

    Shapes: T tokens -> last_hidden_state (T, H).
    """

    layers_at = "layers"

    @staticmethod
    def parts(layer: Any) -> LayerParts:
        """Split a post-norm layer into its parts."""
        return LayerParts(layer.attention.projections, layer.attention.heads, layer.after_attention)

    def embedded(self, given: PackedArguments) -> Tensor:
        """Shapes: T tokens -> (T, H)."""
        return self.model.embeddings(given.stream.input_ids, given.stream.token_type_ids)

    def shared(self, given: PackedArguments, hidden: Tensor) -> Pattern:
        """Lower scores by the distance between tokens; padding that the stream leaves out counts."""
        stream, slopes = given.stream, head_slopes(self.model.config.num_attention_heads, hidden.device)
        return (
            Pattern(slopes=slopes) if stream.is_dense else Pattern(rescored=by_places(slopes, stream.places))
        )


def by_places(slopes: Tensor, places: Tensor) -> Score:
    """Lower scores by the distance in places, which counts padding that the stream leaves out.

    Shapes: slopes (A,), places (T,).
    """

    def rescored(score: Tensor, batch: Tensor, head: Tensor, own: Tensor, other: Tensor) -> Tensor:
        return score - slopes[head] * (places[own] - places[other]).abs()

    return rescored


ALIBI_BERT = Forms(packed=PackedAlibiBert)
