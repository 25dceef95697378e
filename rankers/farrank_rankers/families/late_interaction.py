"""PARADE with late interaction: a small transformer reads query and chunks, encoded separately, together."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from farrank_rankers.backbones.build_backbone import transformers_config
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import SpecError
from farrank_rankers.families.parade_transformer import (
    ChunkVectors,
    InputPart,
    ParadeTransf,
    VectorTransformer,
)
from farrank_rankers.family import LateInteractionOptions
from farrank_rankers.features import Features, Layout
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import Role

# Positions that the interaction reads at once: its activations take about 200 MB at a width of 768.
GROUP_POSITIONS = 2**14

# Each text is encoded as `[CLS] [SEP] text [SEP]`; the interaction reads these special tokens, too.
SPECIAL_TOKENS = 3


class TokenEncoder(Encoder):
    """Encode a query or a chunk as the last layer's vectors of all its tokens."""

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: last_hidden_state (…, H) -> (…, H)."""
        return Features(output.last_hidden_state, tokens.roles)


class LateInteraction(ParadeTransf):
    """PARADE Transf-PRETR-LATEIR: one transformer reads each chunk with the query, another reads the results.

    v_i = Int(C, S, q_1 … q_Q, S, t_1 … t_T, S)[0], where q are all encoded vectors of the query and t those
    of chunk i, [CLS] and [SEP]s included; the score is F(Agg(C', S', v_1 … v_m, S')[0]). Segment ids are 0
    throughout in the interaction; 1 for the chunks and 0 for all else in the aggregator. All of this is as in
    Boytsov et al.'s published code, so that weights trained with it score the same here. An interaction
    depends only on its chunk: the evidence leaves chunks out of the aggregator only.

    Both transformers have the backbone's learning rate, as in the paper.

    Raises: SpecError if texts may exceed the transformers' positions; ValueError if the query is None.
    Source: Boytsov et al. (PARADE-LATEIR), after MORES+ of Gao & Callan, 2022.
    """

    learns_as_backbone = True

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        options = spec.options_as(LateInteractionOptions)
        window = min(spec.chunking.window, spec.chunking.max_document_tokens)
        special = (4 if options.use_separators else 1) + 2 * SPECIAL_TOKENS
        needed = spec.max_query_tokens + window + special
        if needed > options.interaction.positions:
            raise SpecError(
                f"chunking.window is {spec.chunking.window} and max_query_tokens {spec.max_query_tokens}: "
                f"with {special} special vectors that makes {needed} positions; the interaction has "
                f"{options.interaction.positions}"
            )
        super().__init__(spec, options.interaction.width, options.transformer, options.use_separators)
        hidden_size = transformers_config(config).hidden_size
        self.interaction = VectorTransformer(hidden_size, options.interaction, options.use_separators)

    def interact(self, features: Features, chunk_mask: Tensor, query: Features | None) -> ChunkVectors:
        """Read each chunk with its document's query, a few at a time; a traced graph reads all at once.

        Shapes: (D, C, T, H), (D, C), (D, Q, H) -> chunks (D, C, W), meaningless at places without a chunk.
        """
        if query is None:
            raise ValueError("query is None; late interaction reads chunks with the query's vectors")
        roles = features.token_roles  # (D, C, T)
        query_mask = query.token_roles != Role.PADDING  # (D, Q)
        doc_mask = (roles != Role.PADDING) & chunk_mask[:, :, None]  # (D, C, T)
        if torch.compiler.is_compiling():
            rows = torch.arange(chunk_mask.numel(), device=chunk_mask.device)  # (D·C,)
            document = rows // chunk_mask.shape[1]  # (D·C,)
            of_query = InputPart(
                query.vectors.index_select(0, document), query_mask.index_select(0, document)
            )
            of_chunk = InputPart(features.vectors.flatten(0, 1), doc_mask.flatten(0, 1))
            interacted: Tensor = self.interaction(of_query, of_chunk)  # (D·C, W)
            return ChunkVectors(interacted.reshape(*chunk_mask.shape, -1), chunk_mask)
        documents, columns = chunk_mask.nonzero(as_tuple=True)  # (N,) each
        group = max(1, GROUP_POSITIONS // (roles.shape[2] + query_mask.shape[1]))
        vectors = []
        for document, column in zip(
            torch.split(documents, group), torch.split(columns, group), strict=True
        ):  # (G,) each
            of_query = InputPart(query.vectors[document], query_mask[document])
            of_chunk = InputPart(features.vectors[document, column], doc_mask[document, column])
            vectors.append(self.interaction(of_query, of_chunk))  # (G, W)
        joined = torch.cat(vectors)  # (N, W)
        empty = joined.new_zeros(*chunk_mask.shape, joined.shape[1])  # (D, C, W)
        return ChunkVectors(empty.index_put((documents, columns), joined), chunk_mask)
