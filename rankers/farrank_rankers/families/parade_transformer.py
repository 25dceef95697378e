"""PARADE Transformer: a small transformer reads the chunks' vectors in place of words.

One form also reads the query's vectors. Late interaction, in another file, builds on it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.backbones.build_backbone import transformers_config
from farrank_rankers.encoder import Encoder
from farrank_rankers.families.passages import Head
from farrank_rankers.family import ParadePretrOptions, ParadeQueryOptions, ParadeRandOptions, TransformerShape
from farrank_rankers.features import Features, Layout
from farrank_rankers.lean_transformers import transformers
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokenizer import Frame
from farrank_rankers.tokens import Role


class InputPart(NamedTuple):
    """Consecutive vectors of the transformer's input, all of one segment.

    `mask` marks the vectors to read. Each of these takes a position, and so does each that `takes_position`
    marks.
    Shapes: vectors (N, T, H), mask and takes_position (N, T) bool.
    """

    vectors: Tensor
    mask: Tensor
    segment: int = 0
    takes_position: Tensor | None = None

    def repeated(self, times: int) -> "InputPart":
        """Repeat all rows. Shapes: (N, T, H) -> (times·N, T, H)."""
        positions = None if self.takes_position is None else self.takes_position.repeat(times, 1)
        return InputPart(
            self.vectors.repeat(times, 1, 1), self.mask.repeat(times, 1), self.segment, positions
        )


class VectorTransformer(nn.Module):
    """A small BERT that reads vectors in place of words: `[C] [S] part [S] … part [S]`.

    It returns the last layer's first vector. C and S are learned vectors, initialised from N(0, 1/W) unless
    loaded; without separators there is no S. Parts are projected if their width is not the transformer's.
    Position and segment embeddings and their LayerNorm are BERT's; there are no word embeddings.

    A masked vector may have any values. It takes no position unless its part says so.
    """

    def __init__(self, input_width: int, shape: TransformerShape, use_separators: bool) -> None:
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=1,
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.intermediate,
            max_position_embeddings=shape.positions,
        )
        self.bert = transformers.BertModel(config, add_pooling_layer=False)
        self.bert.set_input_embeddings(None)
        self.first = nn.Parameter(torch.randn(shape.width) * shape.width**-0.5)  # C
        self.register_parameter("separator", None)
        if use_separators:
            self.separator = nn.Parameter(torch.randn(shape.width) * shape.width**-0.5)  # S
        self.project: nn.Module = nn.Identity()
        if input_width != shape.width:
            self.project = nn.Linear(input_width, shape.width)
            nn.init.xavier_uniform_(self.project.weight)

    def forward(self, *parts: InputPart) -> Tensor:
        """Shapes: (N, T, H) each -> (N, W)."""
        rows = parts[0].mask[:, :1]  # (N, 1)
        separators = [] if self.separator is None else [_learned(self.separator, rows)]
        sequence = [_learned(self.first, rows), *separators]
        for part in parts:
            present = part.vectors.masked_fill(~part.mask[:, :, None], 0.0)  # (N, T, H)
            sequence += [part._replace(vectors=self.project(present)), *separators]
        positions = [part.mask if part.takes_position is None else part.takes_position for part in sequence]
        segments = [torch.full_like(part.mask, part.segment, dtype=torch.long) for part in sequence]
        output = self.bert(
            inputs_embeds=torch.cat([part.vectors for part in sequence], dim=1),  # (N, L, W)
            attention_mask=torch.cat([part.mask for part in sequence], dim=1).long(),  # (N, L)
            token_type_ids=torch.cat(segments, dim=1),  # (N, L)
            position_ids=torch.cat(positions, dim=1).cumsum(dim=1) - 1,  # (N, L)
        )
        return output.last_hidden_state[:, 0]


def _learned(vector: Tensor, rows: Tensor) -> InputPart:
    """Make a learned vector a part of every row. Shapes: vector (W,), rows (N, 1) -> (N, 1, W)."""
    return InputPart(vector.expand(rows.shape[0], 1, -1), torch.ones_like(rows))


class ChunkVectors(NamedTuple):
    """The chunks' vectors, the mask of existing chunks, and the parts that the transformer reads before them.

    Shapes: chunks (D, C, H), present (D, C) bool, each part (D, T, H).
    """

    chunks: Tensor
    present: Tensor
    before: tuple[InputPart, ...] = ()


class ParadeTransf(Aggregator[ChunkVectors]):
    """Score a document by a transformer's output for its chunks' vectors: F(Agg(C, S, cls_1 … cls_m, S)[0]).

    A chunk keeps its position when another is left out: the evidence is the effect of the latter only.
    Segment ids are 1 for the chunks and 0 for all else. Of a document with more chunks than the transformer
    has positions for, the reader gives as many as it has (`RankerSpec.most_chunks`).

    Source: Li et al., TOIS 2024; the separators are Boytsov et al.'s.
    """

    def __init__(
        self,
        spec: RankerSpec,
        input_width: int,
        shape: TransformerShape,
        use_separators: bool,
    ) -> None:
        super().__init__()
        self.transformer = VectorTransformer(input_width, shape, use_separators)
        self.head = Head(shape.width)

    def interact(self, features: Features, chunk_mask: Tensor, query: Features | None) -> ChunkVectors:
        """Shapes: (D, C, H) -> chunks (D, C, H)."""
        return ChunkVectors(features.vectors, chunk_mask)

    def score(self, state: ChunkVectors, masks: Tensor) -> Tensor:
        """Shapes: masks (V, D, C) -> (V, D)."""
        chunks = InputPart(state.chunks, masks[0], segment=1, takes_position=state.present)
        sequence = (*state.before, chunks)
        parts = [part.repeated(masks.shape[0]) for part in sequence]
        parts[-1] = parts[-1]._replace(mask=masks.flatten(0, 1))  # (V·D, C)
        scores: Tensor = self.head(self.transformer(*parts))  # (V·D,)
        return scores.reshape(masks.shape[:2])


class ParadeTransfRand(ParadeTransf):
    """PARADE Transf-RAND-L2: the transformer starts from random weights and has 2 layers.

    Its width, its intermediate size and, unless the options say otherwise, its number of heads are the
    backbone's, as in Boytsov et al.'s published code. C and S are initialised with the backbone's word
    embeddings of its first special token and of the one between two texts ([CLS] and [SEP]). If the
    backbone's word embeddings have another width (ELECTRA small), C and S stay random, from N(0, 1/H).
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        options, backbone = spec.options_as(ParadeRandOptions), transformers_config(config)
        width = backbone.hidden_size
        shape = TransformerShape(
            layers=options.layers,
            heads=backbone.num_attention_heads if options.heads is None else options.heads,
            width=width,
            # DistilBERT calls it hidden_dim.
            intermediate=getattr(backbone, "hidden_dim", None) or backbone.intermediate_size,
            positions=options.positions,
        )
        super().__init__(spec, width, shape, options.use_separators)

    def start_from(self, backbone: nn.Module, frame: Frame) -> None:
        """Copy the backbone's word embeddings of [CLS] and [SEP] into C and S."""
        words = getattr(backbone, "get_input_embeddings", lambda: None)()
        if not isinstance(words, nn.Embedding) or words.embedding_dim != self.transformer.first.shape[0]:
            return
        vectors = (self.transformer.first, self.transformer.separator)
        for vector, (ids, _, _) in zip(vectors, frame.parts, strict=False):
            if vector is not None and len(ids):
                with torch.no_grad():
                    vector.copy_(words.weight[int(ids[0])])


