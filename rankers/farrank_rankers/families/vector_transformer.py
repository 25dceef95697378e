"""A small BERT that reads vectors where others read words: what PARADE's transformers aggregate with."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from farrank_rankers.transformer_shape import TransformerShape


class Part(NamedTuple):
    """Vectors that follow each other in the sequence, all of one segment.

    `present` says which are read; `placed`, if given, which take a position, be they read or not.
    Shapes: vectors (N, T, H), present and placed (N, T) bool.
    """

    vectors: Tensor
    present: Tensor
    segment: int = 0
    placed: Tensor | None = None

    def repeated(self, times: int) -> "Part":
        """Put the same rows after each other. Shapes: (N, T, H) -> (times·N, T, H)."""
        placed = None if self.placed is None else self.placed.repeat(times, 1)
        return Part(self.vectors.repeat(times, 1, 1), self.present.repeat(times, 1), self.segment, placed)


class VectorTransformer(nn.Module):
    """Read `[C] [S] part [S] … part [S]` and keep the last layer's first vector; without separators no [S].

    C and S are learned vectors, from N(0, 1/W) if nothing else fills them. Parts are projected where their
    vectors are not as wide as the transformer's. Position, segment and LayerNorm embeddings are BERT's own.
    Its word embeddings are never read and never trained: they are there because the published checkpoints
    and the papers' counts of parameters have them.

    A vector that is not present may hold anything. The others get the positions that they have without it.

    Shapes: parts (N, T, H) -> (N, W).
    """

    def __init__(self, input_width: int, shape: TransformerShape, use_separators: bool) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.intermediate,
            max_position_embeddings=shape.positions,
        )
        self.bert = BertModel(config, add_pooling_layer=False)
        self.bert.get_input_embeddings().requires_grad_(False)
        self.first = nn.Parameter(torch.randn(shape.width) * shape.width**-0.5)  # C
        self.register_parameter("separator", None)
        if use_separators:
            self.separator = nn.Parameter(torch.randn(shape.width) * shape.width**-0.5)  # S
        self.project: nn.Module = nn.Identity()
        if input_width != shape.width:
            self.project = nn.Linear(input_width, shape.width)
            nn.init.xavier_uniform_(self.project.weight)

    def under(self, masks: Tensor, chunks: Tensor, *before: Part) -> Tensor:
        """Read documents' chunks, as segment 1, after the parts `before` them, once under each chunk mask.

        Shapes: masks (V, D, C), chunks (D, C, H), parts (D, T, H) -> (V, D, W).
        """
        parts = [part.repeated(masks.shape[0]) for part in (*before, Part(chunks, masks[0], segment=1))]
        parts[-1] = parts[-1]._replace(present=masks.flatten(0, 1))  # (V·D, C)
        read: Tensor = self(*parts)  # (V·D, W)
        return read.reshape(*masks.shape[:2], -1)

    def forward(self, *parts: Part) -> Tensor:
        """Shapes: (N, T, H) each -> (N, W)."""
        rows = parts[0].present[:, :1]  # (N, 1)
        separators = [] if self.separator is None else [_learned(self.separator, rows)]
        sequence = [_learned(self.first, rows), *separators]
        for part in parts:
            known = part.vectors.masked_fill(~part.present[:, :, None], 0.0)  # (N, T, H)
            sequence += [part._replace(vectors=self.project(known)), *separators]
        placed = [part.present if part.placed is None else part.placed for part in sequence]
        segments = [torch.full_like(part.present, part.segment, dtype=torch.long) for part in sequence]
        output = self.bert(
            inputs_embeds=torch.cat([part.vectors for part in sequence], dim=1),  # (N, L, W)
            attention_mask=torch.cat([part.present for part in sequence], dim=1).long(),  # (N, L)
            token_type_ids=torch.cat(segments, dim=1),  # (N, L)
            position_ids=torch.cat(placed, dim=1).cumsum(dim=1) - 1,  # (N, L)
        )
        first: Tensor = output.last_hidden_state[:, 0]
        return first


def _learned(vector: Tensor, rows: Tensor) -> Part:
    """Make a learned vector a part of every row. Shapes: vector (W,), rows (N, 1) -> (N, 1, W)."""
    return Part(vector.expand(rows.shape[0], 1, -1), torch.ones_like(rows))
