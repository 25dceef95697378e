"""PARADE Transformer: a small transformer reads the chunks' vectors as others read words."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from farrank_rankers.aggregate import Aggregate, Aggregator, check_chunks, leave_one_out
from farrank_rankers.backbones.transformers_config import transformers_config
from farrank_rankers.chunking import chunk_count
from farrank_rankers.errors import SpecError
from farrank_rankers.families.vector_encoder import Head
from farrank_rankers.families.vector_transformer import VectorTransformer
from farrank_rankers.family import EvidenceKind, ParadePretrOptions, ParadeRandOptions
from farrank_rankers.features import Features
from farrank_rankers.spec import RankerSpec
from farrank_rankers.special_tokens import Frame
from farrank_rankers.transformer_shape import TransformerShape


class ParadeTransf(Aggregator):
    """Score a document by what a transformer makes of its chunks' vectors: F(Agg(C, S, cls_1 … cls_m, S)[0]).

    Segment ids are 1 for the chunks and 0 for C and S.

    Shapes: features (D, C, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: SpecError if a document may have more chunks than the transformer has positions; ValueError if a
    document has no chunk.
    Source: Li et al., TOIS 2024; the separators are Boytsov et al.'s.
    """

    evidence = EvidenceKind.LEAVE_ONE_OUT

    def __init__(
        self, spec: RankerSpec, input_width: int, shape: TransformerShape, use_separators: bool
    ) -> None:
        super().__init__()
        check_chunk_positions(spec, shape, beside=3 if use_separators else 1)
        self.transformer = VectorTransformer(input_width, shape, use_separators)
        self.head = Head(shape.width)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, H), (D, C) -> (D,), (D, C)."""
        check_chunks(chunk_mask)

        def score(masks: Tensor) -> Tensor:
            scores: Tensor = self.head(self.transformer.under(masks, features.vectors))  # (V, D)
            return scores

        return leave_one_out(score, chunk_mask)


class ParadeTransfRand(ParadeTransf):
    """PARADE Transf-RAND-L2: the transformer is trained from random weights, of 2 layers with 4 heads each.

    It is as wide as the backbone. A new one's C and S are the backbone's word embeddings of its first special
    token and of that between two texts ([CLS] and [SEP]); a backbone that gives out no word embeddings, or
    such as are not as wide as its vectors (ELECTRA small), leaves them as they are, from N(0, 1/H).
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        if not isinstance(spec.options, ParadeRandOptions):
            raise SpecError(f"options are {type(spec.options).__name__}; they must be ParadeRandOptions")
        options, backbone = spec.options, transformers_config(config)
        width = backbone.hidden_size
        shape = TransformerShape(
            options.layers, options.heads, width, 4 * width, options.positions, backbone.vocab_size
        )
        super().__init__(spec, width, shape, options.use_separators)

    def start_from(self, backbone: nn.Module, frame: Frame) -> None:
        """Copy the backbone's word embeddings of [CLS] and [SEP] into C and S."""
        words = getattr(backbone, "get_input_embeddings", lambda: None)()
        if not isinstance(words, nn.Embedding) or words.embedding_dim != self.transformer.first.shape[0]:
            return
        for vector, part in zip(
            (self.transformer.first, self.transformer.separator), frame.parts, strict=False
        ):
            if vector is not None and len(part):
                with torch.no_grad():
                    vector.copy_(words.weight[int(part[0])])


class ParadeTransfPretr(ParadeTransf):
    """PARADE Transf-PRETR-L6: the transformer starts from a pretrained one (6 layers of MiniLM).

    A linear layer with bias brings the chunks' vectors to its width, if that is another.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        if not isinstance(spec.options, ParadePretrOptions):
            raise SpecError(f"options are {type(spec.options).__name__}; they must be ParadePretrOptions")
        hidden_size = transformers_config(config).hidden_size
        super().__init__(spec, hidden_size, spec.options.transformer, spec.options.use_separators)


def check_chunk_positions(spec: RankerSpec, shape: TransformerShape, beside: int) -> None:
    """Refuse documents of more chunks than an aggregator can place, with `beside` positions for all else.

    Raises: SpecError naming the fields and the limit.
    """
    tokens = spec.chunking.max_document_tokens
    chunks = chunk_count(spec.chunking, tokens)
    if chunks + beside > shape.positions:
        raise SpecError(
            f"chunking.max_document_tokens is {tokens}: with a window of {spec.chunking.window} and a stride "
            f"of {spec.chunking.stride} that may be {chunks} chunks; the {shape.positions} positions of the "
            f"aggregator's transformer hold at most {max(0, shape.positions - beside)}"
        )