class ParadeTransfPretr(ParadeTransf):
    """PARADE Transf-PRETR-L6: the transformer starts from a pretrained one (6 layers of MiniLM).

    A linear layer with bias projects the chunks' vectors to its width, if that differs.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        options = spec.options_as(ParadePretrOptions)
        hidden_size = transformers_config(config).hidden_size
        super().__init__(spec, hidden_size, options.transformer, options.use_separators)


class PairEncoder(Encoder):
    """Encode a query-chunk pair as the last layer's first vector ([CLS]) and those of the query's tokens.

    Shapes: input_ids, roles, token_type_ids (P, L) -> (P, 1 + Q, H), the chunk's roles PADDING.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(spec, config)
        self.kept = 1 + max(spec.max_query_tokens, spec.pad_query_to or 0)

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: last_hidden_state (…, H) -> (P, 1 + Q, H)."""
        found = tokens.leading(tokens.roles, self.kept)  # (P, 1 + Q)
        is_first = torch.arange(self.kept, device=found.device) == 0  # (1 + Q,)
        dropped = (found != Role.QUERY) & ~is_first  # (P, 1 + Q)
        vectors = tokens.leading(output.last_hidden_state, self.kept)  # (P, 1 + Q, H)
        return Features(
            vectors.masked_fill(dropped[:, :, None], 0.0), found.masked_fill(dropped, Role.PADDING)
        )


class ParadeTransfQuery(ParadeTransf):
    """PARADE Transf-PRETR-Q: F(Agg(C, S, q_1 … q_Q, S, cls_1 … cls_m, S)[0]).

    The query's vectors are those of the first chunk, even if the evidence leaves that chunk out. One linear
    layer projects them and the chunks'. With `pad_query_to` the query takes that many positions here, too.

    Source: Boytsov et al., 2022 (arXiv 2207.01262, version 1), equation 2.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        options = spec.options_as(ParadeQueryOptions)
        query_positions = spec.pad_query_to or 0
        super().__init__(
            spec,
            transformers_config(config).hidden_size,
            options.transformer,
            options.use_separators,
        )
        self.query_positions = query_positions

    def interact(self, features: Features, chunk_mask: Tensor, query: Features | None) -> ChunkVectors:
        """Take the query out of the first chunk.

        Shapes: (D, C, 1 + Q, H) -> chunks (D, C, H), query (D, Q, H).
        """
        roles = features.token_roles  # (D, C, 1 + Q)
        missing = max(0, self.query_positions + 1 - roles.shape[2])
        query_vectors = pad(features.vectors[:, 0, 1:], (0, 0, 0, missing))  # (D, Q, H)
        query_mask = pad(roles[:, 0, 1:] == Role.QUERY, (0, missing))  # (D, Q)
        padded = torch.arange(query_mask.shape[1], device=query_mask.device) < self.query_positions  # (Q,)
        before = InputPart(query_vectors, query_mask, takes_position=query_mask | padded)
        return ChunkVectors(features.vectors[:, :, 0], chunk_mask, (before,))
